"""The order of samples: shuffle, mixtures, passes. Pure."""
