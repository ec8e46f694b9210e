"""Objects of an input: which there are, how they are opened, unpacked and compared."""
