"""Pure: which input is read, by whom, and what is under suspicion."""
