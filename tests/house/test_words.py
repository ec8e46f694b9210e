"""Words that gave way to the field's: where each may still stand. The table may only shrink.

The glossary in docs/architecture.md holds the words that the code uses. A word is looked for as a part of an identifier
(`keep_logbook`, `Logbook`) or of a module's name, in the folders of the house.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.test_walls import MAY_IMPORT, ROOT

#: The word, and the folders in which it still stands.
STILL: dict[str, set[str]] = {
    "as before": set(),
    "asker": set(),
    "attendance": set(),
    "attends": set(),
    "births": set(),
    "cables": set(),
    "condemned": set(),
    "cradle": set(),
    "crew": set(),
    "forked": {"daemon", "loader"},
    "hands": set(),
    "joint": set(),
    "joints": set(),
    "knock": set(),
    "leaning": set(),
    "lenient": set(),
    "logbook": set(),
    "meaning": {"cli"},
    "metrics page": set(),
    "nursery": set(),
    "obedience": set(),
    "passed over": set(),
    "patience": set(),
    "pen": set(),
    "roll": {"cli"},
    "roster": set(),
    "shelf": set(),
    "shelve": set(),
    "steering": set(),
    "strokes": set(),
    "tally": set(),
    "taste": set(),
    "telling": {"pipeline"},
    "terse": set(),
    "weather": set(),
    "wish": set(),
    "wishes": set(),
}
#: Classes of one name that no reader meets together: they are of other processes, and no module uses both.
TWICE = {
    "Asked": {"chaos/live/faults/remote.py", "chaos/sim/checks/observed.py", "cli/commands/bench.py"},
    "Batch": {"loader/batch/fields.py", "stages/runtime/batch.py"},
    "Cluster": {
        *("chaos/live/scenario/scenario.py", "chaos/sim/nodes/parts.py"),
        "controller/core/cluster/applications.py",
    },
    "Cut": {"loader/order/plan.py", "stages/sources/objects/units.py"},
    "Model": {"cli/demo/demo.py", "stages/quality/models/models.py"},
    "Process": {"chaos/live/faults/processes.py", "client/launch/ray_driver.py"},
    "Source": {"loader/dataset/sources.py", "stages/runtime/contract.py"},
    "Spans": {"loader/cache/spans.py", "stages/dedup/spans/spans.py"},
    "Timeline": {"loader/order/plan.py", "page/core/board.py"},
    "World": {"chaos/sim/world/world.py", "loader/world.py"},
}
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def identifiers(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case _:
                pass


def parts(name: str) -> str:
    """An identifier as words between spaces: ` keep logbook `."""
    return f" {' '.join(part.lower() for part in _PART.findall(name))} "


def found(root: Path, words: set[str]) -> dict[str, set[str]]:
    """The folders in which each word stands."""
    where: dict[str, set[str]] = {word: set() for word in words}
    for folder in MAY_IMPORT:
        for file in (root / folder).rglob("*.py"):
            if "_pb2" in file.name:
                continue
            names = {file.stem, *identifiers(ast.parse(file.read_text(encoding="utf-8")))}
            text = "".join(parts(name) for name in names)
            for word in words:
                if f" {word} " in text:
                    where[word].add(folder)
    return where


def test_words_that_gave_way_come_back_nowhere() -> None:
    back = {word: folders - STILL[word] for word, folders in found(ROOT, set(STILL)).items()}
    assert {word: folders for word, folders in back.items() if folders} == {}, "docs/architecture.md has the word"


def shared_classes(root: Path) -> dict[str, set[str]]:
    """The public classes of one name in several modules, with those."""
    where: dict[str, set[str]] = {}
    for file in (file for folder in MAY_IMPORT for file in (root / folder).rglob("*.py") if "_pb2" not in file.name):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, set()).add(file.relative_to(root).as_posix())
    return {name: files for name, files in where.items() if len(files) > 1}


def test_one_name_is_one_class() -> None:
    assert shared_classes(ROOT) == TWICE, "give it a name of its own; what was mended leaves the table"


def test_a_class_of_a_name_that_another_has_is_found(tmp_path: Path) -> None:
    for folder in ("store", "loader"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one.py").write_text("class Same: ...\nclass _Own: ...\n")
    assert shared_classes(tmp_path) == {"Same": {"store/one.py", "loader/one.py"}}


def test_a_word_that_comes_back_is_found(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "keeper.py").write_text("class OldLogbook:\n    def keep(self, passed_over: int): ...\n")
    where = found(tmp_path, {"logbook", "passed over", "nursery"})
    assert where == {"logbook": {"store"}, "passed over": {"store"}, "nursery": set()}


def test_each_word_of_the_glossary_stands_once() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    words = [word for line in re.findall(r"^- \*\*(.*?)\*\*:", page, re.MULTILINE) for word in line.split(", ")]
    assert len(words) > 80
    assert len(set(words)) == len(words)
    assert not set(words) & set(STILL)
