"""Filters, scores and edits of texts: what a pipeline removes, and why."""
