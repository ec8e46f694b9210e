"""Pure: what is asked for, checked, and the scripts, manifests and calls that come of it."""
