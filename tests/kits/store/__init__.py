"""Stores, datasets and power failures."""
