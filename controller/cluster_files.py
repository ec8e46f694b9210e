"""The folder that `headrace cluster init` makes: what a controller needs to admit nodes.

cluster.json        the cluster's name and where its controllers are
authority.pem .key  who issues certificates; the key stays with the controllers
cluster.key         32 bytes that seal tickets and tokens
controller.pem .key, operator.pem .key
spent/              a file a token, named by its identifier, holding the fingerprint of the key that spent it
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from headrace.transport.certificates import Credentials
from headrace.transport.credential_files import AUTHORITY, read_credentials

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
                (folder / "cluster.key").read_bytes(),
                read_credentials(folder, AUTHORITY),
                read_credentials(folder, CONTROLLER),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            advice = "make one with `headrace cluster init`"
            raise ClusterFilesError(f"{folder} is no cluster's folder ({error}): {advice}") from error

    def spend(self, identifier: bytes, key_fingerprint: str) -> str:
        """Note durably that a key spends a token; the fingerprint that had spent it, which is the same or another's."""
        path = self.folder / "spent" / identifier.hex()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(key_fingerprint, encoding="ascii")
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.link(temporary, path)
        except FileExistsError:
            return path.read_text(encoding="ascii")
        finally:
            os.close(descriptor)
            temporary.unlink()
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return key_fingerprint
