"""A damaged shard that is checked behind the reader: the next batch is refused, and so is the end of the pass."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.loader.dataset import verify
from headrace.loader.dataset.dataset import open_dataset
from headrace.loader.loader import Loader
from headrace.store.contract.errors import ChecksumMismatch


@pytest.fixture
def damaged(make_dataset: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a dataset of one shard, too large to be checked before its first row, of which a bit is wrong."""
    monkeypatch.setattr(verify, "FIRST_BYTES_MAX", 0)
    uri = make_dataset(sequences=(40,), seq_len=8)
    path = Path(uri) / open_dataset(uri).manifest.shards[0].tokens
    data = bytearray(path.read_bytes())
    # the last token of the last row: all of it is well formed
    data[-2] ^= 1
    path.write_bytes(data)
    return uri


@pytest.fixture
def may_check(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, the thread behind the reader has not looked at anything."""
    may, check = threading.Event(), verify.check_shard

    def gated(*arguments: Any) -> int:
        assert may.wait(60)
        return check(*arguments)

    monkeypatch.setattr(verify, "check_shard", gated)
    return may


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_batch_after_the_damage_was_found_is_refused(damaged: str, may_check: threading.Event, prefetch: int):
    loader = Loader(damaged, batch_size=2, prefetch=prefetch)
    batches = iter(loader)
    next(batches)
    next(batches)
    may_check.set()
    deadline = time.monotonic() + 60
    while loader.dataset.verifier.error is None:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    with pytest.raises(ChecksumMismatch):
        next(batches)
    with pytest.raises(ChecksumMismatch):
        loader.wait_verified()
    # nothing of it was received
    assert loader.step == 2


def test_the_end_of_a_pass_that_was_received_whole_is_refused(damaged: str, may_check: threading.Event):
    loader = Loader(damaged, batch_size=40)
    batches = iter(loader)
    assert np.array_equal(np.sort(next(batches)["positions"]), np.arange(40))
    may_check.set()
    with pytest.raises(ChecksumMismatch):
        next(batches)
    assert loader.pass_ == 0
