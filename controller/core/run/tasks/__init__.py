"""Pure: the tasks of a run and the links between them."""
