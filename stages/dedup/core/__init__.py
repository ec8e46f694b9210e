"""Pure: what makes two records duplicates, and which of them is kept."""
