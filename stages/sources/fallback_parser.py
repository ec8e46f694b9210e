"""A second look at lines that are JSON but for what other writers put there: it is slow, and few lines need it.

Python writes NaN and infinities, many write numbers that no double holds, and files that were put together with `cat`
have byte order marks in the middle.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import orjson

from headrace.stages.sources.lines import BOM

_WORDS = re.compile(rb"NaN|Infinity")
#: What orjson says of a number that no double holds.
_TOO_LARGE = "number is infinity"
#: Characters of an integer that 64 bits may hold.
_DIGITS_MAX = 20


def reread(line: bytes, why: str) -> Any:
    """The value of a line that orjson refused for the reason `why`; None where it is no JSON for anybody.

    NaN and infinities become null, as in Parquet, and a number that no double holds becomes its text.
    """
    plain = line.removeprefix(BOM)
    try:
        return orjson.loads(plain)
    except orjson.JSONDecodeError as error:
        if not _WORDS.search(plain) and _TOO_LARGE not in f"{why} {error.msg}":
            return None
    try:
        found = json.loads(plain.decode(), parse_constant=lambda _: None, parse_float=_float, parse_int=_int)
        orjson.dumps(found)  # what this reader takes besides, such as lone surrogates, is no text
    except (ValueError, TypeError, RecursionError):
        return None
    return found


def digits_of(line: bytes, key: str) -> str | None:
    """The digits of an integer in a line that orjson read, of any length; None where it is none."""
    try:
        found = json.loads(line, parse_int=str, parse_float=float)[key]
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _float(text: str) -> float | str:
    value = float(text)
    return text if math.isinf(value) else value


def _int(text: str) -> int | float | str:
    value = int(text) if len(text) <= _DIGITS_MAX else None
    return value if value is not None and -(1 << 63) <= value < 1 << 64 else _float(text)
