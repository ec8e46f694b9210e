"""What a user declares: graphs, stages, parameters. Pure."""
