"""Man pages and docs/reference/commands.md, from what `--help` says: `make man` and `make reference` write them."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headrace.cli.help import EXAMPLES, SECTIONS, reference, tables_of, usage_of

#: The first line of each page: its name and section, no date, and what it came with.
HEAD = '.TH "{title}" "1" "" "Headrace {version}" "Headrace"'


def manual(command: Any, release: str) -> dict[str, str]:
    """The pages by file name, `headrace.1` and one of each command, in roff's man macros."""
    pages = {"headrace.1": _page(command, "headrace", release, _all_names(command))}
    for path, each in _commands(command, "headrace"):
        name = path.replace(" ", "-")
        pages[f"{name}.1"] = _page(each, path, release, ["headrace"])
    return pages


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, each in group.commands.items():
        called = f"{path} {name}"
        if hasattr(each, "commands"):
            yield from _commands(each, called)
        else:
            yield called, each


def _all_names(command: Any) -> list[str]:
    """The pages of all commands, in the order of the sections."""
    order = {name: number for number, name in enumerate(name for names in SECTIONS.values() for name in names)}
    found = sorted(_commands(command, ""), key=lambda item: order[item[0].split()[0]])
    return [f"headrace{path}".replace(" ", "-") for path, _ in found]


def _page(command: Any, path: str, release: str, others: Sequence[str]) -> str:
    text = " ".join(str(command.help or "").split())
    summary = text.partition(". ")[0].rstrip(".")
    title = path.replace(" ", "-")
    lines = [
        HEAD.format(title=title.upper(), version=release),
        ".SH NAME",
        f"{_plain(title)} \\- {_plain(summary)}",
        ".SH SYNOPSIS",
        f".B {_plain(path)}",
        _plain(usage_of(command, path).removeprefix(path).strip()),
        ".SH DESCRIPTION",
        *_paragraph(text),
    ]
    for heading, rows in tables_of(command):
        lines.append(f'.SH "{heading.upper()}"')
        for name, meaning in rows:
            lines += [".TP", f"\\fB{_plain(name)}\\fR", *_paragraph(meaning or "\\&")]
    if examples := EXAMPLES.get(path.removeprefix("headrace").strip(), ()):
        lines += [".SH EXAMPLES", ".nf", *(_plain(line) for each in examples for line in each.splitlines()), ".fi"]
    lines += ['.SH "SEE ALSO"', ",\n".join(f"\\fB{_plain(name)}\\fR(1)" for name in others)]
    return "\n".join(lines) + "\n"


def _paragraph(text: str) -> list[str]:
    return [line if line == "\\&" else _plain(line) for line in textwrap.wrap(text, 100, break_on_hyphens=False)]


#: What roff reads as more than itself.
_MEANINGS: Mapping[int, str] = str.maketrans(
    {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"}
)


def _plain(text: str) -> str:
    """The text, of which roff reads nothing as an order."""
    plain = text.translate(_MEANINGS)
    return f"\\&{plain}" if plain.startswith(".") else plain


def main() -> None:
    """Write the pages into the folder that the command line names, or the reference into the file `NAME.md`."""
    from typer.main import get_command

    from headrace.cli.main import app

    command, folder = get_command(app), Path(sys.argv[1])
    if folder.suffix == ".md":
        folder.write_text(reference(command), encoding="utf-8")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("headrace*.1"):
        old.unlink()
    for name, page in manual(command, version("headrace")).items():
        (folder / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
