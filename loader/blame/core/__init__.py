"""Pure: spikes of a loss, properties of what was read, and how they rank."""
