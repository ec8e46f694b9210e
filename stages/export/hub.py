"""A version with text as a data set of the Hugging Face hub: the files of its card, in one commit.

A file's name is a hash of its bytes: one that the hub has is not sent again. Files that the version shows no more go in
the same commit, which names the one that it follows: of two pushes at once one is refused.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.stages.runtime import InputError
from headrace.store import ObjectMissing, StoreError, counted, open_input, stream
from headrace.store.datasets import CARD_FILES_MAX, CARD_KEY, Dataset, card_of, files_of, is_our_card
from headrace.store.remote import may_have_token, token_of
from headrace.store.s3.connection import kind_of

_PLACE = re.compile(r"hf://datasets/([\w.-]{1,96})/([\w.-]{1,96})(?:@([^/@?]{1,96}))?/?(?:\?endpoint=([^?&]+))?")
_PIECE_BYTES = 1 << 20
#: Bytes of one answer of the hub, seconds for its body, and for each wait for a piece of anything.
ANSWER_BYTES_MAX, ANSWER_S_MAX, SILENT_S_MAX = 32 << 20, 120.0, 120.0
#: How an answer says after how many seconds to ask again; the client waits a few of its own instead.
_WAITS = ("ratelimit", "retry-after")
ENDPOINT = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did; `commit` is empty where the hub held all of it."""

    repository: str
    commit: str
    sent: int
    standing: int
    deleted: int


def push(dataset: Dataset, place: str, *, replaces: bool = False) -> Pushed:
    """Push a version to `hf://datasets/OWNER/NAME[@REVISION]`, a repository that is made, private, where there is none.

    `replaces` takes the place of a README.md that a person wrote. Raises InputError, StoreError.
    """
    match = _PLACE.fullmatch(place)
    if match is None:
        raise InputError(f"{place!r} is no data set of the hub; write hf://datasets/OWNER/NAME, or NAME@REVISION")
    card, keys = card_of(dataset), [key for found in files_of(dataset).values() for key in found]
    if not 0 < len(keys) <= CARD_FILES_MAX:
        raise InputError(
            f"{dataset.uri} shows no file with text, or more than a card names: push what write_documents(...) or "
            "write_jsonl(...) wrote, or export by `headrace dataset export --format parquet`"
        )
    hub = _Hub(f"{match[1]}/{match[2]}", match[3] or "main", match[4] or os.environ.get("HF_ENDPOINT") or ENDPOINT)
    try:
        with hub.bounded():
            return _push(hub, dataset, card, keys, replaces=replaces)
    except (InputError, StoreError):
        raise
    except Exception as error:  # whatever the hub's client makes of any answer
        if isinstance(error.__cause__, StoreError):
            raise error.__cause__ from None
        said = str(error).partition("\n")[0]
        word = said if isinstance(error, hub.errors) else f"{type(error).__name__}: {said[:200]}"
        raise StoreError(f"{place}: the push was not committed: {word}; push again to go on") from error


def _push(hub: _Hub, dataset: Dataset, card: str, keys: list[str], *, replaces: bool) -> Pushed:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    parent, names = hub.standing()
    before = hub.card(parent) if CARD_KEY in names else b""
    if before and not is_our_card(before) and not replaces:
        raise InputError(
            f"{hub.repository} has a {CARD_KEY} that Headrace did not write: add --replace-card to replace it, or push "
            "to another repository"
        )
    folders = {key.partition("/")[0] for key in keys}
    gone = sorted(name for name in names if name.partition("/")[0] in folders and name not in set(keys))
    fresh = [key for key in keys if key not in names]
    if not fresh and not gone and before == card.encode():
        return Pushed(hub.repository, "", 0, len(keys), 0)
    sent: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="headrace-push-") as folder:
        for at, key in enumerate(fresh, 1):
            path = os.path.join(folder, f"{at} of {len(fresh)}")  # what a bar of progress is called
            with open(path, "wb") as file:
                file.writelines(_pieces(dataset, key))
            sent.append(CommitOperationAdd(path_in_repo=key, path_or_fileobj=path))
            hub.send(sent[-1])
            if sent[-1]._upload_mode == "lfs":
                os.unlink(path)
        sent.append(CommitOperationAdd(path_in_repo=CARD_KEY, path_or_fileobj=card.encode()))
        drops = [CommitOperationDelete(path_in_repo=name) for name in gone]
        commit = hub.commit([*sent, *drops], parent, f"Version {dataset.version}: {counted(len(keys), 'file')}")
    return Pushed(hub.repository, commit, len(fresh), len(keys) - len(fresh), len(gone))


def _pieces(dataset: Dataset, key: str) -> Iterator[Any]:
    """An object in pieces. Raises StoreError where it is gone, as by a retraction."""
    info = dataset.store.head(key)
    if info is None:
        raise ObjectMissing(key, dataset.uri)
    yield from stream(dataset.store, key, 0, info.size, _PIECE_BYTES)


class _Hub:
    """One repository at one revision, by the hub's own client."""

    def __init__(self, repository: str, revision: str, endpoint: str) -> None:
        try:
            from huggingface_hub import HfApi
            from huggingface_hub.errors import HfHubHTTPError
        except ImportError as error:
            raise InputError("a push needs the hub's client: pip install huggingface_hub") from error
        self.repository, self._revision = repository, revision
        self._endpoint = urllib.parse.unquote(endpoint).rstrip("/")
        # the client's own choice would be to tell it to any
        token = token_of(os.environ) if may_have_token(self._endpoint) else ""
        self._api: Any = HfApi(endpoint=self._endpoint, token=token or False)
        #: of connections too, by whichever client the hub's has
        self.errors: tuple[type[Exception], ...] = (HfHubHTTPError, *HfHubHTTPError.__bases__, RuntimeError, ValueError)

    @contextlib.contextmanager
    def bounded(self) -> Iterator[None]:
        """Have the hub's client, which believes a server's every word, wait, read and follow no more than it may."""
        from huggingface_hub import get_session, set_client_factory

        bars: Any = importlib.import_module("huggingface_hub.utils")
        hushed = not sys.stderr.isatty() and not bars.are_progress_bars_disabled()
        if hushed:
            bars.disable_progress_bars()
        make = importlib.import_module(get_session.__module__)._GLOBAL_CLIENT_FACTORY
        # each client: a connection that failed makes the library take another
        set_client_factory(lambda: self._bound(make()))
        try:
            yield
        finally:
            set_client_factory(make)
            if hushed:
                bars.enable_progress_bars()

    def _bound(self, client: Any) -> Any:
        home = urllib.parse.urlsplit(self._endpoint)

        def follow(request: Any) -> None:
            asked = urllib.parse.urlsplit(str(request.url))
            _check_address(home, asked)
            if (asked.scheme, asked.netloc) != (home.scheme, home.netloc):
                request.headers.pop("Authorization", None)
            # asked with none
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), SILENT_S_MAX)

        def read(response: Any) -> None:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise StoreError(f"{self._endpoint}: it packs an answer, which is not unpacked")
            for name in _WAITS:
                response.headers.pop(name, None)
            kind = importlib.import_module(type(client).__module__.partition(".")[0]).SyncByteStream
            response.stream = type("BoundedBody", (_BoundedBody, kind), {})(self._endpoint, response.stream)

        before = client.event_hooks
        client.event_hooks = {"request": [*before["request"], follow], "response": [read, *before["response"]]}
        client.headers["Accept-Encoding"] = "identity"
        return client

    def standing(self) -> tuple[str, set[str]]:
        """The newest commit, and the names of its files."""
        from huggingface_hub.errors import RepositoryNotFoundError

        named = {"repo_type": "dataset", "revision": self._revision}
        try:
            info = self._api.repo_info(self.repository, **named)
        except RepositoryNotFoundError:
            self._api.create_repo(self.repository, repo_type="dataset", private=True, exist_ok=True)
            info = self._api.repo_info(self.repository, **named)
        return str(info.sha), {str(item.rfilename) for item in info.siblings or ()}

    def card(self, commit: str) -> bytes:
        """The repository's README.md."""
        store = open_input(f"hf://datasets?endpoint={self._endpoint}")
        return store.get(f"{self.repository}@{commit}/{CARD_KEY}")

    def send(self, addition: Any) -> None:
        """Upload a large file; a small one goes with the commit."""
        self._api.preupload_lfs_files(
            self.repository, [addition], repo_type="dataset", revision=self._revision, free_memory=False
        )

    def commit(self, operations: list[Any], parent: str, message: str) -> str:
        """Commit behind `parent`; the new commit."""
        made = self._api.create_commit(
            self.repository, operations, commit_message=message, repo_type="dataset", revision=self._revision,
            parent_commit=parent,
        )  # fmt: skip
        return str(made.oid)


class _BoundedBody:
    """A body of so many bytes at most, within a deadline."""

    def __init__(self, endpoint: str, body: Any) -> None:
        self._endpoint, self._body = endpoint, body

    def __iter__(self) -> Iterator[bytes]:
        until, taken = time.monotonic() + ANSWER_S_MAX, 0
        for part in self._body:
            taken += len(part)
            if taken > ANSWER_BYTES_MAX or time.monotonic() > until:
                limit = f"{ANSWER_BYTES_MAX >> 20} MiB or {ANSWER_S_MAX:.0f} s"
                raise StoreError(f"{self._endpoint}: an answer takes more than {limit}; push to another repository")
            yield part

    def close(self) -> None:
        self._body.close()


def _check_address(home: urllib.parse.SplitResult, asked: urllib.parse.SplitResult) -> None:
    """Raise StoreError where a hub leads out of TLS, or from elsewhere to an address of this host's own."""
    host = asked.hostname or ""
    why = "has no TLS" if home.scheme == "https" and asked.scheme != "https" else ""
    if not why and host != home.hostname and _kinds_of(host) - _kinds_of(home.hostname or ""):
        why = "is this host's own"
    if why:
        raise StoreError(f"{home.geturl()}: it leads to {host[:200]!r}, which {why}")


def _kinds_of(host: str) -> set[str]:
    with contextlib.suppress(OSError, ValueError):  # which is the client's to find, or a proxy's
        return {kind_of(str(found[4][0])) for found in socket.getaddrinfo(host, None)} - {""}
    return set()
