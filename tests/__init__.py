"""The tests: a folder for each room, some for what goes through the house, and their kits."""
