"""Drafts: objects that are written before their name is known."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.store.contract.errors import StoreStalled
from headrace.store.contract.objects import Buffer, Capabilities
from headrace.store.files import scratch
from headrace.store.files.scratch import begin_writing, open_draft
from headrace.store.files.store import FileStore


class _Plain:
    """A store that knows no drafts of its own, as a remote one does not."""

    capabilities = Capabilities()

    def __init__(self, root: Path) -> None:
        self._store = FileStore(root)
        self.uri = self._store.uri
        self.get = self._store.get

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        return self._store.create(key, parts)


KINDS = [FileStore, _Plain]


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_becomes_the_object_of_its_bytes(tmp_path: Path, kind: type[FileStore]) -> None:
    store = kind(tmp_path)
    with open_draft(store) as draft:
        draft.append(b"....body")
        draft.patch(b"head", 0)
        assert b"".join(bytes(piece) for piece in draft.pieces()) == b"headbody"
        assert draft.size == 8
        assert draft.create("shards/1/a")
    assert store.get("shards/1/a") == b"headbody"
    assert list((tmp_path / ".tmp").iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_never_overwrites(tmp_path: Path, kind: type[FileStore]) -> None:
    store = kind(tmp_path)
    answers: list[bool] = []
    for data in (b"first", b"second"):
        with open_draft(store) as draft:
            draft.append(data)
            answers.append(draft.create("k"))
    assert (answers, store.get("k")) == ([True, False], b"first")


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_that_is_given_up_leaves_nothing(tmp_path: Path, kind: type[FileStore]) -> None:
    store = kind(tmp_path)
    with open_draft(store) as draft:
        draft.append(b"half a shard")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_stalls_a_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[FileStore]) -> None:
    store = kind(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_draft(store) as draft:
        draft.append(b"x")
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(StoreStalled, match="No space left"):
                draft.append(b"y")
        draft.append(b"z")
        assert draft.create("k")
    assert store.get("k") == b"xz"


def test_a_draft_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, link = os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda descriptor: (done.append("sync"), sync(descriptor))[1])
    monkeypatch.setattr(os, "link", lambda *paths: (done.append("link"), link(*paths))[1])
    store = FileStore(tmp_path)
    store.create("shards/other", [b""])  # so that the folders are known to be durable
    done.clear()
    with open_draft(store) as draft:
        draft.append(b"x")
        draft.create("shards/k")
    assert done == ["sync", "link", "sync"]


def begun_of(store: FileStore | _Plain, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges with which the disk was asked to begin while a draft of some MiB was written."""
    begun: list[tuple[int, int]] = []

    def begin(descriptor: int, offset: int, size: int) -> None:
        begin_writing(descriptor, offset, size)
        begun.append((offset, size))

    monkeypatch.setattr(scratch, "begin_writing", begin)
    with open_draft(store) as draft:
        for _ in range(3):
            draft.append(bytes(scratch.AHEAD_BYTES // 2 + 1))
        assert draft.create("a/whole")
    assert len(store.get("a/whole")) == 3 * (scratch.AHEAD_BYTES // 2 + 1)
    return begun


def test_the_disk_begins_with_a_draft_before_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun_of(FileStore(tmp_path), monkeypatch) == [(0, scratch.AHEAD_BYTES + 2)]


def test_no_disk_is_asked_for_a_draft_that_is_only_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun_of(_Plain(tmp_path), monkeypatch) == []
