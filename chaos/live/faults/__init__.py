"""Faults that are done to real processes, disks and hosts."""
