"""Pure: reading, gathering, sweeping and asking, as a task does them."""
