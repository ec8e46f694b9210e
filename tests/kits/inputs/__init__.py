"""Input files, what reads them, and readers of other formats."""
