"""Making a shard again from its source."""
