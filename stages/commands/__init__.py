"""Stages that are executables: the process, its keeper, and the two ways of records through it."""
