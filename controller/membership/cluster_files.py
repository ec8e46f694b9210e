"""The folder that `headrace cluster init` makes: what a controller needs to admit nodes.

cluster.json        the cluster's name and where its controllers are
authority.pem .key  who issues certificates; the key stays with the controllers
cluster.key         32 bytes that seal tickets and tokens
controller.pem .key, operator.pem .key
spent/              a file a slot of a token, named after it: the fingerprint of the key that spent it, and the name
expelled/           a file a member that was expelled, named by its role and name: the keys that were let in since
issued/             an empty file a person that has a certificate from this folder, named by role and name

`spent` and `expelled` are of controllers without a cluster's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from headrace.cluster import AUTHORITY, KEY_BYTES_MAX, PEOPLE, Credentials, Role, read_credentials, write_secret
from headrace.controller.core.cluster import OLD_KEY, SPENT, all_spent
from headrace.daemon import read_private
from headrace.store.files import disk
from headrace.store.ledger import TokenSpent, is_of_expelled

CONTROLLER = "controller"
OPERATOR = "operator"
ISSUED = "issued"
_SPENDING = threading.Lock()
CLUSTER_KEY_BYTES = 32


class ClusterFilesError(Exception):
    """The folder is not that of a cluster."""


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """What stands in the folder."""

    folder: Path
    name: str
    controllers: tuple[str, ...]
    key: bytes
    authority: Credentials
    controller: Credentials

    @staticmethod
    def read(folder: Path) -> ClusterFiles:
        """Read a cluster's folder. Raises ClusterFilesError that says what is missing."""
        try:
            described = json.loads((folder / "cluster.json").read_text(encoding="utf-8"))
            return ClusterFiles(
                folder,
                str(described["name"]),
                tuple(str(item) for item in described["controllers"]),
                read_private(folder / "cluster.key", KEY_BYTES_MAX),
                read_credentials(folder, AUTHORITY),
                read_credentials(folder, CONTROLLER),
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            advice = "make one with `headrace cluster init`"
            why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
            raise ClusterFilesError(f"{folder} is no cluster's folder ({why}): {advice}") from error

    async def spend(self, token: str, worker: str, key: str, further: tuple[str, ...] = ()) -> str:
        """Note durably, without a cluster's log, that a key spends a token; why it may not, or an empty string."""
        return await asyncio.to_thread(self._spend, (token, *further), worker, key)

    async def expel(self, member: str) -> None:
        """Note durably, without a cluster's log, that a member, as role/name, was expelled. Raises OSError."""
        await asyncio.to_thread(self._expel, member)

    def expelled(self) -> dict[str, list[str]]:
        """Members that were expelled, as role/name, and the keys that were let in under that name since."""
        folder = self.folder / "expelled"
        files = [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.exists() else []
        return {unquote(path.name): path.read_text(encoding="ascii").split() for path in files}

    async def members(self) -> frozenset[str]:
        """The members, as role/name, that this folder knows: by their certificates or tokens.

        A role alone stands for all of it, where the folder, or a part of it, does not tell.
        """
        return await asyncio.to_thread(self._members)

    def issued(self, member: str) -> None:
        """Note that a person, as role/name, has a certificate; a folder that takes no notes is none the worse."""
        with contextlib.suppress(OSError):
            _note(self._named(ISSUED, member))

    def _members(self) -> frozenset[str]:
        try:
            found = {unquote(name) for name in os.listdir(self.folder / ISSUED) if not name.startswith(".")}
        except OSError:
            found = {role.value for role in PEOPLE}  # a folder from before these were noted, or a part of one
        for path in (self.folder / "spent").glob("[!.]*"):
            try:
                item = _spent(path)
            except (OSError, ValueError):
                found.add(Role.WORKER.value)
            else:
                found |= {f"worker/{item.worker}"} if item is not None else set()
        return frozenset(found)

    def _expel(self, member: str) -> None:
        _note(self._expelled_at(member))

    def _expelled_at(self, member: str) -> Path:
        return self._named("expelled", member)

    def _named(self, kind: str, member: str) -> Path:
        return self.folder / kind / quote(member, safe="")

    def _spend(self, slots: tuple[str, ...], worker: str, key: str) -> str:
        folder = self.folder / "spent"
        disk.make_folder(folder, 0o700)
        # One at a time: a node that asks twice at once spends one slot.
        with _SPENDING:
            spent = [item for slot in slots if (item := _spent(folder / slot)) is not None]
            own = [item.token for item in spent if item.key == key]
            free = own or [slot for slot in slots if slot not in {item.token for item in spent}]
            return self._take(folder / free[0], worker, key) if free else all_spent(len(slots))

    def _take(self, path: Path, worker: str, key: str) -> str:
        expelled, member = self.expelled(), f"worker/{worker}"
        before = (item for item in map(_spent, path.parent.glob("[!.]*")) if item is not None)
        if member in expelled and is_of_expelled(expelled, before, worker, key):
            return OLD_KEY
        if member in expelled and key not in expelled[member]:
            # Before the token is spent: a key that spent one and is not here is one of before.
            write_secret(self._expelled_at(member), "\n".join([*expelled[member], key]).encode())
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{key[:8]}")
        write_secret(temporary, f"{key} {quote(worker, safe='')}".encode())
        try:
            disk.link(temporary, path)
        except FileExistsError:
            spent = _spent(path)
            return "" if spent is not None and spent.key == key else SPENT
        finally:
            temporary.unlink()
        return ""


def _note(path: Path) -> None:
    disk.make_folder(path.parent, 0o700)
    write_secret(path, b"")


def _spent(path: Path) -> TokenSpent | None:
    """Who spent a token, by its file; None if nobody did."""
    try:
        key, _, name = path.read_text(encoding="ascii").partition(" ")
    except FileNotFoundError:
        return None
    return TokenSpent(path.name, unquote(name), key)
