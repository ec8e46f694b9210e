"""Loops that came as machine code with the installation, in a shared library for each kind of processor.

`headrace.stages.text.machine.build` makes them, and a wheel holds them below `headrace/loops`: `DIGEST-LEVEL.so`. The
digest is of what the code was made from, so code of other sources is not found. They are files of the package:
whoever may write them may write its modules. A call hands over one row of eight-byte slots, of an array where its
data and how long each axis is, and takes back one of results.

The types of a loop that Python calls: `(u8[], i64[,], (u64[], i32[]), f64) -> (i64, i64)`. `i64` is a number, `i64[]`
an array of one axis, `i64[,,]` one of three, in C order; what stands in parentheses is a tuple. Behind the arrow
stands what the loop returns, if it returns anything.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pathlib
import platform
import re
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, assert_never

from headrace.stages.text.machine.sources import digest

#: Numpy's names of the elements that an array may have.
ELEMENTS = {
    "bool": "bool", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "i32": "int32", "i64": "int64", "f32": "float32", "f64": "float64",
}  # fmt: skip
#: Numbers that are passed as they are, in eight bytes each.
NUMBERS = ("bool", "u64", "i64", "f64")
_TOKENS = re.compile(r"\s*([a-z]+\d*|\[,*\]|[(),])")


@dataclass(frozen=True, slots=True)
class Number:
    """One of NUMBERS."""

    name: str


@dataclass(frozen=True, slots=True)
class Array:
    """An array of one of ELEMENTS in C order."""

    name: str
    axes: int


@dataclass(frozen=True, slots=True)
class Tuple:
    """Several types in a row."""

    items: tuple[Type, ...]


Type = Number | Array | Tuple


@dataclass(frozen=True, slots=True)
class Signature:
    """What a loop takes, and the numbers that it returns; None where it returns nothing."""

    takes: tuple[Type, ...]
    gives: tuple[Number, ...] | None
    #: whether a tuple is returned, of one number too
    gives_tuple: bool


def parse(text: str) -> Signature:
    """A signature as it stands at a loop. Raises ValueError."""
    left, _, right = text.partition("->")
    takes = _read(left)
    if not isinstance(takes, Tuple):
        raise ValueError(f"a signature begins with what is taken, in parentheses: {text}")
    if not right.strip():
        return Signature(takes.items, None, gives_tuple=False)
    gives = _read(right)
    numbers = gives.items if isinstance(gives, Tuple) else (gives,)
    found = tuple(number for number in numbers if isinstance(number, Number))
    if len(found) < len(numbers):
        raise ValueError(f"a loop returns numbers alone: {text}")
    return Signature(takes.items, found, isinstance(gives, Tuple))


def _read(text: str) -> Type:
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        token = _TOKENS.match(text, at)
        if token is None:
            raise ValueError(f"no type begins at character {at} of {text}")
        tokens.append(token[1])
        at = token.end()
    found, end = _type_at(tokens, 0)
    if end != len(tokens):
        raise ValueError(f"nothing follows a type: {text}")
    return found


def _type_at(tokens: list[str], at: int) -> tuple[Type, int]:
    name = tokens[at] if at < len(tokens) else "the end"
    if name == "(":
        items: list[Type] = []
        at += 1
        while at < len(tokens) and tokens[at] != ")":
            item, at = _type_at(tokens, at)
            items.append(item)
            if at < len(tokens) and tokens[at] == ",":
                at += 1
        return Tuple(tuple(items)), at + 1
    if at + 1 < len(tokens) and tokens[at + 1][0] == "[":
        if name in ELEMENTS:
            return Array(name, len(tokens[at + 1]) - 1), at + 2
    elif name in NUMBERS:
        return Number(name), at + 1
    raise ValueError(f"{name} is no type")


_ROOT = pathlib.Path(__file__).parents[3]
#: Where the libraries are, in an installation that has some; and in a clone where they were made for a wheel.
FOLDER = next((each for each in (_ROOT / "loops", _ROOT / "build" / "loops") if each.is_dir()), _ROOT / "loops")
#: What the kernel calls the features that LLVM expects of a processor of each level, the best level first. A level
#: with AVX-512 was no faster, and what numba makes for the processor itself by 2 % at most.
_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2"})
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
LEVELS = {
    "x86-64-v3": _V3,
    "x86-64-v2": _V2,
}
#: The part of the C library that has mathematics.
_MATHEMATICS = "libm.so.6"
#: Bytes of /proc/cpuinfo that hold the features of its first processor.
_CPUINFO_BYTES = 16_384
#: What numba's code returns where it ends well: with a value, and without one.
_SUCCESS = (0, -2)
_FORMATS = {"bool": "?7x", "i64": "q", "u64": "Q", "f64": "d"}


logger = logging.getLogger("headrace.stages")


def levels(features: frozenset[str], machine: str) -> list[str]:
    """The levels that a processor has, the best first."""
    if machine != "x86_64":
        return []
    return [name for name, needed in LEVELS.items() if needed <= features]


def features() -> frozenset[str]:
    """What the processor of this host can do, in the kernel's words."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            text = file.read(_CPUINFO_BYTES)
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, words = line.partition(":")
        if name.strip() == "flags":
            return frozenset(words.split())
    return frozenset()


def name_of(digest: str, level: str) -> str:
    """The file's name."""
    return f"{digest}-{level}.so"


@cache
def library() -> ctypes.PyDLL | None:
    """The loops of this installation for this processor; None where there are none."""
    # What numba is told that it shall not compile is not to run as machine code either.
    if not FOLDER.is_dir() or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0" or sys.platform != "linux":
        return None
    for each in levels(features(), platform.machine()):
        path = FOLDER / name_of(digest(), each)
        if path.is_file():
            return _loaded(path)
    return None


def _loaded(path: pathlib.Path) -> ctypes.PyDLL | None:
    try:
        # The loops call `pow` and name no library that has it, so that any version will do.
        ctypes.CDLL(_MATHEMATICS, ctypes.RTLD_GLOBAL)
        # The GIL stays held: the loops of a process share their scratch.
        return ctypes.PyDLL(str(path))
    except OSError as error:
        logger.warning("the compiled loops cannot be loaded: %s", error)
        return None


def symbol(module: str, name: str) -> str:
    """What a loop is called in a library."""
    return f"{module}.{name}"


def bind(loops: ctypes.PyDLL, module: str, name: str, signature: str) -> Callable[..., Any] | None:
    """A loop of the library; None if it has none of that name."""
    try:
        function: Any = getattr(loops, symbol(module, name))
    except AttributeError:
        return None
    function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_void_p], ctypes.c_int32
    types = parse(signature)
    slots = struct.Struct("=" + "".join(map(_format, types.takes)))
    results = struct.Struct("=" + "".join(_FORMATS[number.name] for number in types.gives or ()))

    room, putters = ctypes.c_char * results.size, [_putter(kind, name) for kind in types.takes]

    def call(*arguments: Any) -> Any:
        row: list[Any] = []
        found = room()
        if len(arguments) != len(putters):
            raise TypeError(f"{name} takes {len(putters)} arguments and not {len(arguments)}")
        for put, argument in zip(putters, arguments, strict=True):
            put(row, argument)
        if function(slots.pack(*row), found) not in _SUCCESS:
            raise RuntimeError(f"the loop {name} of {module} failed")
        return _result(types, results.unpack(found))

    return call


def _format(kind: Type) -> str:
    match kind:
        case Number():
            return _FORMATS[kind.name]
        case Array():
            return "Q" + "q" * kind.axes
        case Tuple():
            return "".join(map(_format, kind.items))
        case never:
            assert_never(never)


_address, _bytes = ctypes.addressof, (ctypes.c_char * 0).from_buffer


def _putter(kind: Type, loop: str) -> Callable[[list[Any], Any], object]:
    """What puts an argument of a kind into the row of numbers that a loop takes."""
    match kind:
        case Number():
            return list.append
        case Array():
            return _array_putter(kind, loop)
        case Tuple():
            return _tuple_putter([_putter(item, loop) for item in kind.items], loop)
        case never:
            assert_never(never)


def _array_putter(kind: Array, loop: str) -> Callable[[list[Any], Any], object]:
    # Whoever asks only whether loops are compiled needs no numpy.
    import numpy as np

    dtype, axes = np.dtype(ELEMENTS[kind.name]), kind.axes

    def put(row: list[Any], value: Any) -> None:
        flags = value.flags
        if value.dtype != dtype or value.ndim != axes or not flags.c_contiguous:
            raise TypeError(f"{loop} takes an array {kind} and not one of {value.dtype} of {value.shape}")
        # Four times sooner than to ask the array, but not for what cannot be written.
        row.append(_address(_bytes(value)) if flags.writeable else value.__array_interface__["data"][0])
        row += value.shape

    return put


def _tuple_putter(putters: Sequence[Callable[[list[Any], Any], object]], loop: str) -> Callable[[list[Any], Any], None]:
    def put(row: list[Any], value: Any) -> None:
        if len(value) != len(putters):
            raise TypeError(f"{loop} takes {len(putters)} in a tuple and not {len(value)}")
        for each, item in zip(putters, value, strict=True):
            each(row, item)

    return put


def _result(types: Signature, numbers: tuple[Any, ...]) -> Any:
    if types.gives is None:
        return None
    return numbers if types.gives_tuple else numbers[0]
