"""The tests: where they lie, what they are called, and that their kits are imported like anything else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.test_walls import MAY_IMPORT, ROOT

#: Folders whose tests are of no single room: whole runs, several hosts, faults of live runs, and tests of the tree.
ACROSS = {"run", "run/inputs", "hosts", "live", "house", "fuzz", "mutants"}
#: Words of a name behind `test_`.
WORDS_MAX = 12


def stray(root: Path) -> list[str]:
    """The folders with tests that stand neither for a room nor for what goes across rooms."""
    folders = {file.parent.relative_to(root / "tests").as_posix() for file in (root / "tests").rglob("test_*.py")}
    rooms = {folder for folder in folders if folder.split("/")[0] in MAY_IMPORT and (root / folder).is_dir()}
    return sorted(folders - rooms - ACROSS)


def names(text: str) -> Iterator[str]:
    """The tests of a file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name


def too_long(found: Iterator[str]) -> list[str]:
    return [name for name in found if name.count("_") > WORDS_MAX]


def test_each_folder_of_tests_mirrors_a_room() -> None:
    assert stray(ROOT) == []


def test_a_name_has_at_most_twelve_words() -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert [name for file in files for name in too_long(names(file.read_text(encoding="utf-8")))] == []


def test_no_file_changes_where_python_looks_for_modules() -> None:
    changed = re.compile(r"^\s*sys\.path\.(insert|append|extend)\(.*__file__", re.MULTILINE)
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert [file.name for file in files if changed.search(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(("folder", "is_stray"), [("store/s3", False), ("store/attic", True), ("attic", True)])
def test_a_folder_without_a_room_is_found(tmp_path: Path, folder: str, is_stray: bool) -> None:
    (tmp_path / "store" / "s3").mkdir(parents=True)
    (tmp_path / "tests" / folder).mkdir(parents=True)
    (tmp_path / "tests" / folder / "test_it.py").touch()
    assert stray(tmp_path) == ([folder] if is_stray else [])


def test_a_name_of_thirteen_words_is_found() -> None:
    short, long = (f"test_{'_'.join('w' * count)}" for count in (WORDS_MAX, WORDS_MAX + 1))
    assert too_long(names(f"def {short}(): ...\nclass A:\n    def {long}(self): ...\n")) == [long]
