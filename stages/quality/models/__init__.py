"""Models that judge texts, and the process that holds one for all tasks of a host."""
