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
