"""Clocks that go wrong: this folder on a process's PYTHONPATH bends the time that it sees."""
