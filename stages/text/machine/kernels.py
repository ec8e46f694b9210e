"""Compiled loops: how they are compiled, and where the machine code is kept.

A wheel for a platform brings the machine code (`headrace.stages.text.machine.native`). Elsewhere a loop is compiled
when it is first called and kept under the user's cache folder, in a folder named by the hash of all the loops'
sources: numba looks at the file of the outermost function alone, and would go on with the old code of
one that it calls. The version of Unicode is hashed with them, since tables are compiled in. Of the processes of a host
one compiles some loops while others wait for what it leaves in the folder. Where that cannot be written, each compiles
for itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import pathlib
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import Any, TypeVar, cast

from headrace.stages.text.machine import native
from headrace.stages.text.machine.sources import digest
from headrace.store.files import CACHE_ADVICE, own_cache, taken_alone

#: How long a process waits for another one that compiles; then it compiles too.
WAIT_SECONDS_MAX = 120.0
#: Of an installation without machine code for this host.
NEEDS_COMPILER = "the filters are not compiled for this processor and this Python"
COMPILER_ADVICE = "pip install 'headrace[numba]'"

logger = logging.getLogger("headrace.stages")

Loop = TypeVar("Loop", bound=Callable[..., Any])


@contextlib.contextmanager
def prepared(loops: str) -> Iterator[None]:
    """Around the first call of some loops: one process of this host at a time goes through, till one has compiled them.

    Those who come behind it find the machine code in the cache. Several loops are compiled at once, each by one.
    """
    if native.library() is not None:
        yield
        return
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
    """Whether the machine code of some loops came with the installation, or is in the cache."""
    if native.library() is not None:
        return True
    folder = _cache_folder()
    return bool(folder) and pathlib.Path(folder, f"{loops}.ready").exists()


def is_kept() -> bool:
    """Whether machine code can be kept at all."""
    return bool(_cache_folder())


def can_compile() -> bool:
    """Whether loops that are not there can be compiled."""
    return importlib.util.find_spec("numba") is not None


def compiled(function: Loop) -> Loop:
    """The function as machine code, compiled for the types that it is first called with; other loops call it."""
    return cast("Loop", _Lazy(function))


def entry(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """A loop that Python calls, with what it takes and gives: see `headrace.stages.text.machine.native`."""
    return lambda function: CalledLoop(function, signature)


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

    def compile_part(self, args: tuple[Any, ...]) -> None:
        """Compile it for arguments like these, as a part of those that call it."""
        from headrace.stages.text.machine import parts

        if isinstance(self._dispatcher, parts.Loop):
            self._dispatcher.compile_part(args)

    @property
    def _numba_type_(self) -> Any:
        """What numba takes this for in a function that it compiles."""
        return self._dispatcher._numba_type_

    @cached_property
    def _dispatcher(self) -> Any:
        return _dispatcher_of(self._function)


class CalledLoop(_Lazy):
    """A loop that Python calls: the machine code that came with the installation, or else compiled like others."""

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        super().__init__(function)
        self.function, self.module, self.signature = function, function.__module__, signature

    def __call__(self, *arguments: Any) -> Any:
        """What the loop gives for these."""
        return self._call(*arguments)

    @cached_property
    def _call(self) -> Callable[..., Any]:
        loops = native.library()
        found = None if loops is None else native.bind(loops, self.module, self.__name__, self.signature)
        return found or self._dispatcher


def _dispatcher_of(function: Callable[..., Any]) -> Any:
    if not can_compile():
        raise ImportError(f"{NEEDS_COMPILER}: {COMPILER_ADVICE}")
    # Which loops are prepared is asked where nothing else needs it, and it takes 0.2 s to import.
    import numba

    config: Any = numba.config  # pyright: ignore[reportPrivateImportUsage]
    if config.DISABLE_JIT:
        return function
    from headrace.stages.text.machine import parts

    return parts.Loop(function, _cache_folder())


def compile_parts(loop: Callable[..., Any], *args: Any) -> None:
    """Compile what a loop calls for arguments like these, so that it is there for all that call the same."""
    if isinstance(loop, _Lazy):
        loop.compile_part(args)


@cache
def _cache_folder() -> str:
    """The folder of this version's machine code; empty where none can be written."""
    # Machine code of another user's would run here.
    folder = own_cache("kernels", digest())
    if folder is not None and os.access(folder, os.W_OK):
        return str(folder)
    logger.warning("machine code cannot be kept, each process compiles for itself: %s", CACHE_ADVICE)
    return ""
