"""The man pages: one of each command, with all that its help says, and no text of ours is an order to roff."""

from typing import Any

import pytest
from typer.main import get_command

from headrace.cli.help import tables_of
from headrace.cli.main import app
from headrace.cli.manual import manual

TOP: Any = get_command(app)
PAGES = manual(TOP, "1.2.3")
#: The orders that a page gives roff.
ORDERS = {".TH", ".SH", ".TP", ".B", ".nf", ".fi"}


def commands(group: Any = TOP, path: str = "headrace") -> dict[str, Any]:
    found = {f"{path}.1": group} if path == "headrace" or not hasattr(group, "commands") else {}
    for name, command in getattr(group, "commands", {}).items():
        found |= commands(command, f"{path}-{name}")
    return found


def test_each_command_has_a_page() -> None:
    assert set(PAGES) == set(commands())


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_names_all_that_help_names(name: str) -> None:
    shown = PAGES[name].replace("\\-", "-")
    missing = [row for _, rows in tables_of(commands()[name]) for row, _ in rows if f"\\fB{row}\\fR" not in shown]
    assert missing == []


def test_no_line_of_text_is_an_order_to_roff() -> None:
    lines = {line for page in PAGES.values() for line in page.splitlines() if line.startswith((".", "'"))}
    assert {line.split()[0] for line in lines} == ORDERS


def test_the_page_of_the_program_names_all_others() -> None:
    named = PAGES["headrace.1"].replace("\\-", "-")
    assert [name for name in PAGES if name != "headrace.1" and f"\\fB{name[:-2]}\\fR(1)" not in named] == []
