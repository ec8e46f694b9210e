"""Gates: what stands between two parts of Headrace and lets through what a scenario allows."""
