"""Pure: one run of a pipeline, from its opening to its end."""
