"""Compiled loops: how they are compiled, and where the machine code is kept.

A loop is compiled when it is first called and kept under the user's cache folder, in a folder named by the hash of
all the loops' sources: numba looks at the file of the outermost function alone, and would go on with the old code of
one that it calls. The version of Unicode is hashed with them, since tables are compiled in. Of the processes of a host
one compiles while the others wait for what it leaves in the folder. Where that cannot be written, each process compiles
for itself.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

import numba
import numpy as np
import xxhash

from headrace.store.files import own_cache, taken_alone

#: How long a process waits for another one that compiles; then it compiles too.
WAIT_SECONDS_MAX = 120.0

Loop = TypeVar("Loop", bound=Callable[..., Any])
#: Where a count begins that is handed to other loops: they would first be compiled for the literal 0, in vain.
ZERO: Any = np.int64(0)


@contextlib.contextmanager
def prepared(loops: str) -> Iterator[None]:
    """Around the first call of some loops: one process of this host at a time goes through, till one has compiled them.

    Those who come behind it find the machine code in the cache.
    """
    folder = _cache_folder()
    ready = pathlib.Path(folder, f"{loops}.ready")
    if not folder or ready.exists():
        yield
        return
    with taken_alone(pathlib.Path(folder), "compiling", WAIT_SECONDS_MAX):
        yield
        ready.touch()


def is_prepared(loops: str) -> bool:
    """Whether the machine code of some loops is in the cache."""
    folder = _cache_folder()
    return bool(folder) and pathlib.Path(folder, f"{loops}.ready").exists()


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
    digest = xxhash.xxh3_128(unicodedata.unidata_version.encode())
    here = pathlib.Path(__file__).parent
    folders = (here, *(here.parent / name for name in ("quality", "dedup", "decontamination")))
    for path in sorted(file for folder in folders for file in folder.rglob("*.py")):
        digest.update(path.read_bytes())
    # Machine code of another user's would run here.
    folder = own_cache("kernels", digest.hexdigest()[:16])
    return str(folder) if folder is not None and os.access(folder, os.W_OK) else ""
