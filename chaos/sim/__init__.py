"""The simulator: the production cores in virtual time, from one seed."""
