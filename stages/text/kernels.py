"""Compiled loops: how they are compiled, and where the machine code is kept.

A loop is compiled when it is first called and kept under the user's cache folder, in a folder named by the hash of
all the loops' sources: numba looks at the file of the outermost function alone, and would go on with the old code of
one that it calls. The version of Unicode is hashed with them, since tables are compiled in. Of the processes of a host
one compiles some loops while others wait for what it leaves in the folder. Where that cannot be written, each compiles
for itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import Any, TypeVar, cast

import xxhash

from headrace.store.files import CACHE_ADVICE, own_cache, taken_alone

#: How long a process waits for another one that compiles; then it compiles too.
WAIT_SECONDS_MAX = 120.0
#: How long it waits for another one that adds to the cache.
SAVE_SECONDS_MAX = 10.0

logger = logging.getLogger("headrace.stages")

Loop = TypeVar("Loop", bound=Callable[..., Any])


@contextlib.contextmanager
def prepared(loops: str) -> Iterator[None]:
    """Around the first call of some loops: one process of this host at a time goes through, till one has compiled them.

    Those who come behind it find the machine code in the cache. Several loops are compiled at once, each by one.
    """
    folder = _cache_folder()
    ready = pathlib.Path(folder, f"{loops}.ready")
    if not folder or ready.exists():
        yield
        return
    with taken_alone(pathlib.Path(folder), f"{loops}.compiling", WAIT_SECONDS_MAX):
        if not ready.exists():
            logger.info("compiling the loops of %s, once on this machine", loops)
        yield
        ready.touch()


def is_prepared(loops: str) -> bool:
    """Whether the machine code of some loops is in the cache."""
    folder = _cache_folder()
    return bool(folder) and pathlib.Path(folder, f"{loops}.ready").exists()


def is_kept() -> bool:
    """Whether machine code can be kept at all."""
    return bool(_cache_folder())


def compiled(function: Loop) -> Loop:
    """The function as machine code, compiled for the types that it is first called with."""
    return cast("Loop", _Lazy(function))


class _Lazy:
    """A loop that is made ready when it is called, or when one that calls it is compiled.

    Of those that a stage imports most are called by others alone, and where the machine code of these is kept, nobody
    asks for them.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __call__(self, *arguments: Any) -> Any:
        return self._dispatcher(*arguments)

    @property
    def _numba_type_(self) -> Any:
        """What numba takes this for in a function that it compiles."""
        return self._dispatcher._numba_type_

    @cached_property
    def _dispatcher(self) -> Any:
        return _dispatcher_of(self._function)


def _dispatcher_of(function: Callable[..., Any]) -> Any:
    # Which loops are prepared is asked where nothing else needs it, and it takes 0.2 s to import.
    import numba
    from numba.core.caching import FunctionCache

    class Kept(FunctionCache):
        """Machine code that is there is taken without what only a compiler needs.

        One process at a time adds to a function's index: of two, the later would name the code of the other.
        """

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            # Numba's own first makes ready all that it can compile, half a second; a compilation does so itself.
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]

        def save_overload(self, sig: Any, data: Any) -> None:
            with taken_alone(pathlib.Path(folder), "saving", SAVE_SECONDS_MAX):
                super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    folder = _cache_folder()
    # The GIL stays held: the loops of a process share their scratch. They allocate nothing, and without `_nrt`
    # no references to arrays are counted, which takes half of their time.
    # Nobody calls them from C: what would let it is a fifth of the time that compiling takes.
    options: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
    dispatcher: Any = numba.njit(**options)(function)
    # What other packages add to numba is no part of our loops, and awkward's takes 0.4 s to import.
    dispatcher._compilation_chain_init_hook = _nothing
    if folder:
        config: Any = numba.config  # pyright: ignore[reportPrivateImportUsage]
        before, config.CACHE_DIR = config.CACHE_DIR, folder
        try:
            dispatcher._cache = Kept(function)  # type: ignore[no-untyped-call]
        finally:
            config.CACHE_DIR = before
    return dispatcher


def _nothing() -> None:
    pass


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
    if folder is not None and os.access(folder, os.W_OK):
        return str(folder)
    logger.warning("machine code cannot be kept, each process compiles for itself: %s", CACHE_ADVICE)
    return ""
