"""The file that holds the page's address with its key, for this user alone.

A page that is served again, after a restart, has the same key, and the same port where any was asked for: what a
browser shows goes on by itself.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from headrace.daemon import make_private, read_private, runtime_folder

_ADDRESS = re.compile(r"http://(127\.[0-9.]{5,11}|\[::1\]):([0-9]{1,5})/#([A-Za-z0-9_-]{43})\n?")
_BYTES_MAX = 256


@dataclass(frozen=True, slots=True)
class PageAddress:
    """Where a page is served, and what its viewers show."""

    host: str
    port: int
    key: str

    @property
    def url(self) -> str:
        """What a browser is given. What follows the # is never sent to a server."""
        return f"http://{self.host}:{self.port}/#{self.key}"


def page_address(file: Path | None, host: str, port: int) -> tuple[PageAddress, Path]:
    """The address that stands in the file, else a new one; and the file, by default one named after the port.

    Raises OSError where others may read or exchange the file.
    """
    if file is None:
        file = make_private(runtime_folder()) / f"page-{port or 'any'}.url"
    found = None
    if os.path.lexists(file):
        found = _ADDRESS.fullmatch(read_private(file, _BYTES_MAX).decode("latin-1"))
    if found is None:
        return PageAddress(host, port, secrets.token_urlsafe(32)), file
    return PageAddress(host, port or int(found[2]), found[3]), file


def write_address(file: Path, address: PageAddress) -> None:
    """Have the file hold this address. Raises OSError."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    # who may write to the folder may have made it before, and hold it open
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(f"{address.url}\n".encode())
    os.replace(draft, file)
