"""Tokenizing: the engines, the comparison between them, vocabularies, and training."""
