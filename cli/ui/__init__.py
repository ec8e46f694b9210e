"""Pages, progress and tables for people."""
