"""The ends of a task's links: inbox, outbox, and how each is opened."""
