"""Addresses and tags: one version of a dataset, by number or by name, and who may name it."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.loader.dataset.dataset import open_dataset
from headrace.store.contract.errors import FormatError, NoDataset
from headrace.store.datasets.dataset import Dataset
from headrace.store.files.store import FileStore
from headrace.store.history import address
from headrace.store.history.address import TAGS, Tag, TagRefused, delete_tag, open_at, read_tags, set_tag, split_address
from headrace.store.ledger.core.entries import (
    EpochRaised,
    FragmentEnded,
    PipelineApplied,
    Removed,
    Retracted,
    VersionPublished,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.log import fold_log
from tests.kits.store.dataset_writer import FRAGMENT, PIPELINE, Writer

SHARDS = ([3, "filtered"], [6, "duplicate"], [2])


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """Three versions, each of a shard more."""
    made = Writer(FileStore(tmp_path / "data"))
    first = 0
    for number, fates in enumerate(SHARDS, 1):
        made.entry(made.shard(fates, first))
        first += len(fates)
        ended = (FragmentEnded(FRAGMENT.id, 5),) if number == len(SHARDS) else ()
        made.entry(*ended, VersionPublished(number, "completed"))
    return made


def state_of(writer: Writer) -> LedgerState:
    return fold_log(writer.log, LedgerState())


def test_an_address_is_a_uri_and_a_version_or_tag(writer: Writer) -> None:
    uri = writer.store.uri
    assert split_address(uri) == (uri, "")
    assert split_address(f"{uri}@3") == (uri, "3")
    assert split_address(f"{uri}@release-1.0") == (uri, "release-1.0")
    assert split_address(f"{uri}@1.0") == (f"{uri}@1.0", "")
    assert split_address("@3") == ("@3", "")


def test_the_server_of_a_bucket_stays_with_its_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "open_store", lambda uri: FileStore(tmp_path))
    assert split_address("s3://bucket/data@two?region=a@b") == ("s3://bucket/data?region=a@b", "two")
    assert split_address("s3://bucket/data?region=a@b") == ("s3://bucket/data?region=a@b", "")


def test_a_folder_whose_name_ends_like_an_address_opens_as_before(tmp_path: Path) -> None:
    made = Writer(FileStore(tmp_path / "data@2"))
    made.entry(made.shard([3]), VersionPublished(1, "completed"))
    assert split_address(str(tmp_path / "data@2")) == (str(tmp_path / "data@2"), "")
    assert open_at(str(tmp_path / "data@2")).state.version == 1


def test_an_older_version_has_its_own_shards_counts_and_verdict_of_verify(writer: Writer) -> None:
    uri = writer.store.uri
    for version, (records, kept) in enumerate([(2, 1), (4, 2), (5, 3)], 1):
        found = open_at(f"{uri}@{version}")
        balance = found.balance()
        assert (found.state.version, balance.records_closed, balance.counts.kept) == (version, records, kept)
        assert len(found.shards) == version
        assert found.manifest()["version"] == version
        assert len(found.manifest()["shards"]) == version
        report = found.verify()
        assert (report.problems, report.records) == ((), records)
        opened = open_dataset(f"{uri}@{version}")
        assert (opened.version, opened.layout.shards) == (version, version)


def test_what_was_taken_down_is_shown_by_no_older_version(writer: Writer) -> None:
    key = state_of(writer).shards[0].closed.objects[0].key
    writer.entry(EpochRaised("retraction"), Retracted(4, ((key, (0,)),), ()), VersionPublished(4, "retraction", 7))
    for name in ("@1", "@3", "@4"):
        opened = open_dataset(f"{writer.store.uri}{name}")
        assert (np.array(opened.rows(0, np.arange(1))) == 2).all(), "padding"
        assert open_at(f"{writer.store.uri}{name}").retracted(key) == {0}


def test_a_tag_names_a_version_and_is_an_address(writer: Writer) -> None:
    store, state = writer.store, state_of(writer)
    assert read_tags(store) == {}
    set_tag(store, state, "baseline", 2, move=False)
    assert read_tags(store) == {"baseline": Tag(2, state.published[2].number)}
    assert open_at(f"{store.uri}@baseline").state.version == 2
    assert open_dataset(f"{store.uri}@baseline").version == 2
    set_tag(store, state, "baseline", 2, move=False)
    with pytest.raises(TagRefused, match="'baseline' names version 2: add --move to have it name 3"):
        set_tag(store, state, "baseline", 3, move=False)
    set_tag(store, state, "baseline", 3, move=True)
    assert open_at(f"{store.uri}@baseline").state.version == 3
    assert delete_tag(store, "baseline").version == 3
    with pytest.raises(NoDataset, match="has no tag 'baseline'; it has none"):
        open_at(f"{store.uri}@baseline")
    with pytest.raises(TagRefused, match="has no tag 'baseline'"):
        delete_tag(store, "baseline")


@pytest.mark.parametrize("name", ["", "3", "1.0", "a b", "a/b", "a@b", "ä", "a" * 65, ".a", "-a", "a\n"])
def test_a_name_that_an_address_could_not_hold_is_refused(writer: Writer, name: str) -> None:
    with pytest.raises(TagRefused, match="no name of a tag: at most 64 letters"):
        set_tag(writer.store, state_of(writer), name, 1, move=False)
    assert read_tags(writer.store) == {}


def test_an_unknown_version_and_too_many_tags_are_refused(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TagRefused, match="has no version 9"):
        set_tag(writer.store, state_of(writer), "a", 9, move=False)
    monkeypatch.setattr(address, "TAGS_MAX", 2)
    set_tag(writer.store, state_of(writer), "a", 1, move=False)
    set_tag(writer.store, state_of(writer), "b" * 64, 1, move=False)
    with pytest.raises(TagRefused, match="has 2 tags, the most that there can be"):
        set_tag(writer.store, state_of(writer), "c", 1, move=False)


def test_two_writers_at_one_instant_lose_no_tag(writer: Writer) -> None:
    store, state, barrier = writer.store, state_of(writer), threading.Barrier(8)
    won: list[int] = []

    def write(number: int) -> None:
        barrier.wait()
        set_tag(store, state, f"own-{number}", 1, move=False)
        try:
            set_tag(store, state, "shared", 1 + number % 3, move=False)
            won.append(1 + number % 3)
        except TagRefused:
            return

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_tags(store)
    assert set(found) == {"shared", *(f"own-{number}" for number in range(8))}
    assert set(won) == {found["shared"].version}


def test_a_tag_of_a_dataset_that_was_removed_names_nothing(writer: Writer) -> None:
    set_tag(writer.store, state_of(writer), "old", 1, move=False)
    writer.entry(EpochRaised("removal"), Removed("removal"))
    writer.entry(PipelineApplied("v1", PIPELINE), VersionPublished(1, "completed"))
    with pytest.raises(NoDataset, match="tag 'old' names version 1 of a dataset that was removed"):
        open_at(f"{writer.store.uri}@old")
    set_tag(writer.store, state_of(writer), "old", 1, move=False)
    assert open_at(f"{writer.store.uri}@old").state.version == 1


GOOD = {"format": 1, "tags": {"a": {"version": 1, "entry": 2}}}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "malformed"),
        (b"[]", "malformed"),
        (b'{"format": 2, "tags": {}}', "has format 2, not 1"),
        (json.dumps({"format": 1, "tags": {"a": 1}}).encode(), "malformed"),
        (json.dumps({"format": 1, "tags": {"a": {"version": True, "entry": 2}}}).encode(), "the tag 'a'"),
        (json.dumps({"format": 1, "tags": {"a": {"version": -1, "entry": 2}}}).encode(), "the tag 'a'"),
        (json.dumps({"format": 1, "tags": {"../a": {"version": 1, "entry": 2}}}).encode(), "the tag '../a'"),
        (json.dumps(GOOD).encode() + b" " * (1 << 18), "more than 262144 bytes"),
        (
            json.dumps({"format": 1, "tags": {f"t{n}": {"version": 1, "entry": 2} for n in range(1001)}}).encode(),
            "1001 tags, at most 1000",
        ),
    ],
)
def test_a_file_of_tags_that_nobody_wrote_is_refused(writer: Writer, data: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        TAGS.decode(data, "file:///data")
    writer.store.replace(TAGS.key, [data])
    with pytest.raises(FormatError, match=said):
        set_tag(writer.store, state_of(writer), "b", 1, move=False)
    assert Dataset.open(writer.store.uri).state.version == 3
