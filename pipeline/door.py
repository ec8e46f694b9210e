"""The doors of rooms: a package names what others may use, and loads a module when something of it is asked for."""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # that of `typing` takes longer to import than all rooms together
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


#: What `headrace-loader` leaves out, and its extra that has it.
LOADER_EXTRAS = {"minio": "s3", "urllib3": "s3", "certifi": "s3", "pyarrow": "trace", "numba": "numba"}


def door(room: str) -> Callable[[str], Any]:
    """The `__getattr__` of the package `room`.

    The room names what others may use once, as type checkers read it: by imports under `if TYPE_CHECKING`. They run one
    by one, when their name is asked for, so importing a room imports none of its modules. `__names__` is all of them,
    and `__all__`, for `import *`, those that nothing is missing for here.
    """
    names: dict[str, tuple[str, str]] = {}

    def find(name: str) -> Any:
        if not names:
            with open(str(sys.modules[room].__file__), encoding="utf-8") as file:
                names.update(named(file.read()))
        if name == "__names__":
            return sorted(names)
        if name == "__all__":
            return [one for one in sorted(names) if is_there(one)]
        if name not in names:
            raise AttributeError(f"{room} has no {name} for others")
        home, own = names[name]
        try:
            if home != room:
                module = importlib.import_module(home)
                try:
                    return getattr(module, own)
                except AttributeError:
                    pass  # a module of that package
            return importlib.import_module(f"{home}.{own}")
        except ModuleNotFoundError as error:
            if (how := remedy(error.name or "")) is None:
                raise
            raise ImportError(f"{room}.{name} needs {error.name}: {how}", name=error.name) from error

    def is_there(name: str) -> bool:
        try:
            find(name)
        except (ImportError, OSError):  # such as a library in C that its module does not find
            return False
        return True

    return find


class Late:
    """A module that is imported when something of it is asked for. For type checkers an import stands beside it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def remedy(missing: str) -> str | None:
    """How a module that is missing is installed; None for one that nothing of ours needs."""
    top = missing.partition(".")[0]
    if top == "headrace":
        return "pip install headrace" if missing.count(".") == 1 else None
    extra = LOADER_EXTRAS.get(top)
    return None if extra is None else f"pip install 'headrace-loader[{extra}]', or headrace for all of it"


def named(text: str) -> dict[str, tuple[str, str]]:
    """What an `__init__` names for others: each name, the module that it comes from, and its name there.

    Lines as the formatter leaves them. They are not parsed, since each process of a run does this some twenty times.
    """
    found: dict[str, tuple[str, str]] = {}
    home = ""
    for line in text.partition("\nif TYPE_CHECKING:\n")[2].splitlines():
        if line and not line.startswith(" "):
            break
        words = line.partition("#")[0].strip()
        if words.startswith("from "):
            home, _, words = words.removeprefix("from ").partition(" import ")
        for item in words.strip("()").split(","):
            own, _, name = item.strip().partition(" as ")
            if own:
                found[name or own] = (home, own)
    return found
