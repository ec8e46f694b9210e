"""Datasets: what a ledger tells of them, versions, retraction, collection and verification."""
