"""A version with text as a data set of the Hugging Face hub: the files of its card, in one commit.

A file's name is a hash of its bytes: one that the hub has is not sent again. Files that the version shows no more go in
the same commit, which names the one that it follows: of two pushes at once one is refused.
"""

from __future__ import annotations

import os
import re
import tempfile
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.stages.runtime import InputError
from headrace.store import ObjectMissing, StoreError, counted, open_input, stream
from headrace.store.datasets import CARD_FILES_MAX, CARD_KEY, Dataset, card_of, files_of, is_our_card
from headrace.store.remote import may_have_token, token_of

_PLACE = re.compile(r"hf://datasets/([\w.-]{1,96})/([\w.-]{1,96})(?:@([^/@?]{1,96}))?/?(?:\?endpoint=([^?&]+))?")
_PIECE_BYTES = 1 << 20
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
        return _push(hub, dataset, card, keys, replaces=replaces)
    except hub.errors as error:
        said = str(error).partition("\n")[0]
        raise StoreError(f"{place}: the push was not committed: {said}; push again to go on") from error


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
        for at, key in enumerate(fresh):
            path = os.path.join(folder, str(at))
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
