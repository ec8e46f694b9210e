"""Ends of links, and networks between them."""
