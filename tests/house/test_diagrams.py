"""The state diagrams in docs/architecture.md are those of the tables, and none is missing."""

from __future__ import annotations

import ast
from enum import Enum
from pathlib import Path

from headrace.cli.diagrams import diagram, main, redraw, sources
from tests.house.test_walls import MAY_IMPORT

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
DESIGN = ROOT / "docs" / "design"
GUIDE = ROOT / "docs" / "guide"
PAGES = (
    PAGE,
    GUIDE / "dedup.md",
    *(DESIGN / name for name in ("dedup-index.md", "surgery.md", "scaling.md", "queues.md")),
)


class Lamp(Enum):
    DARK = "dark"
    LIT = "lit"
    BROKEN = "broken"


class Turn(Enum):
    PRESSED = "pressed"
    FELL = "fell"
    OVERHEATED = "overheated"


LAMP: dict[tuple[Enum, Enum], Enum] = {
    (Lamp.DARK, Turn.PRESSED): Lamp.LIT,
    (Lamp.LIT, Turn.PRESSED): Lamp.DARK,
    (Lamp.LIT, Turn.FELL): Lamp.BROKEN,
    (Lamp.LIT, Turn.OVERHEATED): Lamp.BROKEN,
}


def tables() -> set[str]:
    """Every literal transition table of the pure cores, as `module:TABLE`."""
    found: set[str] = set()
    for path in (path for folder in MAY_IMPORT for path in (ROOT / folder).glob("**/core/**/*.py")):
        module = ".".join(("headrace", *path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target).endswith("TRANSITIONS"):
                found.add(f"{module}:{ast.unparse(node.target)}")
    return found


def test_the_diagrams_are_those_of_the_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == redraw(text), "a table has changed: run `make diagrams`"


def test_every_table_is_drawn() -> None:
    assert tables()
    assert {name for page in PAGES for name in sources(page.read_text(encoding="utf-8"))} == tables()


def test_turns_between_the_same_states_share_an_arrow() -> None:
    assert diagram(LAMP).splitlines() == [
        "stateDiagram-v2",
        "    [*]-->dark",
        "    dark-->lit: pressed",
        "    lit-->dark: pressed",
        "    lit-->broken: fell/overheated",
        "    broken-->[*]",
    ]


def test_the_command_redraws_a_file_and_leaves_the_rest_of_it_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- states: headrace.worker.core.supervisor:TRANSITIONS -->\nold\n<!-- end -->\nafter\n")
    assert main([str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- states")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "stateDiagram-v2" in text
    assert "old" not in text


def test_the_command_without_a_file_is_wrong_usage() -> None:
    assert main([]) == 2
