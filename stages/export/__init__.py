"""Dataset versions in the formats that others train with."""
