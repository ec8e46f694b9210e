"""A node's certificate, key and authority as files of one folder: `<name>.pem`, `<name>.key`, `authority.pem`."""

import os
from pathlib import Path

from headrace.cluster.certificates import Credentials
from headrace.daemon import read_private

AUTHORITY = "authority"
#: Bytes of a private key in PEM; one of the curve in use has 241.
KEY_BYTES_MAX = 16 << 10


def read_credentials(folder: Path, name: str) -> Credentials:
    """Read a node's three files. Raises OSError for one that cannot be read, and for a key that is not private."""
    return Credentials(
        (folder / f"{name}.pem").read_bytes(),
        read_private(folder / f"{name}.key", KEY_BYTES_MAX),
        (folder / f"{AUTHORITY}.pem").read_bytes(),
    )


def write_credentials(folder: Path, name: str, credentials: Credentials) -> None:
    """Write a node's certificate and key; the key can be read by its owner alone."""
    write_secret(folder / f"{name}.key", credentials.key_pem)
    write_public(folder / f"{name}.pem", credentials.certificate_pem)


def write_secret(path: Path, data: bytes) -> None:
    """Write a file of mode 0600, whole or not at all."""
    _write(path, data, 0o600)


def write_public(path: Path, data: bytes) -> None:
    """Write a file of mode 0644, whole or not at all."""
    _write(path, data, 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    # who may write to the folder may have made it before, and hold it open
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make durable what names stand in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
