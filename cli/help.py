"""What `--help` prints: one layout for every command, with examples; docs/reference/commands.md from the same facts.

Every command of the application is made of `application()`, so that none looks otherwise.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from headrace.cli.examples import EXAMPLES
from headrace.client import Interrupted

#: The commands in the order in which `headrace --help` and docs/reference/commands.md have them.
SECTIONS: Mapping[str, Sequence[str]] = {
    "Run on this machine": ("quickstart", "run"),
    "Serve": ("controller", "worker", "cluster"),
    "Steer what a controller runs": (
        "apply",
        "status",
        "top",
        "logs",
        "pause",
        "resume",
        "scale",
        "move",
        "relink",
        "drain",
        "stop",
        "cancel",
        "clear",
    ),
    "Datasets": ("dataset", "tokenizer"),
    "Prove": ("simulate", "chaos"),
    "This program": ("version",),
}
#: Columns of a line, at most: longer ones are hard to read.
COLUMNS_MAX = 100
COLUMNS_MIN = 40
#: Columns of a name, beyond which its meaning begins on the next line.
NAME_COLUMNS_MAX = 30
_UNSAID: Sequence[object] = (None, "", 0, False, [], ())
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Command(TyperCommand):
    """A command whose help is ours, and which is interrupted as every other: its parser would end it without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error

    def get_help(self, ctx: Any) -> str:
        return help_of(self, str(ctx.command_path), _columns())


class _Group(TyperGroup):
    """A group of commands whose help is ours."""

    def get_help(self, ctx: Any) -> str:
        return help_of(self, str(ctx.command_path), _columns())


class Application(typer.Typer):
    """A group of commands that print our help."""

    def __init__(self, help: str, **settings: Any) -> None:  # noqa: A002 - typer's own name
        super().__init__(cls=_Group, help=help, no_args_is_help=True, rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        """Make a function a command, as typer does."""
        return super().command(name, cls=_Command, **settings)


def help_of(command: Any, path: str, columns: int) -> str:
    """The help of a command or a group, `path` being how it is called; no line is longer than `columns`."""
    lines = [f"Usage: {usage_of(command, path)}", ""]
    lines += _wrapped(" ".join(str(command.help or "").split()), columns, 2)
    for title, rows in tables_of(command):
        lines += ["", f"{title}:", *_table(rows, columns)]
    examples = EXAMPLES.get(path.removeprefix("headrace").strip(), ())
    if examples:
        lines += ["", "Examples:", *(f"  {line}" for example in examples for line in example.splitlines())]
    if path == "headrace":
        lines += ["", "`headrace COMMAND --help` says more of each, with examples; docs/guide/cli.md says the rest."]
    return "\n".join(lines)


def usage_of(command: Any, path: str) -> str:
    """How a command is called, in a line."""
    if getattr(command, "commands", None) is not None:
        return f"{path} COMMAND ..."
    return " ".join([path, *(_argument(param) for param in _arguments(command)), "[OPTIONS]"])


def tables_of(command: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The parts of a command's help: each with its title, and a name and a meaning a row."""
    commands: dict[str, Any] = getattr(command, "commands", None) or {}
    sections = SECTIONS if set(commands) >= set(SECTIONS["Serve"]) else {"Commands": tuple(commands)}
    for title, names in sections.items() if commands else ():
        yield title, [(name, _summary(commands[name])) for name in names]
    if arguments := [(_argument(param), str(param.help or "")) for param in _arguments(command)]:
        yield "Arguments", arguments
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    rows = [(_option(param), _meaning(param)) for param in options]
    yield "Options", [*rows, ("--help", "Show this, and end.")]


def reference(command: Any) -> str:
    """docs/reference/commands.md."""
    parts = [
        (
            "# Every command\n\n"
            "What `--help` prints, written by `make reference`. [The guide](../guide/cli.md) says what each is for.\n"
        )
    ]
    for title, names in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        for name in names:
            top = command.commands[name]
            for path, each in ((f"{name} {sub}", each) for sub, each in getattr(top, "commands", {}).items()):
                parts.append(_chapter(each, f"headrace {path}"))
            if not hasattr(top, "commands"):
                parts.append(_chapter(top, f"headrace {name}"))
    return "".join(parts)


def _chapter(command: Any, path: str) -> str:
    text = help_of(command, path, COLUMNS_MAX)
    return f"\n### {path}\n```\n{text}\n```\n"


def _summary(command: Any) -> str:
    """The first sentence of what a command is."""
    text = " ".join(str(command.help or "").split())
    return text.partition(". ")[0].rstrip(".") + "."


def _arguments(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "argument"]


def _argument(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    name += "..." if param.nargs == -1 else ""
    return name if param.required else f"[{name}]"


def _option(param: Any) -> str:
    names = ", ".join(sorted(param.opts, key=len))
    if param.secondary_opts:
        return f"{names} / {', '.join(param.secondary_opts)}"
    return names if param.is_flag else f"{names} {param.metavar or param.name.upper()}"


def _meaning(param: Any) -> str:
    text = str(param.help or "")
    if param.required:
        return f"{text} [required]"
    default = param.default
    if default in _UNSAID or param.is_flag:
        return text
    return f"{text} [default: {default}]"


def _table(rows: Sequence[tuple[str, str]], columns: int) -> Iterator[str]:
    width = max((len(name) for name, _ in rows if len(name) <= NAME_COLUMNS_MAX), default=NAME_COLUMNS_MAX)
    for name, meaning in rows:
        lines = _wrapped(meaning, columns, width + 4)
        if len(name) > width:
            yield f"  {name}"
        elif lines:
            lines[0] = f"  {name:<{width}}  {lines[0].lstrip()}"
        else:
            lines = [f"  {name}"]
        yield from lines


def _wrapped(text: str, columns: int, indent: int) -> list[str]:
    space = " " * indent
    return textwrap.wrap(text, columns, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)


def _columns() -> int:
    return max(COLUMNS_MIN, min(COLUMNS_MAX, shutil.get_terminal_size((COLUMNS_MAX, 24)).columns))


def main() -> None:
    """Write the reference to the file that the command line names."""
    from typer.main import get_command

    from headrace.cli.main import app

    Path(sys.argv[1]).write_text(reference(get_command(app)))


if __name__ == "__main__":
    main()
