"""What must hold after each simulated event."""
