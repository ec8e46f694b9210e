"""The walls of the house: which folder may import which, and what a pure module must not know.

Both are read from the syntax of every file, imports inside functions and behind TYPE_CHECKING included: a wall with
a door that opens only sometimes is no wall. What libraries import in their turn is not followed.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: What each folder may import of ours, beside itself. Lower folders first: none imports one below it in this table.
MAY_IMPORT: dict[str, set[str]] = {
    "pipeline": set(),
    "daemon": {"pipeline"},
    "cluster": {"pipeline", "daemon"},
    "store": {"pipeline"},
    "protos": {"pipeline", "daemon", "store"},
    "transport": {"pipeline", "daemon", "cluster"},
    "stages": {"pipeline", "daemon", "store"},
    "loader": {"pipeline", "store"},
    # The page in a browser: a server and its bundle. What it shows is handed to it.
    "page": {"pipeline", "daemon"},
    "controller": {"pipeline", "protos", "daemon", "cluster", "store", "page"},
    "worker": {"pipeline", "protos", "daemon", "cluster", "store", "transport", "stages"},
    # The client of a controller: pipeline files, the folder of a cluster, the processes of an embedded run.
    "client": {
        *("pipeline", "protos", "daemon", "cluster", "store", "transport", "stages", "loader"),
        *("page", "controller", "worker"),
    },
    "chaos": {
        *("pipeline", "protos", "daemon", "cluster", "store", "transport", "stages"),
        *("page", "controller", "worker", "client"),
    },
    "cli": {
        *("pipeline", "protos", "daemon", "cluster", "store", "transport", "stages", "loader"),
        *("page", "controller", "worker", "client", "chaos"),
    },
    # The package `headrace` itself.
    "api": {"pipeline", "store", "stages", "loader", "client", "cli"},
}

#: What a pure module imports neither itself nor through another module of ours: I/O, clocks, randomness.
IMPURE = {
    "asyncio",
    "datetime",
    "grpc",
    "multiprocessing",
    "numpy.random",
    "random",
    "socket",
    "subprocess",
    "threading",
    "time",
}

#: The pure folders, beside each that is called `core`.
PURE_FOLDERS = ("pipeline", "loader/order")


@dataclass(frozen=True, slots=True)
class Import:
    """One name that a file imports: dotted and absolute, and where it says so."""

    name: str
    line: int
    #: Whether it stands behind TYPE_CHECKING, for type checkers alone.
    typed: bool = False


class House:
    """The folders below one root, as modules and what each of them imports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        files = (file for folder in MAY_IMPORT for file in sorted((root / folder).rglob("*.py")))
        self.files = {self.module_of(file): file for file in files if "_pb2" not in file.name}
        self.doors = {
            module: door(ast.parse(file.read_text(encoding="utf-8")))
            for module, file in self.files.items()
            if file.name == "__init__.py"
        }
        self.imports = {module: list(self._imports(module, file)) for module, file in self.files.items()}

    def module_of(self, file: Path) -> str:
        """`headrace.store.fold` for `store/fold.py`; `api/` is `headrace` itself."""
        inner = file.relative_to(self.root).with_suffix("").parts
        parts = ("headrace", *(inner[1:] if inner[0] == "api" else inner))
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def path_of(self, module: str) -> str:
        """The file of a module, relative to the root."""
        return self.files[module].relative_to(self.root).as_posix()

    def breaches(self) -> list[str]:
        """Every import that goes through a wall."""
        found: list[str] = []
        for module, imports in self.imports.items():
            folder = self.path_of(module).partition("/")[0]
            for item in imports:
                first, *rest = item.name.split(".")
                if first in MAY_IMPORT:
                    found.append(f"{self.path_of(module)}:{item.line} imports {item.name}, not headrace.{item.name}")
                elif first == "headrace" and rest and rest[0] != folder and not _may(folder, rest):
                    found.append(f"{self.path_of(module)}:{item.line} imports {item.name}: {folder}/ may not")
        return found

    def pure_modules(self) -> list[str]:
        """The modules that know no I/O, no clock and no randomness."""
        return [module for module in self.files if self._is_pure(module)]

    def impurities(self) -> list[str]:
        """Every way by which a pure module reaches something impure, as a chain of files."""
        return [way for module in self.pure_modules() for way in self.ways(module, IMPURE)]

    def ways(self, start: str, banned: set[str]) -> list[str]:
        """Every way by which a module reaches one of the banned, through modules of ours, as a chain of files."""
        found: list[str] = []
        chains: dict[str, tuple[str, ...]] = {start: (self.path_of(start),)}
        pending = [start]
        while pending:
            module = pending.pop()
            hits = [item for item in self.imports[module] if _within(item.name, banned)]
            found += [f"{' -> '.join(chains[module])}:{item.line} imports {item.name}" for item in hits]
            for target in self._loaded_by(module):
                if target not in chains:
                    chains[target] = (*chains[module], self.path_of(target))
                    pending.append(target)
        return found

    def _is_pure(self, module: str) -> bool:
        path = self.path_of(module)
        return "core" in path.split("/")[:-1] or any(path.startswith(f"{folder}/") for folder in PURE_FOLDERS)

    def _loaded_by(self, module: str) -> Iterator[str]:
        """The modules of ours that importing this one runs: what it names, and the `__init__` of every parent."""
        for name in [module, *(item.name for item in self.imports[module])]:
            parts = name.split(".")
            for length in range(2, len(parts) + 1):
                if (candidate := ".".join(parts[:length])) in self.files:
                    yield candidate

    def _imports(self, module: str, file: Path) -> Iterator[Import]:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        if file.name == "__init__.py":
            # What a door names is loaded when it is asked for: by those who ask.
            tree.body = [node for node in tree.body if not is_door(node)]
        typed = {id(inner) for node in tree.body if is_door(node) for inner in ast.walk(node)}
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        randoms = {f"{name}.random" for name in _numpy_names(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (Import(alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(package, node)
                yield Import(base, node.lineno, id(node) in typed)
                for alias in node.names:
                    home = self.doors.get(base, {}).get(alias.name)
                    name = f"{home}.{alias.name}" if home else f"{base}.{alias.name}"
                    yield Import(name, node.lineno, id(node) in typed)
            elif isinstance(node, ast.Call) and (name := _imported_by_call(node)):
                yield Import(name, node.lineno)
            elif isinstance(node, ast.Attribute) and ast.unparse(node) in randoms:
                yield Import("numpy.random", node.lineno)


#: What an `__init__` imports for its door.
DOOR_IMPORTS = (
    *("from typing import TYPE_CHECKING", "TYPE_CHECKING = False"),
    "from headrace.pipeline.door import door",
)


def is_door(node: ast.stmt) -> bool:
    """Whether a statement of an `__init__` is its door: what type checkers read, and what others may ask for."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def door(tree: ast.Module) -> dict[str, str]:
    """What a room names for others, as type checkers read it: each name, and the module that has it."""
    found: dict[str, str] = {}
    for node in (inner for block in tree.body if is_door(block) for inner in block.body):  # type: ignore[attr-defined]
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update({alias.asname or alias.name: node.module for alias in node.names})
    return found


def _may(folder: str, parts: list[str]) -> bool:
    """Whether a folder may import `headrace.<parts>`: the whole folder that they lie in, or that module of it."""
    return parts[0] in MAY_IMPORT[folder] or ".".join(parts[:2]) in MAY_IMPORT[folder]


def _within(name: str, modules: set[str]) -> bool:
    """Whether a dotted name is one of the modules or lies in one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _absolute(package: str, node: ast.ImportFrom) -> str:
    """The module that a `from` names, with its leading dots resolved."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parents, *([node.module] if node.module else [])])


def _imported_by_call(node: ast.Call) -> str | None:
    """The module of `import_module("...")` or `__import__("...")`, where the name is written out."""
    function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if function in {"import_module", "__import__"} and node.args and isinstance(node.args[0], ast.Constant):
        return str(node.args[0].value)
    return None


def _numpy_names(tree: ast.AST) -> set[str]:
    """What a file calls numpy."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import))
    return {alias.asname or alias.name for node in imports for alias in node.names if alias.name == "numpy"}


@functools.cache
def the_house() -> House:
    """This house, read once in a process."""
    return House(ROOT)


@pytest.fixture(scope="module")
def house() -> House:
    return the_house()


def test_no_folder_imports_one_that_it_may_not(house: House) -> None:
    assert house.breaches() == []


def test_no_pure_module_reaches_io_a_clock_or_randomness(house: House) -> None:
    assert house.impurities() == []


def test_a_task_starts_without_grpc_and_torch(house: House) -> None:
    assert house.ways("headrace.worker.task.task", {"grpc", "torch"}) == []


def test_the_loader_without_its_torch_edge_needs_no_torch(house: House) -> None:
    assert house.ways("headrace.loader.loader", {"torch"}) == []


def test_every_folder_with_code_has_its_line_in_the_table() -> None:
    beside = {"tests", "benchmarks", "examples", "docs", "systemd"}
    folders = {path.parent.name for path in ROOT.glob("*/*.py") if not path.parent.name.startswith(".")}
    assert folders - beside == set(MAY_IMPORT)


def test_every_pure_folder_has_modules(house: House) -> None:
    pure = [house.path_of(module) for module in house.pure_modules()]
    assert all(any(path.startswith(f"{folder}/") for path in pure) for folder in PURE_FOLDERS)
    assert {"controller/core/__init__.py", "worker/core/__init__.py", "store/ledger/core/__init__.py"} <= set(pure)


def test_no_folder_imports_one_that_stands_below_it_in_the_table() -> None:
    order = list(MAY_IMPORT)
    assert [name for name in order for other in MAY_IMPORT[name] if order.index(other) >= order.index(name)] == []


def test_importing_a_folder_makes_its_door_and_nothing_else(house: House) -> None:
    full: list[str] = []
    for module, file in house.files.items():
        body = ast.parse(file.read_text(encoding="utf-8")).body if file.name == "__init__.py" else []
        text = [node for node in body if not is_door(node) and ast.unparse(node) not in DOOR_IMPORTS]
        # The face finds the rooms of a checkout; tests/api holds what importing it costs.
        if module != "headrace" and any(
            not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in text
        ):
            full.append(house.path_of(module))
    assert full == [], "an __init__.py holds a docstring and the door of its room"


def plant(root: Path, **files: str) -> House:
    """A house of a few files, `store__log="import time"` for store/log.py; empty `__init__`s are added."""
    for name, text in files.items():
        file = root / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        (file.parent / "__init__.py").touch()
    return House(root)


@pytest.mark.parametrize(
    "text",
    [
        "import headrace.worker.daemon",
        "from headrace.worker import daemon",
        "from headrace import worker",
        "from ..worker import daemon",
        "def late():\n    from headrace.worker.daemon import run",
        "import importlib\nimportlib.import_module('headrace.worker.daemon')",
        "import worker",
    ],
)
def test_a_planted_hole_in_a_wall_is_found(tmp_path: Path, text: str) -> None:
    assert plant(tmp_path, store__log=text).breaches()


def test_a_permitted_import_is_no_hole(tmp_path: Path) -> None:
    planted = plant(tmp_path, worker__daemon="from headrace.store import log", store__log="from . import errors")
    assert planted.breaches() == []


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "from time import monotonic",
        "import asyncio.events",
        "import numpy.random",
        "from numpy import random",
        "import numpy as np\nnp.random.default_rng(1)",
        "def late():\n    import socket",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import grpc",
    ],
)
def test_a_planted_impurity_in_a_core_is_found(tmp_path: Path, text: str) -> None:
    assert plant(tmp_path, worker__core__supervisor=text).impurities()


def test_an_impurity_two_modules_away_is_found_with_its_way(tmp_path: Path) -> None:
    planted = plant(
        tmp_path,
        controller__core__planner="from headrace.store import fold",
        store__fold="from headrace.store.helper import now",
        store__helper="import time",
    )
    assert "controller/core/planner.py -> store/fold.py -> store/helper.py:1 imports time" in planted.impurities()


def test_an_impurity_in_the_init_of_a_parent_is_found(tmp_path: Path) -> None:
    planted = plant(tmp_path, controller__core__planner="", worker__daemon="import time")
    assert planted.impurities() == []
    (tmp_path / "controller" / "__init__.py").write_text("import time", encoding="utf-8")
    assert House(tmp_path).impurities()


def test_the_table_in_the_docs_is_that_of_the_walls() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    said: dict[str, set[str]] = {}
    for folder, may in re.findall(r"^\| `(\w+)/` \|.*\| ([^|]+) \|$", page, re.MULTILINE):
        words = set(re.findall(r"\w+", may))
        if words <= {"nothing", "of", "ours"}:
            said[folder] = set()
        else:
            said[folder] = set(said) - words if "all" in words else words
    assert said == MAY_IMPORT
