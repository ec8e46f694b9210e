"""Pure: the events that enter the core and the commands that leave it."""
