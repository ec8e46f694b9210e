"""Pure: frames, credit, control messages, and the table of a relay."""
