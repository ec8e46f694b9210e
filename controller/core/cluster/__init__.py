"""Pure: workers, leadership, fencing, and what a controller believes of an event."""
