"""The spool server: records that are pushed, kept on disk until they are read."""
