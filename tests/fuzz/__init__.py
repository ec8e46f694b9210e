"""Decoders under a fuzzer: targets, and what runs them."""
