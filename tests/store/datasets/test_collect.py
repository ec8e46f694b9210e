"""Collection: what is below the floor and reached from nothing goes, and nothing else, whatever its age."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from headrace.store.contract.objects import ObjectInfo, ObjectStore
from headrace.store.datasets import collection as module
from headrace.store.datasets.collection import collect
from headrace.store.ledger.core.entries import (
    Closed,
    Entry,
    EpochRaised,
    FragmentsListed,
    Led,
)
from headrace.store.ledger.core.fold import FoldError, LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range, StoredObject as Stored
from headrace.store.open import open_store
from headrace.store.shards.object_keys import epoch_of
from tests.kits.store.s3_server import S3Server

FRAGMENT = Fragment.named("read", "file:///a", "1", start=0, end=-1, reader="lines", size=100)
#: Older than anything that a run leaves: 2001-09-09, in seconds since 1970.
LONG_AGO_S = 1_000_000_000


def key(epoch: int, name: int, folder: str = "shards", suffix: str = ".safetensors") -> str:
    return f"{folder}/{epoch}/{name:032x}{suffix}"


def closed(first: int, epoch: int, *keys: str) -> Closed:
    objects = tuple(Stored("tokens", name, "xxh3-128:0", 1) for name in keys)
    return Closed("write", "v", epoch, (Range(FRAGMENT.id, first, 1),), objects, Counts(kept=1))


def ledger() -> LedgerState:
    """Epoch 1 closed a shard of two objects, then the epoch was raised to 3, and closed one."""
    state = LedgerState()
    state.apply(0, Entry(1, (Led(1, {}), FragmentsListed((FRAGMENT,)))))
    state.apply(1, Entry(1, (EpochRaised("created"),)))
    state.apply(2, Entry(1, (closed(0, 1, key(1, 10), key(1, 11, "quarantine", ".parquet")),)))
    state.apply(3, Entry(1, (EpochRaised("collection"), closed(1, 3, key(3, 30)))))
    return state


NAMED = [key(1, 10), key(1, 11, "quarantine", ".parquet"), key(3, 30)]
LEFT_BEHIND = [key(1, 12), key(1, 12, suffix=".documents.parquet"), key(2, 13, "quarantine", ".parquet")]
#: Written in the ledger's own epoch, and proposed any moment now.
PROPOSED_SOON = [key(3, 31), key(3, 31, "quarantine", ".parquet")]
NOT_OURS = ["shards/1/notes.txt", "quarantine/old.parquet", "manifest.json", "shards/1/" + "f" * 32]


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "file":
        return open_store(str(tmp_path))
    server: S3Server = request.getfixturevalue("s3_server")
    return open_store(server.uri())


def fill(store: ObjectStore) -> None:
    for name in [*NAMED, *LEFT_BEHIND, *PROPOSED_SOON, *NOT_OURS]:
        store.create(name, [b"x" * 10])


def keys(store: ObjectStore) -> list[str]:
    return sorted(info.key for info in store.list(""))


def test_what_lies_unnamed_below_the_floor_goes_alone(store: ObjectStore) -> None:
    fill(store)
    told = collect(store, ledger(), dry_run=True)
    assert (sorted(told.keys), told.size, told.floor) == (sorted(LEFT_BEHIND), 30, 3)
    assert (told.undecided, told.undecided_size) == (2, 20)
    assert keys(store) == sorted([*NAMED, *LEFT_BEHIND, *PROPOSED_SOON, *NOT_OURS])
    assert collect(store, ledger(), dry_run=False) == told
    assert keys(store) == sorted([*NAMED, *PROPOSED_SOON, *NOT_OURS])
    assert collect(store, ledger(), dry_run=False).keys == ()


def check_ages(folder: Path) -> None:
    """Everything that may yet be proposed is ancient, and everything that is garbage was written just now."""
    store = open_store(str(folder))
    fill(store)
    for name in [*NAMED, *PROPOSED_SOON]:
        os.utime(folder / name, (LONG_AGO_S, LONG_AGO_S))
    collect(store, ledger(), dry_run=False)
    assert keys(store) == sorted([*NAMED, *PROPOSED_SOON, *NOT_OURS])


def test_age_is_never_looked_at(tmp_path: Path) -> None:
    check_ages(tmp_path)


def test_a_collection_by_age_is_caught(tmp_path: Path) -> None:
    def by_age(state: LedgerState, objects: list[ObjectInfo]) -> Iterator[ObjectInfo]:
        named = {item.key for shard in state.shards for item in shard.closed.objects}
        for info in objects:
            written_s = int(info.version.split("-")[1]) / 1e9
            if epoch_of(info.key) is not None and info.key not in named and written_s <= LONG_AGO_S:
                yield info

    with patch.object(module, "garbage", by_age), pytest.raises(AssertionError):
        check_ages(tmp_path)


def test_a_collection_that_is_cut_off_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    fill(store)

    def cut_off(_key: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(store, ledger(), dry_run=False, deleted=cut_off)
    assert len(keys(store)) == len(NAMED) + len(LEFT_BEHIND) + len(PROPOSED_SOON) + len(NOT_OURS) - 1
    collect(store, ledger(), dry_run=False)
    assert keys(store) == sorted([*NAMED, *PROPOSED_SOON, *NOT_OURS])


@pytest.mark.parametrize(
    "late",
    [
        lambda: closed(5, 1, key(3, 50)),
        lambda: closed(5, 3, key(1, 50)),
    ],
    ids=["a shard of an earlier epoch", "an object in the folder of one"],
)
def test_the_fold_refuses_entries_naming_what_a_collection_deleted(late: Callable[[], Closed]) -> None:
    with pytest.raises(FoldError, match=r"fenced off by 3|a collection may have deleted"):
        ledger().apply(4, Entry(1, (late(),)))
