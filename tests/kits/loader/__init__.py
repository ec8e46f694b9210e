"""Datasets and stores for loaders, and training loops."""
