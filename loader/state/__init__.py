"""What a checkpoint keeps, and what resuming from it means."""
