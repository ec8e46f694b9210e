"""Datasets as the loader reads them: manifest, shards, rows and segments."""
