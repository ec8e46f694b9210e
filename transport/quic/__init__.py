"""Links between hosts over QUIC."""
