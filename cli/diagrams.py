"""Draws the state diagrams of a document from the transition tables of the code.

    python -m headrace.cli.diagrams docs/architecture.md

A document asks for a diagram with `<!-- states: module:TABLE -->`; what stands between that line and the next
`<!-- end -->` is replaced. A table is a dict from (state, turn) to state, both Enums, as every core has one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from pathlib import Path

Table = Mapping[tuple[Enum, Enum], Enum]

_NO_WORD = re.compile(r"\W+")
_BLOCK = re.compile(
    r"(?P<open><!-- states: (?P<source>[\w.]+:\w+) -->\n)(?:(?!<!--).)*(?P<close><!-- end -->)", re.DOTALL
)


def redraw(text: str) -> str:
    """The document with each of its diagrams drawn anew. Raises ImportError, AttributeError for an unknown table."""

    def block(match: re.Match[str]) -> str:
        return f"{match['open']}```mermaid\n{diagram(load(match['source']))}```\n{match['close']}"

    return _BLOCK.sub(block, text)


def sources(text: str) -> list[str]:
    """The tables that a document draws, as `module:TABLE`."""
    return [match["source"] for match in _BLOCK.finditer(text)]


def load(source: str) -> Table:
    """The table of that name."""
    module, _, name = source.partition(":")
    table: Table = getattr(import_module(module), name)
    return table


def diagram(table: Table) -> str:
    """A Mermaid state diagram: it begins in the table's first state and ends in those that nothing leaves."""
    labels: dict[tuple[Enum, Enum], list[str]] = {}
    for (state, turn), target in table.items():
        labels.setdefault((state, target), []).append(str(turn.value))
    lines = ["stateDiagram-v2", f"    [*]-->{_name(next(iter(table))[0])}"]
    for (state, target), turns in labels.items():
        lines.append(f"    {_name(state)}-->{_name(target)}: {'/'.join(turns)}")
    left = {state for state, _ in table}
    ends = dict.fromkeys(target for target in table.values() if target not in left)
    lines.extend(f"    {_name(state)}-->[*]" for state in ends)
    return "\n".join(lines) + "\n"


def _name(state: Enum) -> str:
    """A state as Mermaid takes it: one word."""
    return _NO_WORD.sub("_", str(state.value))


def main(arguments: list[str]) -> int:
    """Redraw the files named; 2 without one."""
    if not arguments:
        print("usage: python -m headrace.cli.diagrams FILE.md ...", file=sys.stderr)
        return 2
    for path in map(Path, arguments):
        old = path.read_text(encoding="utf-8")
        if (new := redraw(old)) != old:
            path.write_text(new, encoding="utf-8")
            print(f"{path}: redrawn")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
