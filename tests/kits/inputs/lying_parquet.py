"""Parquet files of a few hundred bytes that say what is not so, written by hand: no library would write them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Types of Parquet, of fields in Thrift's compact protocol, pages, encodings and codecs, by their numbers.
INT32, BYTE_ARRAY, FIXED = 1, 6, 7
DATA_PAGE, DICTIONARY_PAGE = 0, 2
PLAIN, RLE, DELTA, DELTA_LENGTH, DELTA_BYTES, DICTIONARY = 0, 3, 5, 6, 7, 8
STORED, SNAPPY, GZIP, BROTLI, ZSTD = 0, 1, 2, 4, 6
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
INT_MAX = (1 << 31) - 1

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def signed(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def table(*fields: tuple[int, int, Any]) -> bytes:
    """A struct of Thrift of (number, type, value)."""
    found, last = b"", 0
    for number, kind, value in fields:
        found += bytes([number - last << 4 | kind])
        found += signed(value) if kind in (_I32, _I64) else varint(len(value)) + value if kind == _BINARY else value
        last = number
    return found + b"\0"


def many(kind: int, *items: bytes, says: int = -1) -> bytes:
    """A list of Thrift that says it has `says` items."""
    count = len(items) if says < 0 else says
    return (bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + varint(count)) + b"".join(items)


def page(kind: int, values: int, encoding: int, data: bytes, *, unpacked: int = -1, stored: int = -1) -> bytes:
    """A page with its header, which says how many bytes it has unpacked and as it is stored."""
    sizes = [(2, _I32, len(data) if unpacked < 0 else unpacked), (3, _I32, len(data) if stored < 0 else stored)]
    if kind == DICTIONARY_PAGE:
        about = (7, _STRUCT, table((1, _I32, values), (2, _I32, encoding)))
    else:
        about = (5, _STRUCT, table((1, _I32, values), (2, _I32, encoding), (3, _I32, RLE), (4, _I32, RLE)))
    return table((1, _I32, kind), *sizes, about) + data


@dataclass(frozen=True)
class Column:
    """One column of one row group: what stands there, and what the footer says."""

    name: str
    data: bytes
    kind: int = BYTE_ARRAY
    type_length: int = 0
    repetition: int = REQUIRED
    codec: int = STORED
    values: int = 1
    with_dictionary: bool = False
    unpacked: int = 0


def write(path: Path, columns: list[Column], rows: int = 1, groups: int = 1) -> str:
    """A file of one row group, which its footer may name several times."""
    whole, chunks, schema = b"PAR1", [], [table((4, _BINARY, b"schema"), (5, _I32, len(columns)))]
    for column in columns:
        offset, length = len(whole), len(column.data)
        whole += column.data
        typed = [(1, _I32, column.kind), *([(2, _I32, column.type_length)] if column.type_length else [])]
        text = [(6, _I32, 0)] if column.kind == BYTE_ARRAY else []
        schema.append(table(*typed, (3, _I32, column.repetition), (4, _BINARY, column.name.encode()), *text))
        facts = table(
            (1, _I32, column.kind),
            (2, _LIST, many(_I32, signed(PLAIN))),
            (3, _LIST, many(_BINARY, varint(len(column.name)) + column.name.encode())),
            (4, _I32, column.codec),
            (5, _I64, column.values),
            (6, _I64, column.unpacked or length),
            (7, _I64, length),
            (9, _I64, offset),
            *([(11, _I64, offset)] if column.with_dictionary else []),
        )
        chunks.append(table((2, _I64, offset), (3, _STRUCT, facts)))
    group = table((1, _LIST, many(_STRUCT, *chunks)), (2, _I64, len(whole)), (3, _I64, rows))
    footer = table(
        (1, _I32, 2),
        (2, _LIST, many(_STRUCT, *schema)),
        (3, _I64, rows * groups),
        (4, _LIST, many(_STRUCT, *[group] * groups)),
    )
    return close(path, whole, footer)


def close(path: Path, whole: bytes, footer: bytes) -> str:
    path.write_bytes(whole + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return str(path)


def footer_of_columns(says: int) -> bytes:
    """A footer whose only row group says that it has so many columns, and ends before the first."""
    schema = many(_STRUCT, table((4, _BINARY, b"schema")))
    group = bytes([1 << 4 | _LIST]) + many(_STRUCT, says=says) + bytes(40)
    begin = table((1, _I32, 1), (2, _LIST, schema), (3, _I64, 0))[:-1]
    return begin + bytes([1 << 4 | _LIST]) + many(_STRUCT, group)


def nothing(rows: int) -> bytes:
    """Definition levels of so many nulls, with their size before them."""
    levels = varint(rows << 1) + b"\0"
    return struct.pack("<I", len(levels)) + levels


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def a_text(rows: int) -> Column:
    """A sound column of text, the same in each row."""
    data = page(DICTIONARY_PAGE, 1, PLAIN, text(b"so")) + page(
        DATA_PAGE, rows, DICTIONARY, bytes([1]) + varint(rows << 1) + b"\0"
    )
    return Column("text", data, values=rows, with_dictionary=True)
