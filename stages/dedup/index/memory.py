"""Memory that grows in place, as addresses: what the loops of the index read and write.

The loops take tables of addresses, so that a table of many parts is one argument, and a part may move when it grows.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stages.text.machine import intrinsic, ir, types

_PAGE, _LARGE_PAGE = mmap.PAGESIZE, 2 << 20
#: Fixed blocks from this size on consist of large pages: a random read of a small one needs another, of where it lies.
LARGE_BYTES_MIN = 2 << 20


class Block:
    """Zeroed memory that grows in place. Its address holds until it grows."""

    __slots__ = ("_map", "address", "nbytes")

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # A large page would take memory for what is only reserved.
        with contextlib.suppress(OSError):
            self._map.madvise(mmap.MADV_NOHUGEPAGE)
        self._settle()

    def grow(self, nbytes: int) -> None:
        """Make it at least so large. What stands in it stays, and what is new is zero."""
        if nbytes > self.nbytes:
            self._map.resize(-(-nbytes // _PAGE) * _PAGE)
            self._settle()

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """The first `count` words as an array, which must not outlive the next `grow`."""
        return words_in(self.address, count)

    def _settle(self) -> None:
        self.nbytes, self.address = len(self._map), _address_of(self._map)


class FixedBlock:
    """Zeroed memory of one size, rounded up to whole small pages."""

    __slots__ = ("_map", "address", "nbytes")

    def __init__(self, nbytes: int) -> None:
        page = _LARGE_PAGE if nbytes >= LARGE_BYTES_MIN else _PAGE
        self.nbytes = max(1, -(-nbytes // _PAGE)) * _PAGE
        # A large page begins where its size divides the address. None reaches past the end: it would be taken whole.
        self._map = mmap.mmap(-1, self.nbytes + page - _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        begin = _address_of(self._map)
        self.address = -(-begin // page) * page
        if page == _LARGE_PAGE:
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE, self.address - begin, self.nbytes // page * page)

    def clear(self) -> None:
        """Zero all of it, and keep the memory."""
        ctypes.memset(self.address, 0, self.nbytes)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """The first `count` words as an array, which must not outlive the block."""
        return words_in(self.address, count)


def words_in(address: int, count: int) -> npt.NDArray[np.uint64]:
    """`count` words at an address as an array."""
    room: Any = (ctypes.c_char * (8 * count)).from_address(address)
    return np.frombuffer(room, np.uint64)


def _address_of(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def _pointer_to(kind: Any, bits: int) -> Any:
    """What an intrinsic tells numba that makes an address a pointer to numbers of so many bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.inttoptr(args[0], ir.IntType(bits).as_pointer())

    return types.CPointer(kind)(types.int64), generate


@intrinsic
def words_at(_: Any, address: Any) -> Any:  # noqa: ARG001 (numba tells by them what is called)
    """A pointer to the 64-bit words at an address."""
    return _pointer_to(types.uint64, 64)


@intrinsic
def halves_at(_: Any, address: Any) -> Any:  # noqa: ARG001 (numba tells by them what is called)
    """A pointer to the 32-bit words at an address."""
    return _pointer_to(types.uint32, 32)


@intrinsic
def numbers_at(_: Any, address: Any) -> Any:  # noqa: ARG001 (numba tells by them what is called)
    """A pointer to the signed 64-bit numbers at an address."""
    return _pointer_to(types.int64, 64)


@intrinsic
def prefetch(_: Any, address: Any) -> Any:  # noqa: ARG001 (numba tells by them what is called)
    """Ask for the cache line at an address, and do not wait for it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del signature
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.globals.get("llvm.prefetch.p0i8")
        if function is None:
            function = ir.Function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [builder.inttoptr(args[0], byte), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def read_at(_: Any, descriptor: Any, address: Any, size: Any, offset: Any) -> Any:  # noqa: ARG001 (numba tells by them what is called)
    """`pread`: bytes read of a file into memory at an address; below 0 for an error."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        byte, word, number = ir.IntType(8).as_pointer(), ir.IntType(64), ir.IntType(32)
        function = builder.module.globals.get("pread")
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(word, [number, byte, word, word]), "pread")
        return builder.call(
            function, [builder.trunc(args[0], number), builder.inttoptr(args[1], byte), args[2], args[3]]
        )

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate
