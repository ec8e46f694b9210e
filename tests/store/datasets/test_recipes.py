"""Which version of the pipeline closed what, as the ledger says."""

import pytest

from headrace.store.datasets.recipes import closed_ranges, recipes_of
from headrace.store.ledger.core.entries import (
    Closed,
    Entry,
    FragmentEnded,
    FragmentsListed,
    Led,
    PipelineApplied,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range
from headrace.store.ledger.snapshot import decode_snapshot, encode_snapshot

A, B, C = (
    Fragment.named("read", f"file:///{name}.jsonl", "1", start=0, end=-1, reader="jsonl", size=9) for name in "abc"
)


def closed(version: str, fragment: Fragment, first: int, kept: int, sink: str = "write") -> Closed:
    return Closed(sink, version, 0, (Range(fragment.id, first, kept),), (), Counts(kept=kept, tokens=2 * kept))


@pytest.fixture
def state() -> LedgerState:
    """Records 0 to 4 of the first file and 2 to 3 of the second by the old recipe, what is between by the new one."""
    made = LedgerState()
    made.apply(0, Entry(1, (Led(1, {}), PipelineApplied("old", {"name": "p"}), FragmentsListed((A, B)))))
    made.apply(1, Entry(1, (closed("old", A, 0, 3), closed("old", A, 3, 2), closed("old", B, 2, 2))))
    made.apply(2, Entry(1, (PipelineApplied("never", {"name": "r"}), PipelineApplied("new", {"name": "q"}))))
    made.apply(3, Entry(1, (closed("new", A, 5, 4), closed("new", B, 0, 2), closed("new", B, 0, 2, "other"))))
    made.apply(4, Entry(1, (FragmentEnded(A.id, 9), FragmentEnded(B.id, 4))))
    return made


def test_each_recipe_that_closed_something_has_its_part(state: LedgerState) -> None:
    old, new = recipes_of(state, "write")
    assert (old.version, old.pipeline, old.in_force, old.counts.kept) == ("old", {"name": "p"}, False, 7)
    assert (new.version, new.pipeline, new.in_force, new.counts.kept) == ("new", {"name": "q"}, True, 6)
    assert (old.shards, old.first_entry, old.last_entry) == (3, 1, 1)
    assert (new.shards, new.first_entry, new.last_entry) == (3, 3, 3)


def test_a_recipe_that_is_in_force_and_has_closed_nothing_is_named(state: LedgerState) -> None:
    state.apply(5, Entry(1, (PipelineApplied("newest", {}),)))
    assert [(item.version, item.shards) for item in recipes_of(state, "write")] == [
        ("old", 3),
        ("new", 3),
        ("newest", 0),
    ]
    newest = recipes_of(state, "write")[-1]
    assert (newest.first_entry, newest.last_entry, newest.in_force, newest.counts) == (-1, -1, True, Counts())


def test_a_recipe_has_its_first_and_its_last_entry(state: LedgerState) -> None:
    state.apply(5, Entry(1, (FragmentsListed((C,)), closed("new", C, 0, 1))))
    new = recipes_of(state, "write")[-1]
    assert (new.shards, new.first_entry, new.last_entry) == (4, 3, 5)


def test_each_closed_range_names_its_version(state: LedgerState) -> None:
    found = [(item.fragment.uri[-7:], item.first, item.end, item.version) for item in closed_ranges(state, "write")]
    assert found == [
        ("a.jsonl", 0, 5, "old"),
        ("a.jsonl", 5, 9, "new"),
        ("b.jsonl", 0, 2, "new"),
        ("b.jsonl", 2, 4, "old"),
    ]


def test_a_snapshot_keeps_the_recipes_of_ranges(state: LedgerState) -> None:
    restored = decode_snapshot(encode_snapshot(state))
    assert isinstance(restored, LedgerState)
    assert recipes_of(restored, "write") == recipes_of(state, "write")
    assert list(closed_ranges(restored, "write")) == list(closed_ranges(state, "write"))
