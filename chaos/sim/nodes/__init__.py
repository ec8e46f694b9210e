"""The simulated processes: controllers, workers, tasks, deciders, and the operator."""
