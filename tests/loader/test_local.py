"""Which ranks share a host, and that a host fetches from a remote store what these read and little else."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.loader.batch.producer import produce
from headrace.loader.cache.cache import ShardCache
from headrace.loader.dataset.dataset import dataset_in
from headrace.loader.loader import Loader
from headrace.loader.world import local_ranks_of
from tests.kits.loader.shards import write_dataset
from tests.kits.loader.store import RemoteStore

TOLD = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}


@pytest.mark.parametrize(
    ("change", "rank", "world_size", "expected"),
    [
        ({}, 5, 8, (4, 5, 6, 7)),
        ({"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}, 5, 8, (5,)),
        # the loader's ranks are not the job's processes
        ({}, 2, 4, None),
        ({}, 5, 16, None),
        # what cannot be, or is not said
        ({"LOCAL_RANK": "7"}, 5, 8, None),
        ({"LOCAL_WORLD_SIZE": "1"}, 5, 8, None),
        ({"LOCAL_WORLD_SIZE": "many"}, 5, 8, None),
        ({"RANK": ""}, 5, 8, None),
    ],
)
def test_the_ranks_of_a_host_are_those_that_torchrun_says(
    change: dict[str, str], rank: int, world_size: int, expected: tuple[int, ...] | None
):
    assert local_ranks_of({**TOLD, **change}, rank, world_size) == expected


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
def test_without_torchrun_nothing_is_known_of_a_host(name: str):
    assert local_ranks_of({key: value for key, value in TOLD.items() if key != name}, 5, 8) is None


def test_a_loader_asks_torchrun_unless_it_is_told(tiny_dataset: str, monkeypatch: pytest.MonkeyPatch):
    for key, value in TOLD.items():
        monkeypatch.setenv(key, value)
    arguments: dict[str, Any] = {"batch_size": 1, "rank": 5, "world_size": 8}
    assert Loader(tiny_dataset, **arguments).local_ranks == (4, 5, 6, 7)
    assert Loader(tiny_dataset, batch_size=1).local_ranks == (4, 5, 6, 7)
    assert Loader(tiny_dataset, batch_size=1, alone=True).local_ranks is None
    given = Loader(tiny_dataset, **arguments, local_ranks=[7, 5])
    assert given.local_ranks == copy.copy(given).local_ranks == (5, 7)
    for wrong in ([4, 6], [], [5, 8], [-1, 5]):
        with pytest.raises(ValueError, match="local_ranks are those of this host, 5 among them, all below 8"):
            Loader(tiny_dataset, **arguments, local_ranks=wrong)


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows of 64 KiB and of 128 KiB, so that what four ranks read lies far apart."""
    return str(write_dataset(tmp_path_factory.mktemp("datasets") / "long", sequences=(64, 64), seq_len=32768))


def read(uri: str, cache: Path, rank: int, **arguments: Any) -> tuple[list[np.ndarray], dict[str, int]]:
    """The batches of one of four ranks through a cache, and the bytes that the store gave for it, by shard."""
    store = RemoteStore(uri)
    dataset = dataset_in(store, cache=ShardCache(cache))  # type: ignore[arg-type]
    loader = Loader(dataset, batch_size=4, rank=rank, world_size=4, order="sequential", fields=(), **arguments)
    batches = [batch["tokens"] for batch in loader]
    loader.close()
    return batches, {key: size for key, size in store.bytes.items() if key.startswith("shards")}


def test_each_of_two_hosts_fetches_its_own_ranks_half(long_rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.loader.cache.head.HEAD_BYTES", 4096)
    # a second request for what is slow would count twice
    monkeypatch.setattr("headrace.loader.cache.fetch.HEDGE_S_MIN", 600.0)
    everything = sum(path.stat().st_size for path in Path(long_rows).glob("shards/0/*.safetensors"))
    for host, ranks in enumerate(((0, 1), (2, 3))):
        fetched = 0
        for rank in ranks:
            batches, sizes = read(long_rows, tmp_path / str(host), rank, local_ranks=ranks)
            expected = Loader(long_rows, batch_size=4, rank=rank, world_size=4, order="sequential", fields=())
            for ours, theirs in zip(batches, expected, strict=True):
                assert np.array_equal(ours, theirs["tokens"])
            expected.close()
            assert len(batches) == 8
            fetched += sum(sizes.values())
        assert 0.5 <= fetched / everything < 0.55


def test_who_fetches_ahead_is_told_of_every_batch_before_it_is_made(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=2, rank=1, world_size=16, prefetch=8)
    told: list[int] = []
    loader_task = task_of(loader)
    for jobs in produce(loader_task, lambda batch: int(batch["positions"][0]), told.append):
        for job in jobs:
            for made in job.run():
                assert told[-1] == made[0].item
    assert told == sorted(told)
    assert max(np.diff(told)) <= 8 * 32


def task_of(loader: Loader) -> Any:
    """What the loader's thread would be given."""
    import headrace.loader.batch.producer as running

    caught: list[Any] = []

    def catch(task: Any, *_: object) -> Any:
        caught.append(task)
        return iter(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "produce", catch)
        assert list(loader) == []
    return caught[0]
