"""Check values that a codec has read against the declared types of their fields.

`int` is within what msgpack and columns of 64 bits hold, and no bool; `Natural` is not negative; `Any` is
plain data (`pipeline/plain.py`). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from headrace.pipeline import plain_problem

#: Numbers in ledgers and snapshots: -1 stands for "not known" or "to the end".
NUMBER_MIN, NUMBER_MAX = -1, 2**63 - 1
#: The last second of the year 9999: what calendars know.
MOMENT_MAX = 253_402_300_799
#: A count, an ordinal or a size: none is negative.
Natural: TypeAlias = Annotated[int, "from 0 on"]
#: Unix seconds; 0: unknown.
Moment: TypeAlias = Annotated[int, "a moment"]

Check = Callable[[Any], bool]


def misfit(value: Any, names: Collection[str] = ()) -> str:
    """The first field of a record that is not of its kind, and what it is; empty where all are, or all of `names`."""
    for name, check in _fields(type(value)):
        found = getattr(value, name)
        if (not names or name in names) and not check(found):
            return f"{name} is {found!r:.80}"
    return ""


def _fields(kind: type[Any]) -> tuple[tuple[str, Check], ...]:
    found = _FIELDS.get(kind)
    if found is None:
        hints = get_type_hints(kind, include_extras=True)
        found = tuple((name, check_of(hint)) for name, hint in hints.items() if not name.startswith("_"))
        _FIELDS[kind] = found
    return found


_FIELDS: dict[type[Any], tuple[tuple[str, Check], ...]] = {}


def _is_number(value: Any) -> bool:
    return type(value) is int and NUMBER_MIN <= value <= NUMBER_MAX


def whole_number(value: Any) -> int | None:
    """A number from 0 to NUMBER_MAX, as JSON or as text has it; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _DIGITS_MAX:
        value = int(value)
    return value if type(value) is int and 0 <= value <= NUMBER_MAX else None


_DIGITS_MAX = len(str(NUMBER_MAX))
_EXACT: dict[Any, Check] = {
    int: _is_number,
    Natural: lambda value: type(value) is int and 0 <= value <= NUMBER_MAX,
    Moment: lambda value: type(value) is int and 0 <= value <= MOMENT_MAX,
    str: lambda value: type(value) is str,
    bytes: lambda value: type(value) is bytes,
    bool: lambda value: type(value) is bool,
    type(None): lambda value: value is None,
    Any: lambda value: not plain_problem(value, binary=True),
}


def _is_counts(value: Any) -> bool:
    """Whether it maps texts to counts: a snapshot has some for each shard, so they are looked at together."""
    if type(value) is not dict:
        return False
    if not value:
        return True
    held = value.values()
    kinds = set(map(type, value)) <= {str} and set(map(type, held)) <= {int}
    return kinds and (not held or (min(held) >= 0 and max(held) <= NUMBER_MAX))


@cache
def check_of(hint: Any) -> Check:
    """What says whether a value is of the kind that an annotation names."""
    if (exact := _EXACT.get(hint)) is not None:
        return exact
    origin, inner = get_origin(hint), tuple(check_of(item) for item in get_args(hint) if item is not ...)
    if origin is Mapping or origin is dict:
        of_key, of_value = inner
        if get_args(hint) == (str, Natural):
            return _is_counts
        return lambda value: type(value) is dict and all(of_key(key) and of_value(item) for key, item in value.items())
    if origin in (list, set) or (origin is tuple and ... in get_args(hint)):
        (of_item,) = inner
        return lambda value: type(value) is origin and all(map(of_item, value))
    if origin is tuple:
        return lambda value: (
            type(value) is tuple
            and len(value) == len(inner)
            and all(check(item) for check, item in zip(inner, value, strict=True))
        )
    if isinstance(hint, type):
        return lambda value: type(value) is hint and not misfit(value)
    # a union
    return lambda value: any(check(value) for check in inner)
