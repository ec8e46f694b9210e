"""Which of the user's modules travel with a pipeline, as text: those that its stages name and what these import.

Nothing is run to find out: imports are read from the syntax tree, wherever they stand in a module. A module travels
unless it is part of Python, of Headrace or of an installed distribution; those are named by the environment lock and
must be installed on every machine. The folder of a package travels as an empty package where it has no text.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.pipeline import Pipeline, PipelineError
from headrace.stages.runtime import Shipped

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
