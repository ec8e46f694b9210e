"""The types of a loop that Python calls: `(u8[], i64[,], (u64[], i32[]), f64) -> (i64, i64)`.

`i64` is a number, `i64[]` an array of one axis, `i64[,,]` one of three, in C order; what stands in parentheses is a
tuple. Behind the arrow stands what the loop returns, if it returns anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
