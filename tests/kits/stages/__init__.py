"""Batches through stages, and models for them."""
