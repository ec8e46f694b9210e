"""The doors of rooms: what of a package others may use, and that nobody comes in elsewhere.

A room is a package; its door is its `__init__`, which names what others may use and loads it when it is asked for. A
`core` within a room has the room's door. What is not named is private. Tests of a room may look into it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.door import named
from tests.house.test_walls import DOOR_IMPORTS, House, is_door, plant, the_house

#: What may use names of rooms without being one, beside tests.
USERS = ("benchmarks", "examples")
#: An import in a page for users.
_SAID = re.compile(r"^ *from (headrace[\w.]*) import ([\w, ]+)$", re.MULTILINE)


def room_of(house: House, module: str) -> str:
    """The room whose door names what a module has."""
    package = module if house.files[module].name == "__init__.py" else module.rpartition(".")[0]
    return package.rpartition(".")[0] if package.endswith(".core") and package.count(".") > 2 else package


@functools.cache
def imports_of(file: Path) -> list[tuple[int, str, str]]:
    """Each `from headrace... import name` of a file: the line, the module, the name."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    if file.name == "__init__.py":
        rest = [node for node in tree.body if ast.unparse(node) not in DOOR_IMPORTS]
        tree.body = [node for node in rest if not is_door(node) or file.parent.name == "api"]
    return [
        (node.lineno, str(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level and f"{node.module}.".startswith("headrace.")
        for alias in node.names
    ]


def holes(house: House) -> list[str]:
    """Every import of another room's module that does not go through its door."""
    found: list[str] = []
    for module, file in house.files.items():
        for line, base, name in imports_of(file):
            target = f"{base}.{name}" if f"{base}.{name}" in house.files else base
            if target not in house.files or target.endswith(".__main__") or base.startswith("headrace.protos"):
                continue
            room = room_of(house, target)
            through = base == room and name in house.doors.get(room, {}) and room != "headrace"
            if room != room_of(house, module) and not through:
                found.append(f"{house.path_of(module)}:{line} takes {name} of {base}, not from the door of {room}")
    return found


def unused(house: House) -> list[str]:
    """Names at a door that nobody outside the room takes from it."""
    taken: set[str] = set()
    files = [*house.files.values(), *(file for user in USERS for file in (house.root / user).rglob("*.py"))]
    for file in files:
        taken |= {f"{base}.{name}" for _, base, name in imports_of(file)}
    for page in (house.root / "README.md", *(house.root / "docs").rglob("*.md")):
        for base, names in _SAID.findall(page.read_text(encoding="utf-8") if page.exists() else ""):
            taken |= {f"{base}.{name.strip()}" for name in names.split(",")}
    return [
        f"{room}: {name}"
        for room, names in house.doors.items()
        for name in names
        if f"{room}.{name}" not in taken and room != "headrace"
    ]


@pytest.fixture(scope="module")
def house() -> House:
    return the_house()


def test_nobody_enters_a_room_but_through_its_door(house: House) -> None:
    assert holes(house) == []


def test_every_name_at_a_door_is_taken_by_somebody(house: House) -> None:
    assert unused(house) == []


def test_a_door_reads_of_its_lines_what_a_parser_reads(house: House) -> None:
    doors = {module: named(house.files[module].read_text(encoding="utf-8")) for module in house.doors}
    assert {module: {name: home for name, (home, _) in names.items()} for module, names in doors.items()} == house.doors


def test_what_a_door_names_is_there(house: House) -> None:
    missing = [
        f"{module}.{name}"
        for module, names in house.doors.items()
        for name in names
        if not hasattr(importlib.import_module(module), name)
    ]
    assert missing == []


def test_a_name_that_no_door_has_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"headrace\.store has no nothing for others"):
        importlib.import_module("headrace.store").nothing  # noqa: B018


def planted(root: Path, door_names: str, **files: str) -> House:
    house = plant(root, **files)
    (root / "store" / "__init__.py").write_text(
        f"from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from headrace.store.log import {door_names}\n",
        encoding="utf-8",
    )
    return House(house.root)


@pytest.mark.parametrize(
    "text",
    [
        "from headrace.store.log import Log",
        "def late():\n    from headrace.store.log import Log",
        "from headrace.store.log import _hidden",
        "from headrace.store import log",
    ],
)
def test_a_planted_hole_beside_a_door_is_found(tmp_path: Path, text: str) -> None:
    house = planted(tmp_path, "Log as Log", store__log="class Log: ...", worker__daemon=text)
    assert holes(house)


def test_who_comes_through_the_door_makes_no_hole(tmp_path: Path) -> None:
    house = planted(
        tmp_path, "Log as Log", store__log="class Log: ...", worker__daemon="from headrace.store import Log"
    )
    assert holes(house) == []
    assert unused(house) == []


def test_a_room_that_takes_something_of_the_face_is_found(tmp_path: Path) -> None:
    house = plant(tmp_path, store__log="from headrace import Pipeline", api__runs="")
    assert holes(house) == ["store/log.py:1 takes Pipeline of headrace, not from the door of headrace"]


def test_the_face_takes_what_it_names_from_doors(tmp_path: Path) -> None:
    house = planted(tmp_path, "Log as Log", store__log="class Log: ...", api__runs="")
    (tmp_path / "api" / "__init__.py").write_text("from headrace.store.log import Log", encoding="utf-8")
    assert holes(House(house.root))


def test_a_name_that_nobody_takes_is_found(tmp_path: Path) -> None:
    house: Any = planted(tmp_path, "Log as Log", store__log="class Log: ...", worker__daemon="")
    assert unused(house) == ["headrace.store: Log"]
