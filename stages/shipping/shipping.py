"""What of the user's code travels with a pipeline, as text: modules, what these import, and functions of a notebook.

Nothing is run to find out: imports are read from the syntax tree, wherever they stand in a module. A module travels
unless it is part of Python, of Headrace or of an installed distribution; those are named by the environment lock and
must be installed on every machine. The folder of a package travels as an empty package where it has no text.

Other processes cannot import `__main__`. So the definition of a function is taken as text, with what it uses:
functions and classes defined beside it, imports, and constants. The module is named by the hash of that text.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import importlib.machinery
import inspect
import linecache
import os
import re
import sys
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.pipeline import Pipeline, PipelineError, Stage, fingerprint
from headrace.stages.runtime import Shipped
from headrace.stages.shipping.definitions import why_other

#: Modules of one pipeline. One that needs more is a package to be installed.
MODULES_MAX = 500

_OWN = "headrace"
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_][\w.]*")


def has_user_code(pipeline: Pipeline) -> bool:
    """Whether a stage is, or calls, something outside of Headrace."""
    paths = [stage.target for stage in pipeline.stages]
    paths += [path for stage in pipeline.stages if isinstance(path := stage.parameters.get("function"), str)]
    return any(path.partition(":")[0].partition(".")[0] != _OWN for path in paths)


def modules_of(pipeline: Pipeline, texts: Mapping[str, str]) -> dict[str, str]:
    """The text of each module that the stages name, and of what these import, that must travel.

    A name is an import path `module:name` in a target or anywhere in the parameters. `texts` are modules that need not
    be looked for. Raises PipelineError for more than MODULES_MAX, and for a file that is no Python.
    """
    found: dict[str, str] = {}
    waiting = [
        text.partition(":")[0]
        for stage in pipeline.stages
        for text in (stage.target, *_strings(stage.parameters))
        if _IMPORT_PATH.fullmatch(text)
    ]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        source = _Source(name, texts[name], is_package=False) if name in texts else _find(name)
        if source is None:
            continue
        if len(found) == MODULES_MAX:
            raise PipelineError(
                f"the pipeline's own modules are more than {MODULES_MAX}: make a package of them, and install it on "
                "every machine that runs the pipeline"
            )
        found[name] = source.text
        waiting += _parents(name)
        waiting += source.imports()
    return dict(sorted(found.items()))


def beside(
    stages: Sequence[Stage], modules: Mapping[str, str], there: Mapping[str, str], own: str
) -> tuple[tuple[Stage, ...], dict[str, str]]:
    """Stages of a file, and their modules, for a pipeline that has the modules `there`.

    The file is module `own`. Where the pipeline has another text under that name, the file's is named by its hash.
    """
    text = modules.get(own, "")
    imported = (name for module, other in modules.items() for name in _Source(module, other, is_package=True).imports())
    if there.get(own, text) == text or own in imported:
        return tuple(stages), dict(modules)
    name = f"{own}_{fingerprint(text)}"

    def renamed(value: Any) -> Any:
        if isinstance(value, str):
            path = _IMPORT_PATH.fullmatch(value) and value.removeprefix(f"{own}:")
            return f"{name}:{path}" if path and path != value else value
        if isinstance(value, Mapping):
            return {key: renamed(item) for key, item in value.items()}
        return type(value)(map(renamed, value)) if isinstance(value, (list, tuple)) else value

    made = (replace(one, target=renamed(one.target), parameters=renamed(one.parameters)) for one in stages)
    return tuple(made), {name if module == own else module: other for module, other in modules.items()}


class _Source:
    """A module that travels."""

    def __init__(self, name: str, text: str, *, is_package: bool) -> None:
        self.name = name
        self.text = text
        self._package = name if is_package else name.rpartition(".")[0]

    def imports(self) -> Iterator[str]:
        """The names of what it imports. What follows `from` may be a module too."""
        try:
            tree = ast.parse(self.text)
        except SyntaxError as error:
            raise PipelineError(f"module {self.name}: line {error.lineno}: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise PipelineError(f"module {self.name}: Python cannot read it: {error!r}") from error
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                if base:
                    yield base
                    yield from (f"{base}.{alias.name}" for alias in node.names)

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self._package.split(".")
        kept = parts[: len(parts) - node.level + 1]
        return ".".join([*kept, node.module] if node.module else kept)


def _find(name: str) -> _Source | None:
    """The module's source, if it is one of the user's; None also where there is no such module."""
    top = name.partition(".")[0]
    if top == _OWN or top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return None
    path: list[str] | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    at = ""
    for part in name.split("."):
        at = f"{at}.{part}" if at else part
        # Not importlib.util: that would run the packages above, and import what only resembles a module's name.
        spec = _find_top(at) if at == top else importlib.machinery.PathFinder.find_spec(at, path)
        if spec is None:
            return None
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        if at == top and _is_installed(top, spec):
            return None
        if path is None and at != name:
            return None
    assert spec is not None
    if spec.origin is None:
        return _Source(name, "", is_package=True)
    if not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        if name == top:
            return None
        raise PipelineError(
            f"module {name} ({spec.origin}) has no source that could travel with the pipeline: make a package of it, "
            "and install it on every machine that runs the pipeline"
        )
    return _Source(name, spec.loader.get_source(name) or "", is_package=path is not None)


def _find_top(name: str) -> importlib.machinery.ModuleSpec | None:
    """The module as any finder sees it, one of an editable installation too."""
    for finder in sys.meta_path:
        spec = None if isinstance(finder, Shipped) else finder.find_spec(name, None)
        if spec is not None:
            return spec
    return None


def _is_installed(top: str, spec: importlib.machinery.ModuleSpec) -> bool:
    """Whether a top-level module belongs to a distribution."""
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return any(_owned(place, top) for place in places)


def _owned(place: str, top: str) -> bool:
    folder = Path(os.path.abspath(place)).parent
    if Path(place).name == "__init__.py":
        folder = folder.parent
    return folder in _site_folders() or top in _top_levels(folder)


@functools.cache
def _site_folders() -> frozenset[Path]:
    """Where this interpreter's distributions are installed."""
    return frozenset(Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib"))


@functools.cache
def _top_levels(folder: Path) -> frozenset[str]:
    """The top-level names that the distributions in another folder say are theirs."""
    names: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD"):
        with open(record, encoding="utf-8") as lines:
            for line in lines:
                first = line.partition(",")[0].partition("/")[0]
                names.add(first.partition(".")[0])
    return frozenset(names)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


MAIN = "__main__"
#: Characters of a constant that travels.
CONSTANT_CHARACTERS_MAX = 100_000
#: Definitions, imports and constants of one function.
PARTS_MAX = 200
_HEAD = "from __future__ import annotations\n"
#: The instructions that look for a name in a module, if in a class or between its type parameters it has no other.
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
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
        self._definitions: dict[str, str] = {}
        #: What each of them needs as it is defined: decorators, bases, defaults, and what the body of a class reads.
        self._needs: dict[str, list[str]] = {}
        self._seen: dict[str, Any] = {}

    def text(self) -> str:
        placed: dict[str, str] = {}
        for name in self._definitions:
            self._place(name, placed, ())
        lines = [*sorted(self._imports.values()), *(self._constants[name] for name in sorted(self._constants))]
        return "\n".join([_HEAD, *lines, "\n", "\n\n\n".join(placed.values())]) + "\n"

    def _place(self, name: str, placed: dict[str, str], within: tuple[str, ...]) -> None:
        """Place a definition behind those that it needs."""
        if name in placed or name not in self._definitions:
            return
        if name in within:
            raise PipelineError(f"{name!r} cannot travel, it is defined by means of itself: put it into a module")
        for needed in self._needs[name]:
            self._place(needed, placed, (*within, name))
        placed[name] = self._definitions[name]

    def add(self, name: str, value: Any) -> None:
        """Add what is called `name`, and what it uses."""
        if name in self._seen:
            if self._seen[name] is not value:
                raise PipelineError(f"{name!r} cannot travel, it means two things: give each a name of its own")
            return
        self._seen[name] = value
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
        if value.__qualname__ != name and _at(value.__qualname__, self._names) is value:
            self._definitions[name] = f"{name} = {value.__qualname__}"
            top = value.__qualname__.partition(".")[0]
            self._needs[name] = [top]
            self.add(top, self._names[top])
            return
        try:
            text = _class_text(value) if isinstance(value, type) else textwrap.dedent(inspect.getsource(value))
            other = why_other(name, value, text, self._names)
            reads = [] if other else list(_used(text))
        except (OSError, TypeError, SyntaxError, ValueError, RecursionError) as error:
            raise PipelineError(
                f"{name!r} cannot travel, its text is unknown ({error}): put it into a module"
            ) from error
        if other:
            raise PipelineError(f"{name!r} cannot travel, {other}")
        made = inspect.unwrap(value)
        names = made.__globals__ if isinstance(made, types.FunctionType) else self._names
        self._needs[name] = []
        for used, is_needed in reads:
            if used in names and not _is_of_python(used, names[used]):
                self._needs[name] += [used] if is_needed else []
                self.add(used, names[used])
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
            renamed = f"give it a name other than Python's {name!r}, " if hasattr(builtins, name) else ""
            raise PipelineError(
                f"function {self._owner!r} uses {name!r}, a {type(value).__name__}, which cannot travel as text: "
                f"{renamed}make it within the function, or put both into a module"
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


def _at(path: str, names: Mapping[str, Any]) -> Any:
    """What stands at a dotted path, in classes."""
    top, *rest = path.split(".")
    found = names.get(top)
    for name in rest:
        found = vars(found).get(name) if isinstance(found, type) else None
    return found


def _used(text: str) -> Iterator[tuple[str, bool]]:
    """The names that a definition reads of its module, as Python's own compiler tells: no parameters, no locals.

    With each, whether it is read as the definition is made, and not as it is called. Annotations are not read.
    """
    flags = annotations.compiler_flag
    waiting = [(compile(text, "<definition>", "exec", flags, dont_inherit=True, optimize=0), True)]
    while waiting:
        code, at_once = waiting.pop()
        bound: set[str] = set()
        surely = len(code.co_code) if code.co_exceptiontable else 0  # from where on nothing skips a store
        for step in dis.get_instructions(code):
            if step.opcode in _JUMPS:
                surely = max(surely, step.argval)
            elif step.opname == "STORE_NAME" and step.offset >= surely:
                bound.add(step.argval)
            elif step.opname == "DELETE_NAME":
                bound.discard(step.argval)
            elif step.opname in _READS and step.argval not in bound:
                yield step.argval, at_once
        waiting += [
            (item, at_once and _runs_at_once(item)) for item in code.co_consts if isinstance(item, types.CodeType)
        ]


def _runs_at_once(code: types.CodeType) -> bool:
    """Whether it is of no function: the body of a class, a comprehension, type parameters."""
    is_function = code.co_flags & inspect.CO_OPTIMIZED
    return not is_function or (code.co_name.startswith("<") and code.co_name != "<lambda>")


def _is_of_python(name: str, value: Any) -> bool:
    """Whether a name means what Python, or the shell of a notebook, which puts its own `open` there, means by it."""
    if not hasattr(builtins, name):
        return False
    home = value if isinstance(value, (types.FunctionType, type)) else type(value)
    is_of_shell = str(home.__module__).startswith("IPython.")
    return value is getattr(builtins, name) or name.startswith("__") or is_of_shell


def _home(value: Any) -> tuple[str, str] | None:
    """The module and the name by which something is imported; None where it is no such thing."""
    if not isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        return None
    module, name = value.__module__, value.__qualname__
    return None if not module or module == MAIN or "." in name or "<" in name else (module, name)
