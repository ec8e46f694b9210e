"""Reading ahead of the training loop."""
