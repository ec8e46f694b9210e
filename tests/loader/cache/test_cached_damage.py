"""Files of the cache that a disk has damaged since they were written: found when they are read, and fetched anew."""

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.loader.cache.cache import ShardCache
from headrace.loader.cache.partial_shard import PartialShard
from headrace.loader.dataset.dataset import TokenDataset, dataset_in
from headrace.loader.loader import Loader
from headrace.store.contract.errors import ChecksumMismatch
from tests.kits.loader.store import RemoteStore

FORK_S_MAX = 60.0


def batches(dataset: TokenDataset | str) -> list[np.ndarray]:
    loader = Loader(dataset, batch_size=5, seed=1)
    found = [batch["tokens"].copy() for batch in loader]
    loader.close()
    return found


def cached(store: RemoteStore, folder: Path) -> TokenDataset:
    """The dataset as another process opens it."""
    return dataset_in(store, cache=ShardCache(folder))  # type: ignore[arg-type]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("user-*/*.*") if path.stat().st_size)


@pytest.fixture
def filled(large_dataset: str, tmp_path: Path) -> Path:
    """A cache that holds all of `large_dataset`."""
    batches(cached(RemoteStore(large_dataset), tmp_path))
    assert len(files(tmp_path)) == 2
    return tmp_path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_damaged_block_is_fetched_anew_and_nothing_else(
    large_dataset: str, filled: Path, caplog: pytest.LogCaptureFixture, share: float
):
    path = files(filled)[0]
    size = next(one.stat().st_size for one in Path(large_dataset).glob("shards/0/*") if one.name[:32] in path.name)
    flip(path, int(size * share))
    store = RemoteStore(large_dataset)
    with caplog.at_level(logging.WARNING, "headrace.loader"):
        assert np.array_equal(batches(cached(store, filled)), batches(large_dataset))
    assert sum(store.bytes[key] for key in store.bytes if key.startswith("shards")) == 64 << 10
    (key,) = (key for key in store.bytes if key.startswith("shards"))
    (record,) = caplog.records
    assert f" of {key} was damaged in the cache and is fetched anew" in record.getMessage()
    again = RemoteStore(large_dataset)
    assert np.array_equal(batches(cached(again, filled)), batches(large_dataset))
    assert not [key for key in again.bytes if key.startswith("shards")]


@pytest.mark.parametrize("end", ["", ".partial"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        lambda path: path.write_bytes(path.read_bytes()[:5]),
        lambda path: flip(path, 40),
        lambda path: flip(path, 6),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
    ],
    ids=["half", "five bytes", "header", "length", "zeros"],
)
def test_a_file_that_is_not_what_was_written_is_fetched_anew(
    large_dataset: str, filled: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object], end: str
):
    path = files(filled)[1].rename(str(files(filled)[1]) + end)
    damage(path)
    with caplog.at_level(logging.WARNING, "headrace.loader"):
        assert np.array_equal(batches(cached(RemoteStore(large_dataset), filled)), batches(large_dataset))
    assert "is not as it was written, and is fetched anew" in caplog.text
    assert len(files(filled)) == 2


def test_a_block_that_the_store_has_damaged_too_is_refused(large_dataset: str, filled: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    (copy / "shards/0").mkdir(parents=True)
    for path in Path(large_dataset).rglob("*.*"):
        (copy / path.relative_to(large_dataset)).write_bytes(path.read_bytes())
    for path in [*files(filled), *copy.glob("shards/0/*.safetensors")]:
        flip(path, 300_000)
    with pytest.raises(ChecksumMismatch, match="in its header"):
        batches(cached(RemoteStore(copy), filled))


def test_what_was_fetched_or_checked_here_is_not_checked_again(
    large_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checked: list[int] = []
    is_right = PartialShard.is_right
    monkeypatch.setattr(
        PartialShard, "is_right", lambda partial, block: checked.append(block) or is_right(partial, block)
    )
    dataset = cached(RemoteStore(large_dataset), tmp_path)
    batches(dataset)
    dataset.close()
    batches(dataset)
    assert not checked
    other = cached(RemoteStore(large_dataset), tmp_path)
    batches(other)
    count = len(checked)
    assert count == sum(other.shard(number).held.table.count for number in range(2))  # type: ignore[attr-defined]
    other.close()
    batches(other)
    assert len(checked) == count


def test_a_block_counts_as_checked_once_it_was_and_not_before(
    large_dataset: str, filled: Path, monkeypatch: pytest.MonkeyPatch
):
    is_right = PartialShard.is_right
    during: list[bool] = []

    def watched(partial: PartialShard, block: int) -> bool:
        # another thread that needs the block meanwhile must not take it as it is
        during.append(partial.unchecked is not None and bool(partial.unchecked[block]) and not partial.is_whole)
        return is_right(partial, block)

    monkeypatch.setattr(PartialShard, "is_right", watched)
    batches(cached(RemoteStore(large_dataset), filled))
    assert during
    assert all(during)


def test_who_trusts_the_bytes_has_none_checked(large_dataset: str, filled: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PartialShard, "is_right", lambda *_: pytest.fail("a block was checked"))
    store = RemoteStore(large_dataset)
    batches(dataset_in(store, cache=ShardCache(filled), verify=False))  # type: ignore[arg-type]


FORKED = """
import os, sys
from tests.kits.loader.store import RemoteStore
from headrace.loader.loader import Loader
from headrace.loader.cache.cache import ShardCache
from headrace.loader.dataset.dataset import dataset_in

loader = Loader(dataset_in(RemoteStore(sys.argv[1]), cache=ShardCache(sys.argv[2])), batch_size=5)
next(iter(loader))
loader.close()
child = os.fork()
count = sum(1 for _ in Loader(loader.dataset, batch_size=5))
if not child:
    os._exit(0 if count == 198 else 1)
_, status = os.waitpid(child, 0)
print(count, os.waitstatus_to_exitcode(status))
"""


def test_a_process_that_is_forked_behind_some_batches_reads_on_by_itself(large_dataset: str, tmp_path: Path):
    command = [sys.executable, "-c", FORKED, large_dataset, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FORK_S_MAX, check=True)
    assert done.stdout.split() == ["198", "0"]
