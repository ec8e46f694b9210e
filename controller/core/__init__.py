"""The pure state machines of the controller: events in, commands out, no I/O, clock or randomness."""
