"""How a worker joins its cluster, proves who it is, and stays connected."""
