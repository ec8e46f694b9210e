"""The scorecard of a dataset, its page, and the gate that it must pass."""
