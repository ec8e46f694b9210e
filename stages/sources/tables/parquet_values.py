"""Values of Arrow columns as what JSON is made of: the same for a value whatever stands beside it, or is installed.

`to_pylist` fails for times that Python's have no room for (nanoseconds, years above 9999), and gives those of pandas
where pandas is installed. So times go through their integers here; what Python has room for becomes what it always was.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

_types: Any = pa.types
#: Nanoseconds of what Python's times count in.
_NANOSECONDS = 1000


def to_records(table: pa.RecordBatch) -> Sequence[dict[str, Any] | None]:
    """The rows as Python objects; None for one whose strings are not UTF-8."""
    try:
        return _rows(table)
    except UnicodeDecodeError:
        found: list[dict[str, Any] | None] = []
        for index in range(table.num_rows):
            try:
                found += _rows(table.slice(index, 1))
            except UnicodeDecodeError:
                found.append(None)
        return found


def kind_within(schema: pa.Schema, key: str) -> pa.DataType | None:
    """The type of a column, or of the field that "column.field" names where no column is called that; None if none."""
    if key in schema.names:
        return cast("pa.DataType", schema.field(key).type)
    first, *rest = key.split(".")
    if first not in schema.names:
        return None
    kind: Any = schema.field(first).type
    for name in rest:
        at = kind.get_field_index(name) if _types.is_struct(kind) else -1
        if at < 0:
            return None
        kind = kind.field(at).type
    return cast("pa.DataType", kind)


def lifted(table: pa.RecordBatch, key: str) -> pa.RecordBatch:
    """The rows with the field that "column.field" names as a column of that name, and no longer where it lay."""
    if key in table.schema.names:
        return table
    first, *rest = key.split(".")
    columns: dict[str, Any] = dict(zip(table.schema.names, table.columns, strict=True))
    text: Any = columns[first]
    for name in rest:
        text = pc.struct_field(text, indices=name)
    left = _without(columns.pop(first), rest)
    if left is not None:
        columns[first] = left
    return pa.RecordBatch.from_arrays([text, *columns.values()], names=[key, *columns])


def _without(column: Any, path: Sequence[str]) -> Any | None:
    """The structs without one field, however deep; None where it was the only one."""
    children: dict[str, Any] = {}
    for at, field in enumerate(column.type):
        child = column.field(at)
        if field.name == path[0]:
            child = _without(child, path[1:]) if len(path) > 1 else None
        if child is not None:
            children[field.name] = child
    if not children:
        return None
    return pa.StructArray.from_arrays(list(children.values()), names=list(children), mask=column.is_null())


def as_json(value: Any) -> Any:
    """What JSON has no type for, as text. Raises TypeError for anything that is not known."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (decimal.Decimal, dt.timedelta)):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def _rows(table: pa.RecordBatch) -> list[dict[str, Any]]:
    names = table.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*map(values_of, table.columns), strict=True)]


def values_of(column: Any) -> list[Any]:
    """The values of a column, None for null."""
    kind = column.type
    if not _holds_time(kind):
        values: list[Any] = column.to_pylist()
        return values
    if isinstance(kind, pa.BaseExtensionType):
        return values_of(column.storage)
    if _types.is_dictionary(kind):
        return values_of(column.dictionary_decode())
    if _types.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*(values_of(column.field(index)) for index in range(len(names))), strict=True)
        valid = column.is_valid().to_pylist()
        return [
            dict(zip(names, row, strict=True)) if is_valid else None for row, is_valid in zip(rows, valid, strict=True)
        ]
    if _types.is_map(kind):
        return _each(column, lambda pairs: [tuple(pair.values()) for pair in values_of(pairs)])
    if _types.is_nested(kind):
        return _each(column, values_of)
    return _times(column)


def _holds_time(kind: Any) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_time(kind.storage_type)
    if _types.is_dictionary(kind):
        return _holds_time(kind.value_type)
    if _types.is_nested(kind):
        return any(_holds_time(kind.field(index).type) for index in range(kind.num_fields))
    return bool(_types.is_temporal(kind))


def _each(column: Any, values: Callable[[Any], Any]) -> list[Any]:
    """The values of a column of lists."""
    return [values(row.values) if row.is_valid else None for row in column]


def _times(column: Any) -> list[Any]:
    """Times as Python's, or as text where these have no room for one."""
    unit = getattr(column.type, "unit", "")
    if unit != "ns":
        return [_time(value) for value in column]
    coarse = _microseconds(column.type)
    counts = column.cast(pa.int64()).to_pylist()
    rests = [None if count is None else count % _NANOSECONDS for count in counts]
    whole = pa.array([None if count is None else count // _NANOSECONDS for count in counts], pa.int64()).cast(coarse)
    return [_finer(_time(value), rest) if rest else _time(value) for value, rest in zip(whole, rests, strict=True)]


def _microseconds(kind: Any) -> pa.DataType:
    if _types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    return pa.duration("us") if _types.is_duration(kind) else pa.time64("us")


def _time(value: Any) -> Any:
    """A scalar as Python's date, time or duration; as text where that has no room for it."""
    try:
        return value.as_py()
    except (ValueError, OverflowError, KeyError):  # a KeyError is a time zone that nobody knows
        try:
            return value.cast(pa.string()).as_py()
        except pa.ArrowException:
            return str(value.value)


def _finer(time: Any, rest: int) -> str:
    """A time with its nanoseconds below a microsecond, as text of the form that the others get."""
    if isinstance(time, str):
        return f"{time}{rest:03d}"
    if isinstance(time, dt.timedelta):
        text = str(time)
        return f"{text if '.' in text else text + '.000000'}{rest:03d}"
    text = time.isoformat(timespec="microseconds")
    point = text.index(".") + 7
    return f"{text[:point]}{rest:03d}{text[point:]}"
