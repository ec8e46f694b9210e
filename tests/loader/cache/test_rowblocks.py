"""Large local shards in worker processes: each row's own blocks are checked before it is given, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.loader.batch.compiled import KERNELS
from headrace.loader.cache.head import parse_blocks
from headrace.loader.cache.rowblocks import Checking
from headrace.loader.dataset import dataset as dataset_module, verify
from headrace.loader.dataset.dataset import TokenDataset, open_dataset
from headrace.loader.loader import Loader
from headrace.store.contract.errors import ChecksumMismatch, FormatError
from headrace.store.shards.core.blocks import BlockTable
from tests.kits.loader.threads import watch_threads

TIMEOUT_S = 300
ROWS, SEQ_LEN = 500, 1000


@pytest.fixture
def torch_loader() -> Any:
    """The class, where torch is."""
    pytest.importorskip("torch")
    from headrace.loader.torch import TorchLoader

    return TorchLoader


@pytest.fixture
def large(make_dataset: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes a dataset of one shard of sixteen blocks, which counts as large."""
    monkeypatch.setattr(verify, "FIRST_BYTES_MAX", 0)
    monkeypatch.setattr(dataset_module, "FIRST_BYTES_MAX", 0)
    return lambda **arguments: make_dataset(sequences=(ROWS,), seq_len=SEQ_LEN, **arguments)


def path_of(uri: str) -> Path:
    (path,) = Path(uri).glob("shards/0/*.safetensors")
    return path


def table_of(uri: str) -> BlockTable:
    data = path_of(uri).read_bytes()
    table = parse_blocks(data[: 8 + int.from_bytes(data[:8], "little")])
    assert table is not None
    return table


def damage(uri: str, at: int) -> None:
    data = bytearray(path_of(uri).read_bytes())
    data[at] ^= 0xFF
    path_of(uri).write_bytes(data)


def rows_in(dataset: TokenDataset, block: int) -> set[int]:
    checking = dataset.shard(0).arriving
    assert isinstance(checking, Checking)
    first, end = checking._rows.bounds(np.arange(ROWS))
    return set(np.flatnonzero((first <= block) & (block < end)).tolist())


def test_rows_come_but_for_those_of_a_damaged_block(large: Callable[..., str]):
    verifying = watch_threads("headrace verify")
    uri = large()
    expected = open_dataset(uri, verify=False).shard(0).tokens.copy()
    block = 9
    damage(uri, table_of(uri).span(block, block + 1)[0] + 77)
    dataset = open_dataset(uri).replica()
    bad = rows_in(dataset, block)
    assert 1 < len(bad) < ROWS / 4
    for row in range(ROWS):
        if row in bad:
            with pytest.raises(ChecksumMismatch, match=f"block {block} in its header"):
                dataset.rows(0, np.array([row]))
        else:
            assert np.array_equal(dataset.rows(0, np.array([row]))[0], expected[row])
    assert dataset.verified_shards == 0
    assert not verifying()


def test_a_row_has_its_own_blocks_checked_and_no_others(large: Callable[..., str]):
    uri = large()
    table = table_of(uri)
    dataset = open_dataset(uri).replica()
    checking = dataset.shard(0).arriving
    assert isinstance(checking, Checking)
    beside = dataset.verified_bytes
    before = checking._open.copy()
    dataset.rows(0, np.array([ROWS - 1]))
    (checked,) = np.flatnonzero(before != checking._open)
    assert checked == table.count - 1
    assert dataset.verified_bytes - beside == table.span(table.count - 1, table.count)[1]


@pytest.mark.parametrize("compiled", [False, True])
def test_batches_are_the_same_and_each_byte_is_checked_once(
    large: Callable[..., str], monkeypatch: pytest.MonkeyPatch, compiled: bool
):
    assert KERNELS.wait(300), KERNELS.error
    if not compiled:
        monkeypatch.setattr(KERNELS, "_module", None)
    uri = large()
    expected = [batch["tokens"].copy() for batch in Loader(uri, batch_size=4, seed=5)]
    loader = Loader(uri, batch_size=4, seed=5).replica()
    begin = loader.state_dict()
    for _ in range(2):
        for batch, tokens in zip(loader, expected, strict=True):
            assert np.array_equal(batch["tokens"], tokens)
        loader.load_state_dict(begin)
    table = table_of(uri)
    assert loader.dataset.verified_bytes == table.size - table.body
    assert loader.dataset.verified_shards == 1
    assert loader.dataset.shard(0).arriving is None
    loader.close()


def test_damage_beside_the_rows_is_found_when_the_shard_is_opened(large: Callable[..., str]):
    uri = large()
    table = table_of(uri)
    damage(uri, table.body + 1)
    with pytest.raises(ChecksumMismatch, match="block 0 in its header"):
        open_dataset(uri).replica().shard(0)


def test_a_damaged_header_is_named(large: Callable[..., str]):
    uri = large()
    data = path_of(uri).read_bytes()
    at = data.index(b"format_version") + len('format_version":"')
    path_of(uri).write_bytes(data[:at] + b"7" + data[at + 1 :])
    with pytest.raises(FormatError, match=r"the header is damaged.*headrace dataset verify"):
        open_dataset(uri).replica().shard(0)


def test_a_worker_gives_what_lies_before_the_damage_without_reading_it_all(large: Callable[..., str], torch_loader):
    uri = large()
    block = 12
    damage(uri, table_of(uri).span(block, block + 1)[0])
    bad = rows_in(open_dataset(uri).replica(), block)
    loader = torch_loader(Loader(uri, batch_size=1, order="sequential"))
    batches = iter(loader.over_workers(2, timeout=TIMEOUT_S))
    assert [int(next(batches)["positions"][0]) for _ in range(min(bad))] == list(range(min(bad)))
    with pytest.raises(RuntimeError, match="Caught ChecksumMismatch in DataLoader worker"):
        next(batches)


def test_shards_without_blocks_are_read_through_before_a_worker_gives(large: Callable[..., str], torch_loader):
    uri = large(blocks=False)
    damage(uri, path_of(uri).stat().st_size - 1)
    loader = torch_loader(Loader(uri, batch_size=1, order="sequential"))
    with pytest.raises(RuntimeError, match="Caught ChecksumMismatch in DataLoader worker"):
        next(iter(loader.over_workers(2, timeout=TIMEOUT_S)))
