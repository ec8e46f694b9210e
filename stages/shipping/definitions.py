"""Whether the text of a definition, run anew where its names mean what they mean now, gives what it once gave.

Only what can do nothing else is computed to find out: names, and operators over plain values.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN = frozenset((bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple, types.NoneType))
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PURE = (
    *(ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.UnaryOp),
    *(ast.Attribute, ast.Constant, ast.FormattedValue, ast.JoinedStr, ast.Name, ast.Slice, ast.Subscript),
    *(ast.Dict, ast.List, ast.Set, ast.Tuple),
    *(ast.boolop, ast.cmpop, ast.expr_context, ast.operator, ast.unaryop),
)


def why_other(name: str, value: Any, text: str, names: Mapping[str, Any]) -> str | None:
    """Why a text does not give, by this name, the function or class that is there, with a remedy; None where it does.

    `names` are those of its module. Raises SyntaxError for a text that is no Python.
    """
    made = value if isinstance(value, type) else inspect.unwrap(value)
    if "<locals>" in made.__qualname__ or (isinstance(made, types.FunctionType) and made.__closure__):
        return "it is made within a function: define it at the top, with what it needs as parameters"
    statement, *more = ast.parse(text).body
    wrappers = 0
    while value is not made:
        value, wrappers = value.__wrapped__, wrappers + 1
    if more or _name_of(statement) != name or wrappers > len(_decorators(statement)):
        return f"its text does not define {name!r}: define it by that name, with its decorators above it"
    if any(_is_other(node, had, known) for node, had, known in _kept(statement, made, names)):
        return "a value that its definition kept is another by now: define it again, or give each value its own name"
    return None


def _name_of(statement: ast.stmt) -> str | None:
    """The name by which a statement defines a function, a class, or a lambda."""
    name, made = _assigned(statement)
    return name if isinstance(made, (*_DEFINITIONS, ast.Lambda)) else None


def _decorators(statement: ast.AST) -> list[ast.expr]:
    return statement.decorator_list if isinstance(statement, _DEFINITIONS) else []


def _assigned(statement: ast.AST) -> tuple[str, ast.AST]:
    """What a statement assigns to one name; the statement itself where it is another."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value:
        target, *more = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if isinstance(target, ast.Name) and not more:
            return target.id, statement.value
    return statement.name if isinstance(statement, _DEFINITIONS) else "", statement


def _kept(statement: ast.AST, made: Any, names: Mapping[str, Any]) -> Iterator[tuple[ast.expr, Any, Mapping[str, Any]]]:
    """What a definition computed and keeps: each expression, its value then, and the names that it reads."""
    given = _assigned(statement)[1]
    if isinstance(given, ast.ClassDef):
        stores = (node for node in ast.walk(given) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        bound = Counter(node.id for node in stores)
        bound.update(node.name for node in given.body if isinstance(node, _DEFINITIONS))
        for item in given.body:
            name, node = _assigned(item)
            held = vars(made).get(name)
            known = {other: value for other, value in names.items() if other == name or other not in bound}
            if isinstance(node, (*_DEFINITIONS, ast.Lambda)):
                if isinstance(held, (types.FunctionType, type)) and not _decorators(node):
                    yield from _kept(node, held, known)
            elif isinstance(node, ast.expr) and bound[name] == 1 and type(held) in _PLAIN and _names_in(node):
                yield node, held, known  # what reads no name may be a count that goes on
    elif isinstance(given, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        for node, value in zip(given.args.defaults, made.__defaults__ or (), strict=True):
            yield node, value, names
        for argument, default in zip(given.args.kwonlyargs, given.args.kw_defaults, strict=True):
            if default:
                yield default, (made.__kwdefaults__ or {}).get(argument.arg), names


def _names_in(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}


def _is_other(expression: ast.expr, had: Any, names: Mapping[str, Any]) -> bool:
    """Whether an expression that gave this gives something else now; False where that cannot be told."""
    if isinstance(expression, ast.Name):
        return expression.id in names and not _is_same(had, names[expression.id])
    nodes = list(ast.walk(expression))
    read = _names_in(expression)
    known = {name: names[name] for name in read if name in names}
    is_pure = all(isinstance(node, _PURE) for node in nodes) and len(known) == len(read)
    may_be_filled = not read and type(had) in (dict, list, set)
    if not is_pure or may_be_filled or type(had) not in _PLAIN:
        return False
    if not all(type(value) in _PLAIN or isinstance(value, (types.ModuleType, type)) for value in known.values()):
        return False
    try:
        now = eval(compile(ast.Expression(expression), "<value>", "eval"), {"__builtins__": {}}, known)  # noqa: S307
    except Exception:  # noqa: BLE001 - whatever its operators raise
        return True
    return not _is_same(had, now)


def _is_same(had: Any, now: Any) -> bool:
    return had is now or (type(had) in _PLAIN and repr(had) == repr(now))
