"""The pure state machines of the worker and its tasks: events in, commands out."""
