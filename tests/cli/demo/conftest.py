"""The datasets that tests of loaders read."""

from tests.kits.loader.fixtures import (
    _few_threads as _few_threads,
    make_dataset as make_dataset,
    tiny_dataset as tiny_dataset,
)
