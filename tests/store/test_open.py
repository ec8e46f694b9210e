"""A store, or a folder of this host, from what a person writes."""

from pathlib import Path

import pytest

from headrace.store import InvalidUri
from headrace.store.files import FileStore
from headrace.store.open import folder_of, open_input, open_store


@pytest.mark.parametrize("written", ["{}", "file://{}"])
def test_a_folder_has_a_path_or_a_uri(tmp_path: Path, written: str) -> None:
    place = tmp_path / "a folder"
    uri = written.format(str(place).replace(" ", "%20") if "://" in written else place)
    assert folder_of(uri) == str(place)
    for opened in (open_store(uri), open_input(uri)):
        assert isinstance(opened, FileStore)


def test_a_path_may_begin_at_home_or_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert folder_of("~/x") == folder_of("x") == folder_of("file://./x") == str(tmp_path / "x")


@pytest.mark.parametrize("written", ["", "a\0b", "file:///a%00b", "s3://bucket/x", "https://host/x", "file://host/x"])
def test_what_is_no_folder_of_this_host_is_refused(written: str) -> None:
    with pytest.raises(InvalidUri, match=r"give a path or file:///path|write file:///absolute/path"):
        folder_of(written)


@pytest.mark.parametrize("written", ["", "a\0b", "ftp://host/x", "file://host/x"])
def test_what_is_no_store_is_refused(written: str) -> None:
    with pytest.raises(InvalidUri):
        open_store(written)
