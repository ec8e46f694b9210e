"""The worker daemon and the task runtime."""
