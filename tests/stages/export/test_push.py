"""Pushes to a hub: what its card names and no more, in one commit behind the one that was seen."""

from __future__ import annotations

import gzip
import importlib
import itertools
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from huggingface_hub.utils import are_progress_bars_disabled

from headrace.stages.export import hub as module
from headrace.stages.export.hub import push
from headrace.stages.runtime.errors import InputError
from headrace.store.contract.errors import StoreError
from headrace.store.datasets.card import MARK, card_of
from headrace.store.datasets.dataset import Dataset
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Change, Closed, VersionPublished
from headrace.store.ledger.core.fragments import StoredObject
from tests.kits.inputs.hub_server import PushHub, serving_pushes
from tests.kits.store.dataset_writer import Writer

#: Of the hub's client, which gives its own client a file as that one wants it no more.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

PLACE = "hf://datasets/o/n"
#: The first is a large one.
A, B = (f"shards/0/{name * 32}.documents.parquet" for name in "ab")
GONE = B.replace("b", "c")
TEXTS = {A: b"a" * 3000, B: b"b" * 10}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PushHub]:
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving_pushes(PushHub()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    writer = Writer(FileStore(tmp_path / "a set"))
    writer.entry(*(text(writer, key) for key in TEXTS), shown(writer, 1))
    return writer


def text(writer: Writer, key: str) -> Change:
    writer.store.create(key, [TEXTS[key]])
    made = writer.shard([1], first=2 * list(TEXTS).index(key))
    objects = (StoredObject("documents", key, f"xxh3-128:{'0' * 32}", len(TEXTS[key])),)
    return Closed("texts", made.version, made.epoch, made.ranges, objects, made.counts)


def shown(writer: Writer, version: int, shows: int = -1) -> Change:
    return VersionPublished(version, "test", shows, complete=False)


def opened(writer: Writer) -> Dataset:
    return Dataset.open(writer.store.uri)


def test_a_push_makes_a_private_repository_of_the_card_and_its_files(hub: PushHub, writer: Writer) -> None:
    writer.store.create("shards/0/stray.documents.parquet", [b"of no version"])
    done = push(opened(writer), PLACE)
    assert (done.sent, done.standing, done.deleted, done.commit) == (2, 0, 0, hub.head)
    assert hub.private
    assert hub.files == {**TEXTS, "README.md": card_of(opened(writer)).encode()}
    assert list(hub.objects.values()) == [TEXTS[A]]


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_of_progress_are_drawn_on_a_terminal_alone(
    hub: PushHub, writer: Writer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    push(opened(writer), PLACE)
    shown = capsys.readouterr().err
    assert ("1 of 2: " in shown) is terminal, "the first is a large one"
    assert bool(shown) is terminal
    assert not are_progress_bars_disabled()


def test_a_push_shows_its_token_to_the_own_hub_alone(
    hub: PushHub, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(opened(writer), PLACE)
    assert "Bearer hf_secret" in hub.shown
    hub.shown.clear()
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example")
    assert push(opened(writer), f"{PLACE}?endpoint={hub.url}").commit == ""
    assert hub.shown
    assert set(hub.shown) == {""}


def test_a_second_push_sends_nothing(hub: PushHub, writer: Writer) -> None:
    push(opened(writer), PLACE)
    assert push(opened(writer), f"{PLACE}@main").commit == ""
    assert hub.commits == 1


def test_what_a_version_shows_no_more_goes_and_other_files_stay(hub: PushHub, writer: Writer) -> None:
    push(opened(writer), PLACE)
    hub.files["LICENSE"] = b"free"
    hub.files[GONE] = b"taken down"
    del hub.files[B]
    done = push(opened(writer), PLACE)
    assert (done.sent, done.standing, done.deleted) == (1, 1, 1)
    assert hub.files.keys() == {*TEXTS, "README.md", "LICENSE"}


def test_a_persons_card_is_replaced_only_where_that_was_asked_for(hub: PushHub, writer: Writer) -> None:
    hub.exists, hub.files["README.md"] = True, b"# Mine"
    with pytest.raises(InputError, match="add --replace-card"):
        push(opened(writer), PLACE)
    assert hub.files == {"README.md": b"# Mine"}
    push(opened(writer), PLACE, replaces=True)
    assert MARK in hub.files["README.md"].decode()


def test_of_two_pushes_at_once_one_is_refused(hub: PushHub, writer: Writer) -> None:
    hub.exists = hub.has_rival = True
    with pytest.raises(StoreError, match=r"was not committed: .*412"):
        push(opened(writer), PLACE)
    assert hub.files == {}


def test_a_push_that_broke_off_goes_on_with_what_is_missing(hub: PushHub, writer: Writer) -> None:
    hub.exists, hub.fails = True, 1
    with pytest.raises(StoreError, match="push again to go on"):
        push(opened(writer), PLACE)
    assert (hub.files, hub.commits) == ({}, 0)
    assert push(opened(writer), PLACE).sent == 2


def test_a_hub_that_does_not_answer_is_named(writer: Writer, hub: PushHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        # nobody listens there
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(StoreError, match=r"hf://datasets/o/n: the push was not committed: .*refused"):
            push(opened(writer), PLACE)


@pytest.mark.parametrize(
    ("headers", "part"),
    [({}, b" " * 65536), ({"Content-Encoding": "gzip"}, gzip.compress(b" " * (1 << 20))), ({}, b" ")],
    ids=["endless", "packed", "trickled"],
)
def test_an_answer_of_the_hub_has_limits(
    hub: PushHub, writer: Writer, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], part: bytes
) -> None:
    monkeypatch.setattr(module, "ANSWER_S_MAX", 1.0 if part == b" " else 60.0)
    # which ends, so that who believes it reads to an end, and finds no JSON there
    hub.hostile = (200, headers, itertools.repeat(part, 2000 if len(part) > 1 else 1 << 22))
    with pytest.raises(StoreError, match=r"takes more than 32 MiB or 1 s|more than 32 MiB or 60 s|packs an answer"):
        push(opened(writer), PLACE)


def test_a_hub_that_is_silent_is_left(hub: PushHub, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S_MAX", 0.2)
    given_up = threading.Event()

    def silence() -> Iterator[bytes]:
        given_up.wait(30.0)
        yield b"{}"

    hub.hostile = (200, {}, silence())
    with pytest.raises(StoreError, match="timed out"):
        push(opened(writer), PLACE)
    given_up.set()


@pytest.mark.parametrize("answer", [b"[]", b"{}", b"null", b'{"id": 1, "sha": {}, "siblings": [3]}', b"\xff"])
def test_an_answer_that_is_no_repository_is_no_traceback(hub: PushHub, writer: Writer, answer: bytes) -> None:
    hub.hostile = (200, {}, [answer])
    with pytest.raises(StoreError, match="was not committed"):
        push(opened(writer), PLACE)


@pytest.mark.parametrize(
    ("home", "asked"),
    [
        ("https://hub.example", "http://hub.example/upload"),
        ("https://192.0.2.1", "https://127.0.0.1/upload"),
        ("https://192.0.2.1", "https://169.254.169.254/latest/api/token"),
        ("https://192.0.2.1", "https://[::ffff:127.0.0.1]/upload"),
        ("https://127.0.0.1", "https://169.254.169.254/latest/api/token"),
    ],
)
def test_a_hub_leads_no_upload_to_this_hosts_own_addresses(home: str, asked: str) -> None:
    with pytest.raises(StoreError, match="it leads to"):
        module._check_address(urlsplit(home), urlsplit(asked))


def test_an_upload_that_leads_elsewhere_is_not_begun(hub: PushHub, writer: Writer) -> None:
    hub.elsewhere = "http://169.254.169.254"
    with pytest.raises(StoreError, match=r"it leads to '169\.254\.169\.254', which is this host's own"):
        push(opened(writer), PLACE)
    assert hub.commits == 0


def test_a_token_goes_nowhere_that_a_hub_names(hub: PushHub, writer: Writer) -> None:
    with serving_pushes(PushHub()) as other:
        hub.verifies = f"{other.url}/verify"
        with pytest.raises(StoreError):
            push(opened(writer), PLACE)
        assert other.shown
        assert set(other.shown) == {""}
    assert "Bearer hf_secret" in hub.shown


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the hub's client would have slept."""
    found: list[float] = []
    library = importlib.import_module("huggingface_hub.utils._http")
    monkeypatch.setattr(library, "time", SimpleNamespace(sleep=found.append, time=time.time))
    return found


@pytest.mark.parametrize("said", [{"Retry-After": "999999999"}, {"RateLimit": '"api";r=0;t=999999999'}])
def test_a_hub_puts_no_push_off_for_years(
    hub: PushHub, writer: Writer, waits: list[float], said: dict[str, str]
) -> None:
    hub.throttles = said
    push(opened(writer), PLACE)
    assert len(waits) == 1
    assert waits[0] < 10


def test_limits_hold_behind_a_connection_that_failed(
    hub: PushHub, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's client takes a new one of its own then."""
    library = importlib.import_module("huggingface_hub.utils._http")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        hub.elsewhere = f"http://127.0.0.1:{bound.getsockname()[1]}"

        def answer() -> None:
            taken, _ = bound.accept()
            with taken:
                taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n")
                while taken.recv(65536):
                    pass

        def sleep(_: float) -> None:
            bound.listen()
            threading.Thread(target=answer, daemon=True).start()

        monkeypatch.setattr(library, "time", SimpleNamespace(sleep=sleep, time=time.time))
        with pytest.raises(StoreError, match="it packs an answer"):
            push(opened(writer), PLACE)
    assert hub.commits == 0


def test_an_object_that_went_meanwhile_is_no_commit(hub: PushHub, writer: Writer) -> None:
    hub.exists = True
    writer.store.delete(B)
    with pytest.raises(StoreError, match="b" * 32):
        push(opened(writer), PLACE)
    assert hub.commits == 0


@pytest.mark.parametrize("place", ["hf://o/n", "hf://datasets/o", "hf://datasets/o/n/folder", "s3://o/n", "o/n"])
def test_a_place_that_is_no_data_set_of_a_hub_is_refused(writer: Writer, place: str) -> None:
    with pytest.raises(InputError, match="is no data set of the hub"):
        push(opened(writer), place)


def test_a_dataset_without_text_is_refused(tmp_path: Path) -> None:
    writer = Writer(FileStore(tmp_path))
    writer.entry(writer.shard([2]))
    with pytest.raises(InputError, match="shows no file with text"):
        push(opened(writer), PLACE)
