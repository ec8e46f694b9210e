"""Pure: checksums of blocks, packing into sequences, and parts of records."""
