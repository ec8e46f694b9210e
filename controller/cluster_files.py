"""The folder that `headrace cluster init` makes: what a controller needs to admit nodes.

cluster.json        the cluster's name and where its controllers are
authority.pem .key  who issues certificates; the key stays with the controllers
cluster.key         32 bytes that seal tickets and tokens
controller.pem .key, operator.pem .key
spent/              a file a token, named by its identifier, holding the fingerprint of the key that spent it
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path

from headrace.controller.core.tokens import SPENT
from headrace.store import disk
from headrace.transport.certificates import Credentials
from headrace.transport.credential_files import AUTHORITY, KEY_BYTES_MAX, read_credentials, write_secret
from headrace.transport.private_file import read_private

CONTROLLER = "controller"
OPERATOR = "operator"
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
        except (OSError, ValueError, KeyError, TypeError) as error:
            advice = "make one with `headrace cluster init`"
            why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
            raise ClusterFilesError(f"{folder} is no cluster's folder ({why}): {advice}") from error

    async def spend(self, token: str, _worker: str, key: str) -> str:
        """Note durably, without a cluster's log, that a key spends a token; why it may not, or an empty string."""
        return await asyncio.to_thread(self._spend, token, key)

    def _spend(self, token: str, key: str) -> str:
        path = self.folder / "spent" / token
        disk.make_folder(path.parent, 0o700)
        temporary = path.with_name(f".{token}.{os.getpid()}.{key[:8]}")
        write_secret(temporary, key.encode())
        try:
            disk.link(temporary, path)
        except FileExistsError:
            return "" if path.read_text(encoding="ascii") == key else SPENT
        finally:
            temporary.unlink()
        return ""
