"""How a controller issues certificates and tickets, and whom it lets in."""
