"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from headrace.store.words import counted


@pytest.mark.parametrize(
    ("count", "words", "said"),
    [
        (0, ("shard",), "0 shards"),
        (1, ("shard",), "1 shard"),
        (2, ("shard",), "2 shards"),
        (27_000, ("shard",), "27,000 shards"),
        (1, ("entry", "entries"), "1 entry"),
        (1001, ("entry", "entries"), "1,001 entries"),
        (1, ("fragment stands open", "fragments stand open"), "1 fragment stands open"),
    ],
)
def test_one_of_a_thing_is_one_and_all_other_counts_are_several(count: int, words: tuple[str, ...], said: str) -> None:
    assert counted(count, *words) == said
