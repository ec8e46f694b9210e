"""The log of a controller's events, its causes, and the search in logs of a cluster."""
