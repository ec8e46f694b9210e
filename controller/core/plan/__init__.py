"""Pure: which tasks a pipeline becomes, where they run, and by which links they meet."""
