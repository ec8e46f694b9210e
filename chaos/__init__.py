"""Faults, checkers and the simulator."""
