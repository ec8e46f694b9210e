"""The loop of the quickstart that learns from the shards."""
