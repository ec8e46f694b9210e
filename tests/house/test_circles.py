"""No two modules need each other, and no two rooms do: a reader can take them in one order.

What a function imports late counts too. What stands behind TYPE_CHECKING does not: a contract may name who meets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.house.test_walls import House, plant, the_house

#: Imports that close a circle, within a function, and what that saves those who never call it. They may only shrink.
LATE = {
    ("cli/ui/progress_lines.py", "cli/ui/progress.py"): "rich, where no terminal is",
    ("stages/tokenizer/engine_choice.py", "stages/tokenizer/engine_check.py"): "both engines, where they were compared",
    ("store/datasets/dataset.py", "store/datasets/verify.py"): "numpy and Arrow, where nothing is verified",
}


def needs(house: House) -> Iterator[tuple[str, str]]:
    """Each module with each other that it imports, through doors; a door needs nobody."""
    rooms = {module for module, file in house.files.items() if file.name == "__init__.py"}
    modules = house.files.keys() - rooms
    for module in modules:
        for name in (item.name for item in house.imports[module] if not item.typed):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != module:
                yield house.path_of(module), house.path_of(target)


def circles(edges: set[tuple[str, str]]) -> set[str]:
    """Those that need themselves by way of others: what is left without those that need nobody, or nobody needs."""
    nodes = {node for edge in edges for node in edge}
    while True:
        left = {(a, b) for a, b in edges if a in nodes and b in nodes}
        kept = {a for a, _ in left} & {b for _, b in left}
        if kept == nodes:
            return kept
        nodes = kept


def rooms_of(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The same between folders."""
    folders = {(str(Path(a).parent), str(Path(b).parent)) for a, b in edges}
    return {(a, b) for a, b in folders if a != b}


@pytest.fixture(scope="module")
def edges() -> set[tuple[str, str]]:
    return set(needs(the_house()))


def test_no_two_modules_need_each_other(edges: set[tuple[str, str]]) -> None:
    assert circles(edges - LATE.keys()) == set()


def test_no_two_rooms_need_each_other(edges: set[tuple[str, str]]) -> None:
    assert circles(rooms_of(edges)) == set()


def test_each_late_import_still_closes_a_circle(edges: set[tuple[str, str]]) -> None:
    idle = [late for late in LATE if late[0] not in circles((edges - LATE.keys()) | {late})]
    assert idle == [], "the ratchet turns: take what was mended off the list"


@pytest.mark.parametrize(
    "files",
    [
        {"store__log": "from headrace.store.fold import Fold", "store__fold": "from headrace.store.log import Log"},
        {
            "store__log": "def late():\n    from headrace.store import fold",
            "store__fold": "from headrace.store.log import Log",
        },
        {
            "store__log": "from headrace.store.fold import a",
            "store__fold": "from headrace.store.files.disk import b",
            "store__files__disk": "from headrace.store.log import c",
        },
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, files: Mapping[str, str]) -> None:
    assert circles(set(needs(plant(tmp_path, **files)))) >= {"store/log.py", "store/fold.py"}


def test_who_is_needed_by_many_stands_in_no_circle(tmp_path: Path) -> None:
    house = plant(
        tmp_path,
        store__log="from headrace.store.fold import Fold",
        store__fold="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from headrace.store.log import Log",
        worker__daemon="from headrace.store.log import Log\nfrom headrace.store.fold import Fold",
    )
    assert circles(set(needs(house))) == set()
