"""Batches: where segments lie, the compiled loops, and the buffers that are filled."""
