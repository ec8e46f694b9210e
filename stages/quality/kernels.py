"""Compiled loops: how they are compiled, and where the machine code is kept.

A loop is compiled when it is first called and kept under the user's cache folder, in a folder named by the hash of
all the loops' sources: numba looks at the file of the outermost function alone, and would go on with the old code of
one that it calls. The version of Unicode is hashed with them, since tables are compiled in. Where the folder cannot be
written, each process compiles for itself.
"""

from __future__ import annotations

import os
import pathlib
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numba
import xxhash

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(function: Loop) -> Loop:
    """The function as machine code, compiled for the types that it is first called with."""
    folder = _cache_folder()
    config: Any = numba.config  # pyright: ignore[reportPrivateImportUsage]
    before = config.CACHE_DIR
    config.CACHE_DIR = folder
    try:
        # The GIL stays held: the loops of a process share their scratch. They allocate nothing, and without `_nrt`
        # no references to arrays are counted, which takes half of their time.
        options: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
        return numba.njit(cache=bool(folder), **options)(function)  # type: ignore[no-any-return]
    finally:
        config.CACHE_DIR = before


@cache
def _cache_folder() -> str:
    """The folder of this version's machine code; empty where none can be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    digest = xxhash.xxh3_128(unicodedata.unidata_version.encode())
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    folder = pathlib.Path(base, "headrace", "kernels", digest.hexdigest()[:16])
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return ""
    return str(folder) if os.access(folder, os.W_OK) else ""
