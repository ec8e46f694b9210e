"""Sources: JSON Lines, Parquet, WARC, documents and the spool."""
