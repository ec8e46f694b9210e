"""Places that fsspec knows: any file system is listed, read and judged alike; Azure and Google by their emulators."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from headrace.store.contract.errors import InvalidUri, ObjectMissing, StoreRefused, StoreUnavailable
from headrace.store.open import open_input
from headrace.store.remote import fsspec_store
from headrace.store.remote.fsspec_store import FsspecStore, version_of
from tests.store.remote.test_http_store import HASTY

fsspec = pytest.importorskip("fsspec")
FILES = {"data/b.jsonl": b"0123456789", "data/a/c.jsonl": b"c", "data/a.jsonl": b"a", "top": b"t"}


class Toy(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Files in memory, below a bucket, and faults on demand."""

    protocol = "toy"
    files: ClassVar[dict[str, bytes]] = {}
    faults: ClassVar[list[BaseException]] = []
    extra: ClassVar[bytes] = b""
    waits: ClassVar[threading.Event | None] = None

    def _fault(self) -> None:
        if Toy.waits is not None:
            Toy.waits.wait(60)
        if Toy.faults:
            raise Toy.faults.pop()

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self._fault()
        if path in Toy.files:
            data = Toy.files[path]
            return {"name": path, "size": len(data), "type": "file", "etag": f"{len(data)}-{data[:8]!r}"}
        if any(name.startswith(path.rstrip("/") + "/") for name in Toy.files):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        self._fault()
        top = path.rstrip("/") + "/"
        names = {top + name.removeprefix(top).partition("/")[0] for name in Toy.files if name.startswith(top)}
        if not names:
            raise FileNotFoundError(path)
        return [self.info(name) for name in names]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        self._fault()
        return Toy.files[path][start:end] + Toy.extra


fsspec.register_implementation("toy", Toy, clobber=True)


@pytest.fixture
def toy() -> Iterator[FsspecStore]:
    Toy.files = {f"bucket/{name}": data for name, data in FILES.items()}
    Toy.faults, Toy.extra, Toy.waits = [], b"", None
    yield FsspecStore("toy://bucket", HASTY)
    if Toy.waits is not None:
        Toy.waits.set()


def check_place(store: FsspecStore) -> None:
    """A place that holds FILES."""
    listed = list(store.list(""))
    assert [info.key for info in listed] == ["data/a.jsonl", "data/a/c.jsonl", "data/b.jsonl", "top"]
    assert [info.key for info in store.list("data/a")] == ["data/a.jsonl", "data/a/c.jsonl"]
    for info in listed:
        assert store.head(info.key) == info
        assert store.get_with_info(info.key, 0, 100) == (FILES[info.key], info)
    assert store.get_with_info("data/b.jsonl", 3, 4)[0] == b"3456"
    assert store.get_with_info("data/b.jsonl", 10, 4)[0] == b""
    assert (store.head("data"), store.head("none")) == (None, None)
    assert list(store.list("none/")) == []
    with pytest.raises(ObjectMissing):
        store.get_with_info("none", 0, 1)


def test_any_file_system_is_listed_and_read(toy: FsspecStore) -> None:
    check_place(toy)


def test_what_fails_for_a_while_is_asked_again(toy: FsspecStore) -> None:
    Toy.faults = [OSError("reset"), TimeoutError("late"), RuntimeError("odd")]
    assert toy.head("top") is not None


@pytest.mark.parametrize("error", [PermissionError("no"), ValueError("no key"), ImportError("lib")])
def test_what_will_not_do_is_refused(toy: FsspecStore, error: Exception) -> None:
    Toy.faults = [error]
    with pytest.raises(StoreRefused, match=f"{type(error).__name__}: .*correct the name, or the credentials"):
        toy.head("top")


def test_the_status_of_a_librarys_error_counts(toy: FsspecStore) -> None:
    refused = OSError("forbidden")
    vars(refused)["status_code"] = 403
    Toy.faults = [refused]
    with pytest.raises(StoreRefused):
        toy.head("top")


@pytest.mark.parametrize("said", ["²", "9" * 5000, "", "4o3", None, 4.5])
def test_a_status_that_is_no_number_counts_for_nothing(said: object) -> None:
    error = OSError("odd")
    vars(error)["status_code"] = said
    assert fsspec_store.status_of(error) == 0


def test_a_call_that_never_returns_is_left_behind(toy: FsspecStore) -> None:
    Toy.waits = threading.Event()
    toy._call_s_max = 0.01
    with pytest.raises((StoreUnavailable, StoreRefused), match=r"no answer within|never came back"):
        toy.head("top")
    toy._left = fsspec_store.LEFT_BEHIND_MAX
    with pytest.raises(StoreRefused, match="16 calls never came back"):
        toy.head("top")


def test_more_than_was_asked_for_is_refused(toy: FsspecStore) -> None:
    Toy.extra = b"more"
    with pytest.raises(StoreRefused, match=r"gives more of 'data/b.jsonl' than it was asked for"):
        toy.get_with_info("data/b.jsonl", 0, 4)


def test_an_object_that_changes_is_of_its_newest_version(toy: FsspecStore) -> None:
    before = toy.get_with_info("data/b.jsonl", 0, 4)[1]
    Toy.files["bucket/data/b.jsonl"] = b"abcdefgh"
    data, info = toy.get_with_info("data/b.jsonl", 0, 4)
    assert data == b"abcd"
    assert info.version != before.version
    assert info.size == 8


@pytest.mark.parametrize(
    ("found", "version"),
    [
        ({"generation": 7, "etag": "x"}, "7"),
        ({"ETag": '"x"'}, "x"),
        ({"mtime": 3.5}, "5-3.5"),
        ({"etag": ""}, "5"),
    ],
)
def test_the_best_that_is_said_is_the_version(found: dict[str, Any], version: str) -> None:
    assert version_of(found, 5) == version


def test_what_is_not_installed_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(InvalidUri, match=r"pip install 'headrace\[gcs\]'"):
        open_input("gs://bucket")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InvalidUri, match=r"pip install 'headrace\[azure\]'"):
        open_input("az://bucket")


@pytest.mark.parametrize("scheme", sorted(fsspec_store._NO_PLACES - {"http", "https", "hf", "s3"}))
def test_file_systems_of_this_host_are_no_places(scheme: str) -> None:
    with pytest.raises(InvalidUri):
        FsspecStore(f"{scheme}://x")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def started(port: int, *command: str) -> Iterator[None]:
    """A server of somebody else's, until it answers at its port."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
            threading.Event().wait(0.05)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_google_by_its_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    # else it asks by gRPC, which the emulator does not speak, what kind of bucket this is
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    command = "from gcp_storage_emulator.__main__ import main; import sys; sys.exit(main())"
    arguments = ("start", "--host=127.0.0.1", f"--port={port}", "--in-memory", "--default-bucket=corpus")
    with started(port, sys.executable, "-c", command, *arguments):
        system = fsspec.filesystem("gs", endpoint_url=url, token="anon", skip_instance_cache=True)
        for name, data in FILES.items():
            system.pipe_file(f"corpus/{name}", data)
        check_place(FsspecStore(f"gs://corpus?endpoint_url={url}&anon=true", HASTY))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_azure_by_azurite(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("adlfs")
    azurite = os.environ.get("HEADRACE_TEST_AZURITE") or shutil.which("azurite-blob")
    if azurite is None:
        pytest.skip("needs Azurite: npm install azurite, and its azurite-blob in HEADRACE_TEST_AZURITE")
    port = _free_port()
    # the account and the key of every Azurite
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    said = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key};"
    said += f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", said)
    command = (azurite, "--blobHost=127.0.0.1", f"--blobPort={port}", f"--location={tmp_path}", "--skipApiVersionCheck")
    with started(port, *command):
        system = fsspec.filesystem("az", connection_string=said, skip_instance_cache=True)
        system.mkdir("corpus")
        for name, data in FILES.items():
            system.pipe_file(f"corpus/{name}", data)
        check_place(FsspecStore("az://corpus", HASTY))


@pytest.mark.parametrize(
    "listed", [{"a": 1}, ["bucket/top"], 7, [None]], ids=["a mapping", "names", "a number", "none"]
)
def test_what_is_no_listing_is_refused(toy: FsspecStore, monkeypatch: pytest.MonkeyPatch, listed: Any) -> None:
    monkeypatch.setattr(Toy, "ls", lambda self, path, detail=True: listed)
    monkeypatch.setattr(Toy, "info", lambda self, path: [path])
    with pytest.raises(StoreRefused, match="gives no list of 'data/'"):
        list(toy.list("data/"))
    assert toy.head("top") is None
