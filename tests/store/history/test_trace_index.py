"""The index of ids: the shards of a record are found through it, and without it, and never missed."""

from pathlib import Path

import numpy as np
import pytest

from headrace.store.datasets.dataset import Dataset
from headrace.store.files.store import FileStore
from headrace.store.history import trace_index
from headrace.store.history.address import open_at
from headrace.store.history.trace_index import encode_entries, hash_of, search, shards_with, write_trace_index
from headrace.store.ledger.core.entries import VersionPublished
from tests.kits.store.dataset_writer import Fate, Writer

FATES: list[Fate] = [3, "filtered", 6, "quarantined", "duplicate"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """A dataset of six shards of five records, two to a file."""
    monkeypatch.setattr(trace_index, "FILE_SHARDS", 2)
    writer = Writer(FileStore(tmp_path))
    for number in range(6):
        writer.entry(writer.shard(FATES, 5 * number), VersionPublished(number + 1, "completed"))
    return writer


def places(made: Writer, name: str, version: str = "") -> list[int]:
    dataset = open_at(made.store.uri + version)
    return [dataset.state.shards.index(shard) for shard in shards_with(dataset, name)]


def files(made: Writer) -> list[str]:
    return [info.key for info in made.store.list("trace/")]


def test_a_record_is_found_in_its_shard_alone(made: Writer) -> None:
    assert places(made, "7") == list(range(6)), "without an index all are read"
    assert write_trace_index(Dataset.open(made.store.uri)) == (3, 3)
    assert all(places(made, str(row)) == [row // 5] for row in range(30))
    assert places(made, "30") == places(made, "") == places(made, "\ud800") == []
    first = {key: made.store.get(key) for key in files(made)}
    assert write_trace_index(Dataset.open(made.store.uri)) == (0, 3)
    for key in first:
        made.store.delete(key)
    write_trace_index(Dataset.open(made.store.uri))
    assert {key: made.store.get(key) for key in files(made)} == first, "made again, it is the same"
    assert places(made, "7", "@4") == [1], "a version has the files of its shards"


def test_shards_that_came_later_are_read(made: Writer) -> None:
    write_trace_index(Dataset.open(made.store.uri))
    made.entry(made.shard(FATES, 30))
    assert places(made, "7") == [1, 6]
    assert places(made, "31") == [6]
    assert write_trace_index(Dataset.open(made.store.uri)) == (1, 4)
    assert (places(made, "7"), places(made, "31")) == ([1], [6])
    assert places(made, "7", "@5") == [1, 4], "a file that reaches further than the version says nothing of it"


@pytest.mark.parametrize("at", [0, 8, 16, 24, 32, 40, 50])
def test_a_damaged_file_costs_time_and_no_answer(made: Writer, caplog: pytest.LogCaptureFixture, at: int) -> None:
    write_trace_index(Dataset.open(made.store.uri))
    victim = next(key for key in files(made) if key.startswith("trace/2-4"))
    data = bytearray(made.store.get(victim))
    made.store.delete(victim)
    data[at] ^= 0xFF
    made.store.create(victim, [bytes(data)])
    assert places(made, "12") == ([2, 3] if caplog.text else [2])
    assert places(made, "1") == ([0, 2, 3] if caplog.text else [0])
    assert at >= 50 or "read in its place" in caplog.text


def test_files_of_other_shards_and_strange_names_say_nothing(made: Writer) -> None:
    write_trace_index(Dataset.open(made.store.uri))
    own = next(key for key in files(made) if key.startswith("trace/0-2"))
    empty = encode_entries(np.zeros(0, np.uint64), np.zeros(0, np.uint16))
    digest = own.rpartition("-")[2]
    for name in (f"trace/2-4-{digest}", f"trace/0-99-{digest}", f"trace/00-2-{digest}", "trace/x.index"):
        made.store.create(name, [empty])
    assert all(places(made, str(row)) == [row // 5] for row in range(30))
    write_trace_index(Dataset.open(made.store.uri))
    assert len(files(made)) == 4
    assert "trace/x.index" in files(made), "what is not an index stays"


def test_a_file_of_many_buckets_finds_each_entry() -> None:
    names = [f"id {number}" for number in range(5000)]
    data = encode_entries(np.array([hash_of(name) for name in names], np.uint64), np.arange(5000, dtype=np.uint16))
    reads: list[int] = []

    def get(at: int, size: int) -> bytes:
        reads.append(size)
        return data[at : at + size]

    assert all(number in search(get, 5000, hash_of(name)) for number, name in enumerate(names))
    assert len(reads) == 3 * 5000
    assert max(reads) < 1000 * 6
    assert len(data) < 5000 * 6 + 1000
    with pytest.raises(ValueError, match="damaged"):
        search(get, 10, hash_of(names[20]))
