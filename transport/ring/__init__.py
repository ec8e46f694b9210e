"""Links through shared memory."""
