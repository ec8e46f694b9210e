"""Functions of a notebook, or of a script that runs itself, as the text of a module that can travel.

Other processes cannot import `__main__`. So the definition of a function is taken as text, with what it uses: functions
and classes defined beside it, imports, and constants. The module is named by the hash of that text.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.pipeline import PipelineError, fingerprint

MAIN = "__main__"
#: Characters of a constant that travels.
CONSTANT_CHARACTERS_MAX = 100_000
#: Definitions, imports and constants of one function.
PARTS_MAX = 200
_HEAD = "from __future__ import annotations\n"
_modules: dict[str, str] = {}


def cell_modules() -> Mapping[str, str]:
    """The modules made so far in this process: their texts by their names."""
    return _modules


def travels_as_text(function: Callable[..., Any]) -> bool:
    """Whether a function is of `__main__`, which no other process can import."""
    return isinstance(function, types.FunctionType) and function.__module__ == MAIN


def as_module(function: Callable[..., Any]) -> str:
    """The import path of a copy in a module of its own. Raises PipelineError where it cannot be made."""
    name = function.__qualname__
    if "<" in name or "." in name or function.__closure__:
        raise PipelineError(f"function {name!r} cannot travel: define it with def in a cell, or at the top of a module")
    parts = _Parts(name, function.__globals__)
    parts.add(name, function)
    text = parts.text()
    module = f"cell_{fingerprint(text)}"
    _modules[module] = text
    return f"{module}:{name}"


class _Parts:
    """What a module of one function consists of, in an order in which it can run."""

    def __init__(self, owner: str, names: Mapping[str, Any]) -> None:
        self._owner = owner
        self._names = names
        self._imports: dict[str, str] = {}
        self._constants: dict[str, str] = {}
        #: Those that others need as they are defined, for a decorator or a base, stand before them.
        self._definitions: dict[str, str] = {}
        self._seen: set[str] = set()

    def text(self) -> str:
        lines = [*sorted(self._imports.values()), *(self._constants[name] for name in sorted(self._constants))]
        return "\n".join([_HEAD, *lines, "\n", "\n\n\n".join(self._definitions.values())]) + "\n"

    def add(self, name: str, value: Any) -> None:
        """Add what is called `name`, and what it uses."""
        if name in self._seen:
            return
        self._seen.add(name)
        if len(self._seen) > PARTS_MAX:
            raise PipelineError(f"function {self._owner!r} uses more than {PARTS_MAX} names: make a module of it")
        if isinstance(value, types.ModuleType):
            self._imports[name] = f"import {value.__name__} as {name}"
        elif isinstance(value, (types.FunctionType, type)) and value.__module__ == MAIN:
            self._define(name, value)
        elif (home := _home(value)) is not None:
            self._imports[name] = f"from {home[0]} import {home[1]} as {name}"
        else:
            self._constants[name] = f"{name} = {self._literal(name, value)}"

    def _define(self, name: str, value: Any) -> None:
        try:
            text = _class_text(value) if isinstance(value, type) else textwrap.dedent(inspect.getsource(value))
        except (OSError, TypeError) as error:
            raise PipelineError(
                f"{name!r} cannot travel, its text is unknown ({error}): put it into a module"
            ) from error
        for used in _used(ast.parse(text)):
            if used in self._names and used != name:
                self.add(used, self._names[used])
        self._definitions[name] = text.rstrip()

    def _literal(self, name: str, value: Any) -> str:
        if isinstance(value, re.Pattern):
            self._imports["re"] = "import re"
            return f"re.compile({value.pattern!r}, {value.flags})"
        text = repr(value)
        try:
            same = len(text) <= CONSTANT_CHARACTERS_MAX and ast.literal_eval(text) == value
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            same = False
        if not same:
            raise PipelineError(
                f"function {self._owner!r} uses {name!r}, a {type(value).__name__}, which cannot travel as text: "
                "make it within the function, or put both into a module"
            )
        return text


def _class_text(value: type) -> str:
    """The text of a class, found by one of its methods: of a cell, Python itself knows only where functions begin."""
    codes = [item.__code__ for item in vars(value).values() if isinstance(item, types.FunctionType)]
    for code in codes:
        lines = linecache.getlines(code.co_filename)
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                begin = min((item.lineno for item in node.decorator_list), default=node.lineno)
                if begin <= code.co_firstlineno <= (node.end_lineno or 0):
                    return textwrap.dedent("".join(lines[begin - 1 : node.end_lineno]))
    raise OSError("no method of the class says where it stands")


def _used(tree: ast.AST) -> Iterator[str]:
    """The names that a definition reads; annotations are not read, and what Python has is not looked for."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            yield node.id
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns"):
                waiting += [
                    item for item in (value if isinstance(value, list) else [value]) if isinstance(item, ast.AST)
                ]


def _home(value: Any) -> tuple[str, str] | None:
    """The module and the name by which something is imported; None where it is no such thing."""
    if not isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        return None
    module, name = value.__module__, value.__qualname__
    return None if not module or module == MAIN or "." in name or "<" in name else (module, name)
