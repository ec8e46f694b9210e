"""Stages that are a user's own functions."""
