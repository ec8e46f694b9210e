"""Datasets that many tests read, and torch on one thread."""

from tests.kits.loader.fixtures import (
    _few_threads as _few_threads,
    large_dataset as large_dataset,
    make_dataset as make_dataset,
    thousand_dataset as thousand_dataset,
    tiny_dataset as tiny_dataset,
)
