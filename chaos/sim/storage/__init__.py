"""The simulated object store and its log."""
