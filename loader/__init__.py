"""The training side: order, datasets, batches."""
