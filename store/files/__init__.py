"""The store in a directory, `file://`, and what survives a power failure."""
