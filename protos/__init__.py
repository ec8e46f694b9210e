"""The control protocol and its generated stubs."""
