"""Mutants of the cores."""
