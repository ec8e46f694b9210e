"""The history of a dataset, by its ledger alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.store.files.store import FileStore
from headrace.store.history.versions import history_of
from headrace.store.ledger.core.entries import (
    Entry,
    EpochRaised,
    FragmentEnded,
    PipelineApplied,
    Retracted,
    VersionPublished,
    decode_entry,
    encode_entry,
)
from headrace.store.ledger.core.fold import FoldError, LedgerState
from headrace.store.ledger.log import fold_log
from headrace.store.ledger.snapshot import decode_snapshot, encode_snapshot
from tests.kits.store.dataset_writer import FRAGMENT, Writer

SHARDS = ([3, "filtered"], [6, "duplicate"], [2])


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """Three versions, each of a shard more: entries 1, 3 and 5 close, and 2, 4 and 6 publish."""
    made = Writer(FileStore(tmp_path))
    first = 0
    for number, fates in enumerate(SHARDS, 1):
        made.entry(made.shard(fates, first))
        first += len(fates)
        ended = (FragmentEnded(FRAGMENT.id, 5),) if number == len(SHARDS) else ()
        made.entry(*ended, VersionPublished(number, "completed", at=1_800_000_000 + number))
    return made


def state_of(writer: Writer) -> LedgerState:
    return fold_log(writer.log, LedgerState())


def restore(state: LedgerState, version: int) -> VersionPublished:
    shown = state.published[version]
    return VersionPublished(state.version + 1, "rollback", shown.shows, shown.complete, restores=version)


def test_a_version_has_its_balance_its_time_and_what_it_read_further(writer: Writer) -> None:
    found = history_of(state_of(writer), "write")
    assert [(one.version, one.entry, one.at - 1_800_000_000) for one in found] == [(1, 2, 1), (2, 4, 2), (3, 6, 3)]
    assert [(one.records, one.kept, one.filtered, one.duplicate) for one in found] == [
        (2, 1, 1, 0),
        (4, 2, 1, 1),
        (5, 3, 1, 1),
    ]
    assert [[(item.uri, item.version, item.records) for item in one.inputs] for one in found] == [
        [(FRAGMENT.uri, "9-9-9", count)] for count in (2, 2, 1)
    ]
    assert [(one.objects, one.shards, one.recipes, one.complete) for one in found] == [
        (1, 1, ("v1",), False),
        (1, 2, ("v1",), False),
        (1, 3, ("v1",), True),
    ]


def test_a_recipe_that_comes_back_is_that_of_its_version(tmp_path: Path) -> None:
    made = Writer(FileStore(tmp_path))
    for number, recipe in enumerate(("v1", "v2", "v1"), 1):
        closed = replace(made.shard([3], number - 1), version=recipe)
        made.entry(PipelineApplied(recipe, {"name": recipe}), closed, VersionPublished(number, "completed"))
    found = history_of(state_of(made), "write")
    assert [one.recipes for one in found] == [("v1",), ("v1", "v2"), ("v2", "v1")]
    assert [one.pipeline["name"] for one in found] == ["v1", "v2", "v1"]


def test_a_rollback_shows_the_earlier_version_and_what_comes_behind_it(writer: Writer) -> None:
    writer.entry(restore(state_of(writer), 1))
    state = state_of(writer)
    assert (state.unshown, state.rolled_back) == (0, 2)
    # A shard that was closed before the rollback and shown by no version is hidden too.
    writer.entry(FragmentEnded(FRAGMENT.id, 5), VersionPublished(5, "completed"))
    writer.entry(restore(state_of(writer), 3))
    found = history_of(state_of(writer), "write")
    assert [(one.version, one.restores, one.records) for one in found[3:]] == [(4, 1, 2), (5, 0, 2), (6, 3, 5)]
    assert [one.objects for one in found] == [1] * 6
    state = state_of(writer)
    assert (state.unshown, state.rolled_back) == (0, 0)
    assert [state.published[number].restores(number) for number in (1, 4, 5, 6)] == [0, 1, 0, 3]


def test_a_rollback_and_its_time_outlive_a_snapshot(writer: Writer) -> None:
    writer.entry(restore(state_of(writer), 1))
    state = state_of(writer)
    assert decode_snapshot(encode_snapshot(state)) == state


@pytest.mark.parametrize(("version", "shows"), [(9, 2), (1, 4), (1, -1)])
def test_a_rollback_to_what_was_never_published_so_is_refused(writer: Writer, version: int, shows: int) -> None:
    state = state_of(writer)
    with pytest.raises(FoldError, match=f"restores version {version} otherwise than it was published"):
        state.apply(state.number + 1, Entry(1, (VersionPublished(4, "rollback", shows, restores=version),)))


def test_a_version_of_before_there_were_times_is_read() -> None:
    import msgpack

    entry = msgpack.packb([1, 1, [["VersionPublished", [1, "completed", 7, False]]]])
    assert decode_entry(entry).changes == (VersionPublished(1, "completed", 7, False, 0, 0),)
    assert decode_entry(encode_entry(decode_entry(entry))) == decode_entry(entry)


@pytest.mark.parametrize(("reason", "hidden"), [("retraction", [1, 1, 1, 1, 1]), ("deduplication", [0, 0, 0, 1, 0])])
def test_a_takedown_holds_for_all_versions_a_deduplication_from_its_own(
    writer: Writer, reason: str, hidden: list[int]
) -> None:
    key = state_of(writer).shards[0].closed.objects[0].key
    writer.entry(EpochRaised(reason), Retracted(4, ((key, (0,)),), ()), VersionPublished(4, reason, 6))
    writer.entry(restore(state_of(writer), 3))
    assert [one.retracted for one in history_of(state_of(writer), "write")] == hidden
