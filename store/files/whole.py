"""A file that is there whole or not at all, in a folder of this user."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from headrace.store.files import disk


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A draft to write; behind the block it is durable and has the name, in the place of whatever had it.

    Where the block raises, nothing is left of the draft. Raises OSError.
    """
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
    try:
        with open(descriptor, "w+b") as file:
            yield file
            file.flush()
            disk.sync(file.fileno())
        disk.rename(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
