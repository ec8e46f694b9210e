from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from headrace.store import open as opening
from headrace.store.files.store import FileStore


class Bucket(FileStore):
    """Files that can only be reached as objects."""

    @property
    def is_remote(self) -> bool:
        return True

    def open_local(self, key: str) -> pathlib.Path | None:
        return None


@pytest.fixture
def bucket(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder behind s3://bucket/."""
    folder = tmp_path / "buckets"
    (folder / "bucket").mkdir(parents=True)

    def open_bucket(uri: str) -> Bucket:
        return Bucket(folder / uri.removeprefix("s3://").partition("?")[0])

    monkeypatch.setitem(opening._OPENERS, "s3", open_bucket)
    return folder / "bucket"


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, bucket: pathlib.Path) -> tuple[pathlib.Path, Callable[[str], str]]:
    """A folder to write input to, and what names a path below it: by its path, and as objects of a store."""
    if request.param == "file":
        return bucket, lambda path: str(bucket / path)
    return bucket, lambda path: f"s3://bucket/{path}"
