"""A task: one process that runs one attempt of a fused chain of stages."""
