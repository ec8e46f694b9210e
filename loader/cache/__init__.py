"""The cache of shards on local disk: fetching, spans, blocks, and room."""
