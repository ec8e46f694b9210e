"""Faults that an operator asks a controller for."""
