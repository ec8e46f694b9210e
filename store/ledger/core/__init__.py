"""Pure: entries, folds, intervals, and the balance of records."""
