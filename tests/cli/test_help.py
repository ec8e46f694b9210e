"""`--help`: complete, of one layout, and its examples are commands that there are."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from headrace.cli.help import COLUMNS_MAX, EXAMPLES, SECTIONS, help_of, reference
from headrace.cli.main import app

ROOT = Path(__file__).parents[2]
TOP: Any = get_command(app)


def commands(group: Any = TOP, path: str = "") -> dict[str, Any]:
    found = {}
    for name, command in group.commands.items():
        called = f"{path} {name}".strip()
        found |= commands(command, called) if hasattr(command, "commands") else {called: command}
    return found


ALL = commands()


def test_every_command_stands_in_one_section() -> None:
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted(named) == sorted(TOP.commands)


def test_every_command_has_examples_and_no_other_has() -> None:
    assert set(EXAMPLES) - {""} == set(ALL)


@pytest.mark.parametrize("example", [line for lines in EXAMPLES.values() for line in lines])
def test_an_example_is_what_its_command_takes(example: str) -> None:
    name, *words = shlex.split(example.replace("\\\n", " "))
    assert name == "headrace"
    command = TOP
    path = [name]
    while hasattr(command, "commands"):
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    command.make_context(" ".join(path), words)


@pytest.mark.parametrize("path", sorted(ALL))
def test_an_option_says_what_it_is_and_what_its_value_is_called(path: str) -> None:
    for param in ALL[path].params:
        assert param.help, param.name
        assert param.metavar or getattr(param, "is_flag", False), param.name


@pytest.mark.parametrize("columns", [40, 80, COLUMNS_MAX])
@pytest.mark.parametrize("path", sorted(ALL))
def test_no_line_but_an_example_is_longer_than_the_terminal(path: str, columns: int) -> None:
    before, _, _ = help_of(ALL[path], f"headrace {path}", columns).partition("\nExamples:")
    usage, *lines = before.splitlines()
    assert usage.startswith(f"Usage: headrace {path}")
    assert [line for line in lines if len(line) > columns] == []


def test_the_reference_is_what_help_says() -> None:
    assert (ROOT / "docs/reference/commands.md").read_text() == reference(TOP), "make reference"
