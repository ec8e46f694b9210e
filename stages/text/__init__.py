"""Texts as UTF-8 bytes: words, characters, hashes, and the compiled loops over them."""
