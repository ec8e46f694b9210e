"""The doors of rooms: a package names what others may use, and loads a module when something of it is asked for."""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def door(room: str) -> Callable[[str], Any]:
    """The `__getattr__` of the package `room`.

    The room names what others may use once, as type checkers read it: by imports under `if TYPE_CHECKING`. They run one
    by one, when their name is asked for, so importing a room imports none of its modules.
    """
    names: dict[str, tuple[str, str]] = {}

    def find(name: str) -> Any:
        if not names:
            names.update(named(ast.parse(Path(str(sys.modules[room].__file__)).read_text(encoding="utf-8"))))
        if name not in names:
            raise AttributeError(f"{room} has no {name} for others")
        home, own = names[name]
        held = vars(importlib.import_module(home)) if home != room else {}
        return held[own] if own in held else importlib.import_module(f"{home}.{own}")

    return find


def named(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """What an `__init__` names for others: each name, the module that it comes from, and its name there."""
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (node.module or "", alias.name) for node in imports for alias in node.names}
