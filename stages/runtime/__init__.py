"""What every stage works with: batches, records, the contract, errors, and the building of stages."""
