"""`headrace run` as it is given most often, understood without the parser of all commands.

That parser and what it imports take 0.1 s of processor time, while a run's first processes want the cores. What is not
understood here, wrong usage included, is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client import RunOptions

_FLAGS = {"--json": ("json", True), "--fuse": ("fuse", True), "--no-fuse": ("fuse", False), "--amend": ("amend", True)}
_PARAMETER = ("-p", "--parameter")


@dataclass(slots=True)
class PlainRun:
    """A run with no options but these."""

    pipeline: Path
    parameters: list[str] = field(default_factory=list[str])
    flags: dict[str, bool] = field(default_factory=lambda: {"json": False, "fuse": True, "amend": False})

    def __call__(self) -> int:
        """Run it; the exit code."""
        from headrace.cli.commands import run_file

        return run_file(self.pipeline, self.parameters, self.options, as_json=self.flags["json"])

    def options(self) -> RunOptions:
        """How it is to be run."""
        from headrace.cli.options import make_options

        return make_options(self.flags["amend"], self.flags["fuse"], 0)


def plain_run(arguments: Sequence[str]) -> Callable[[], int] | None:
    """The run that this command line asks for; None where it is not one of the usual ones."""
    if not arguments or arguments[0] != "run":
        return None
    files: list[Path] = []
    found = PlainRun(Path())
    rest = iter(arguments[1:])
    for item in rest:
        if item in _FLAGS:
            name, value = _FLAGS[item]
            found.flags[name] = value
        elif item in _PARAMETER:
            given = next(rest, "")
            if given.startswith("-") or "=" not in given:
                return None
            found.parameters.append(given)
        elif item.startswith("-") or not item:
            return None
        else:
            files.append(Path(item))
    if len(files) != 1:
        return None
    found.pipeline = files[0]
    return found
