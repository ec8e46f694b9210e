"""Simulated sessions and links."""
