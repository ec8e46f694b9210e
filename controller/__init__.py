"""The controller: a pure core and its shell."""
