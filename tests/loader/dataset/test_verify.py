"""The check behind the reader: what was asked is checked, whoever closes the dataset meanwhile."""

import threading
from pathlib import Path

import pytest

from headrace.loader.cache import cached_files
from headrace.loader.cache.cached_files import file_checksum
from headrace.loader.dataset import verify
from headrace.loader.dataset.verify import Verifier
from headrace.store.contract.errors import ChecksumMismatch, StoreRefused
from headrace.store.open import open_store

PATIENCE_S = 120.0


class Shards:
    """A store with one shard whose bytes are not those of its checksum, too large to be checked at once."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verify, "FIRST_BYTES_MAX", 0)
        monkeypatch.setattr(cached_files, "CHUNK_BYTES", 10)
        (folder / "shard").write_bytes(bytes(100))
        self.checksum, _ = file_checksum(str(folder / "shard"))
        (folder / "shard").write_bytes(bytes(99) + b"\1")
        self.verifier = Verifier(open_store(folder.as_uri()))

    def ask(self) -> None:
        self.verifier.first(0, "shard", self.checksum)

    def is_found_out(self) -> bool:
        try:
            self.verifier.wait(PATIENCE_S)
        except ChecksumMismatch:
            return True
        return False


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shards:
    return Shards(tmp_path, monkeypatch)


def test_a_shard_asked_for_during_closing_is_checked_next_time(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = shards.verifier
    # It closes when the shard has just been queued.
    monkeypatch.setattr(verifier, "_start", verifier.close)
    shards.ask()
    monkeypatch.undo()
    monkeypatch.setattr(verify, "FIRST_BYTES_MAX", 0)
    shards.ask()
    assert shards.is_found_out()


def test_a_half_read_shard_is_read_again_after_closing(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, check = threading.Event(), threading.Event(), verify.check_shard

    def slow(*given: object) -> int:
        stopped = given[3]
        begun.set()
        assert go_on.wait(PATIENCE_S)
        assert callable(stopped)
        return 50 if stopped() else check(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(verify, "check_shard", slow)
    monkeypatch.setattr(verify, "CLOSE_S_MAX", 0.01)
    shards.ask()
    assert begun.wait(PATIENCE_S)
    shards.verifier.close()
    shards.ask()
    go_on.set()
    assert shards.is_found_out()


def test_a_store_that_refuses_a_check_is_told_and_not_waited_for(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise StoreRefused("it may not be read")

    monkeypatch.setattr(verify, "check_shard", refuse)
    shards.ask()
    with pytest.raises(StoreRefused, match="may not be read"):
        shards.verifier.wait(PATIENCE_S)


def test_a_check_that_breaks_off_is_told_and_not_waited_for(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(*_: object) -> int:
        raise MemoryError("no room for the buffer")

    monkeypatch.setattr(verify, "check_shard", break_off)
    shards.ask()
    with pytest.raises(MemoryError, match="no room"):
        shards.verifier.wait(PATIENCE_S)
