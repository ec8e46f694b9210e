"""Whole runs: their pipelines, commands, clusters and datasets."""
