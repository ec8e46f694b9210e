"""Chaos on the real system: faults drawn from a scenario, a run under them, and a checker that compares datasets."""
