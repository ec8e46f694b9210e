"""The bytes of a shard: header, blocks, packing, key files, and the names of its objects."""
