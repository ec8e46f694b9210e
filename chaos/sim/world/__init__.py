"""Virtual time, the parts of a simulated cluster, and its input."""
