"""What a controller says of its runs: status, progress, counts and metrics."""
