"""The clusters that a run with faults goes through: one of its own, or one that runs already."""
