"""Controllers whose logs answer at once."""
