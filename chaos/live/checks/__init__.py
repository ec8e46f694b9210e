"""The checker of a run with faults: the evidence, the source, and the findings."""
