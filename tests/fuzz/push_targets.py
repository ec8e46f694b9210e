"""A target of `headrace.stages.export.hub`: what a hub answers to a push, request by request."""

from __future__ import annotations

import json
import os
import socket
import urllib.parse
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx2
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.utils import _http, disable_progress_bars, enable_progress_bars

from headrace.stages.export import hub
from headrace.stages.runtime.errors import InputError
from headrace.store.contract.errors import ObjectMissing, StoreError
from headrace.store.datasets.dataset import Dataset
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Closed, VersionPublished
from headrace.store.ledger.core.fragments import StoredObject
from tests.fuzz.fuzz_files import folder_of_process
from tests.fuzz.harness import Target
from tests.fuzz.mutations import within_json
from tests.kits.inputs.hub_server import PushHub
from tests.kits.store.dataset_writer import Writer

HOME, TOKEN = "https://hub.example", "hf_secret"
PLACE = "hf://datasets/o/n"
#: The first is a large one.
TEXTS = {f"shards/0/{name * 32}.documents.parquet": data for name, data in (("a", b"a" * 3000), ("b", b"b" * 10))}
#: Requests of one push; a hub that wants more is left.
REQUESTS_MAX = 60
#: What the hub's client asks its makers for, whichever hub it is for.
ONCE_A_PROCESS = "/api/agent-harnesses"


def _dataset() -> Dataset:
    writer = Writer(FileStore(folder_of_process() / "pushed"))
    for first, (key, data) in enumerate(TEXTS.items()):
        writer.store.create(key, [data])
        made = writer.shard([1], first=2 * first)
        stored = (StoredObject("documents", key, f"xxh3-128:{'0' * 32}", len(data)),)
        writer.entry(Closed("texts", made.version, made.epoch, made.ranges, stored, made.counts))
    writer.entry(VersionPublished(1, "test"))
    return Dataset.open(writer.store.uri)


class _Hub:
    """Answers in their order, and what each request showed; behind the last one connections break."""

    def __init__(self, answers: Iterator[Any]) -> None:
        self._answers, self._asked = answers, 0

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        """What this request is told."""
        if request.url.path == ONCE_A_PROCESS:
            return httpx2.Response(404)
        return self._told(request)

    def _told(self, request: httpx2.Request) -> httpx2.Response:
        self._asked += 1
        url = urllib.parse.urlsplit(str(request.url))
        assert url.scheme == "https", url
        assert _address(url.hostname or "") == PUBLIC, url
        assert TOKEN not in str(request.headers) or url.netloc == "hub.example", url
        request.read()
        found = next(self._answers, None)
        match found:
            case [int(status), dict(headers), body] if 200 <= status < 600 and self._asked <= REQUESTS_MAX:
                data = body.encode("utf-8", "replace") if isinstance(body, str) else json.dumps(body).encode()
                plain = {name: str(value) for name, value in headers.items() if _is_header(name, str(value))}
                return httpx2.Response(status, headers=plain, content=data)
            case _:
                raise httpx2.ReadError("the connection broke", request=request)

    def get(self, key: str) -> bytes:
        """A file, as another reader of the hub has it."""
        match next(self._answers, None):
            case [200, _, str(body)]:
                return body.encode("utf-8", "replace")
            case _:
                raise ObjectMissing(key, HOME)


#: Where the names of a hub lead that are not of this host.
PUBLIC = "192.0.2.1"


def _address(host: str) -> str:
    return "127.0.0.1" if host in ("localhost", "127.0.0.1", "own.example") else PUBLIC


def _is_header(name: str, value: str) -> bool:
    return name.isascii() and name.replace("-", "a").isalnum() and value.isascii() and value.isprintable()


@contextmanager
def _surroundings(told: _Hub) -> Iterator[None]:
    """A hub's client that meets nobody else, and waits for nothing."""
    named = SimpleNamespace(getaddrinfo=lambda host, _: [(0, 0, 0, "", (_address(host), 0))])
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {"HF_ENDPOINT": HOME, "HF_TOKEN": TOKEN}))
        stack.enter_context(patch.object(constants, "HF_HUB_DISABLE_XET", True))
        stack.enter_context(patch.object(constants, "HF_HUB_OFFLINE", False))
        stack.enter_context(patch.object(hub, "socket", SimpleNamespace(**vars(socket) | vars(named))))
        stack.enter_context(patch.object(hub, "open_input", lambda _: told))
        disable_progress_bars()
        stack.callback(enable_progress_bars)
        stack.enter_context(patch.object(_http, "time", SimpleNamespace(sleep=lambda _: None)))
        stack.enter_context(warnings.catch_warnings())
        # the library gives its own client a file as that one wants it no more
        warnings.simplefilter("ignore", DeprecationWarning)
        client = httpx2.Client
        made = _http._GLOBAL_CLIENT_FACTORY
        huggingface_hub.set_client_factory(
            lambda: client(transport=httpx2.MockTransport(told.answer), follow_redirects=True)
        )
        stack.callback(huggingface_hub.set_client_factory, made)
        yield


DATASET = _dataset()


def run_hub_push(data: bytes) -> object | None:
    """A push is done, or refused with words; the token is shown to its hub alone, and nothing of this host is asked."""
    try:
        answers = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answers, list):
        return None
    with _surroundings(_Hub(iter(answers))):
        try:
            done = hub.push(DATASET, PLACE)
        except (InputError, StoreError):
            return None
    assert done.sent + done.standing == len(TEXTS)
    return repr(done)


def push_seeds() -> Iterable[bytes]:
    """What our own hub answers to a first push, to one of what it holds already, and to one that takes files away."""
    for files in ({}, dict(TEXTS), {"shards/0/" + "c" * 32 + ".documents.parquet": b"c"}):
        own = PushHub(files=dict(files), exists=bool(files), url=HOME)
        said: list[Any] = []
        with _surroundings(_Recorder(own, said)):
            hub.push(DATASET, PLACE)
        yield json.dumps(said).encode()


class _Recorder(_Hub):
    """Our own hub, whose answers are kept."""

    def __init__(self, own: PushHub, said: list[Any]) -> None:
        super().__init__(iter(()))
        self._own, self._said = own, said

    def _told(self, request: httpx2.Request) -> httpx2.Response:
        path, headers, body = request.url.path, dict[str, str](), request.read()
        if request.method == "GET":
            status, answer, headers = self._own.get(path)
        elif request.method == "POST":
            status, answer = self._own.post(path, body)
        else:
            status, answer = self._own.put(path, body), {}
        self._said.append([status, headers, answer])
        return httpx2.Response(status, headers=headers, json=answer)


TARGETS = [
    Target(
        "hub_push",
        ("headrace.stages.export.hub",),
        run_hub_push,
        push_seeds,
        mutate=within_json,
        words=(
            b'"lfs"',
            b'"regular"',
            b'"uploadMode"',
            b'"chunk_size"',
            b"https://own.example/",
            b'"Location"',
            b"302",
        ),
        bytes_max=8192,
    )
]
