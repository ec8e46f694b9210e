"""Parquet that others wrote: decoded in a child of bounded memory."""
