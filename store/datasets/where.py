"""Expressions over the fields of a record, such as `lang == "de" and score.quality < 0.4`: parsed, never evaluated.

A small part of Python's grammar: names with dots, texts, numbers, True, False, None, lists of these; `==`, `!=`, `<`,
`<=`, `>`, `>=`, `in`, `not in`; `and`, `or`, `not` and parentheses; `startswith(field, "text")`. `id`, `source` and
`tokens` are columns, other names fields of the metadata. What a record lacks, or holds in another kind, fulfils no
comparison.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.store.shards import json_object

#: Limits of an expression: its characters, and the parts that it is made of.
CHARACTERS_MAX = 4096
PARTS_MAX = 500
COLUMNS = ("id", "source", "tokens")

Fields = Mapping[str, Any]
Test = Callable[[Fields], bool]
_MISSING = object()
_ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class ExpressionError(ValueError):
    """A text that is no expression of this language."""


def parse_where(text: str) -> Test:
    """What says of a record's fields whether the expression holds. Raises ExpressionError."""
    if len(text) > CHARACTERS_MAX:
        raise ExpressionError(f"the expression has {len(text)} characters, at most {CHARACTERS_MAX} are read")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ExpressionError(f"{text!r:.200} is no expression: {why}") from error
    if sum(1 for _ in ast.walk(tree)) > PARTS_MAX:
        raise ExpressionError(f"the expression has more than {PARTS_MAX} parts")
    return _test(tree)


def rows_where(table: pa.Table, test: Test) -> npt.NDArray[np.bool_]:
    """`[rows]`: whether the test holds for a row of a documents table. Raises FormatError."""
    columns = {name: table.column(name).to_pylist() for name in COLUMNS if name in table.column_names}
    found = np.zeros(table.num_rows, np.bool_)
    for row, text in enumerate(table.column("metadata").to_pylist()):
        found[row] = test({**json_object(text, "metadata"), **{name: values[row] for name, values in columns.items()}})
    return found


def _test(node: ast.expr) -> Test:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            all_of = [_test(value) for value in values]
            return lambda fields: all(test(fields) for test in all_of)
        case ast.BoolOp(op=ast.Or(), values=values):
            any_of = [_test(value) for value in values]
            return lambda fields: any(test(fields) for test in any_of)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _test(operand)
            return lambda fields: not inner(fields)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _comparison(op, _value(left), _value(right))
        case ast.Call(func=ast.Name(id="startswith"), args=[field, ast.Constant(value=str() as prefix)], keywords=[]):
            value = _value(field)
            return lambda fields: isinstance(held := value(fields), str) and held.startswith(prefix)
        case _:
            raise ExpressionError(
                f"{ast.unparse(node)!r:.200} is no comparison: write `field == value`, <, <=, >, >=, !=, in, not in, "
                'or startswith(field, "text"), joined by and, or, not'
            )


def _comparison(op: ast.cmpop, left: Callable[[Fields], Any], right: Callable[[Fields], Any]) -> Test:
    def holds(fields: Fields) -> bool:
        one, other = left(fields), right(fields)
        if one is _MISSING or other is _MISSING:
            return False
        match op:
            case ast.Eq():
                return _equal(one, other)
            case ast.NotEq():
                return not _equal(one, other)
            case ast.In():
                return _contains(other, one)
            case ast.NotIn():
                return isinstance(other, str | list) and not _contains(other, one)
            case _:
                kinds = (_is_number(one) and _is_number(other)) or (isinstance(one, str) and isinstance(other, str))
                return kinds and _ORDERS[type(op)](one, other)

    if not isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) and type(op) not in _ORDERS:
        raise ExpressionError(f"{type(op).__name__} compares nothing here: use ==, !=, <, <=, >, >=, in, not in")
    return holds


def _equal(one: Any, other: Any) -> bool:
    """True is not 1, as in JSON."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _contains(held: Any, item: Any) -> bool:
    if isinstance(held, str):
        return isinstance(item, str) and item in held
    return isinstance(held, list) and any(_equal(one, item) for one in held)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(node: ast.expr) -> Callable[[Fields], Any]:
    match node:
        case ast.Name() | ast.Attribute():
            path = _path(node)
            return lambda fields: _found(fields, path)
        case ast.Constant(value=str() | int() | float() | bool() | None as constant):
            return lambda _: constant
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return lambda _: -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            parts = [_value(item) for item in items]
            return lambda fields: [part(fields) for part in parts]
        case _:
            raise ExpressionError(f"{ast.unparse(node)!r:.200} is neither a field nor a value")


def _path(node: ast.expr) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=inner, attr=name):
            return (*_path(inner), name)
        case _:
            raise ExpressionError(f"{ast.unparse(node)!r:.200} is no field: write a name, or names with dots")


def _found(fields: Fields, path: tuple[str, ...]) -> Any:
    """The value at a path: a field by its dotted name, else fields within fields."""
    whole = ".".join(path)
    if whole in fields:
        return fields[whole]
    held: Any = fields
    for name in path:
        if not isinstance(held, dict) or name not in held:
            return _MISSING
        held = held[name]
    return held
