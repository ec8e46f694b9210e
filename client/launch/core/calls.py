"""What a plan is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: What a controller needs of a cluster's folder, and an operator.
CONTROLLER_FILES = ("cluster.json", "cluster.key", "authority.pem", "authority.key", "controller.pem", "controller.key")
OPERATOR_FILES = ("cluster.json", "authority.pem", "operator.pem", "operator.key")


@dataclass(frozen=True, slots=True)
class LaunchInput:
    """What only the shell knows; words in brackets for a plan that is only shown."""

    cluster: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys({*CONTROLLER_FILES, *OPERATOR_FILES}, ""))
    token: str = "<a token>"  # noqa: S105 - shown in its place
    #: The text of the pipeline file, and this release.
    pipeline: str = "<the pipeline file>"
    version: str = "<version>"
    #: The program that starts actors.
    driver: str = "ray_driver.py"


@dataclass(frozen=True, slots=True)
class File:
    """A file of the launch's folder, for its owner alone."""

    name: str
    text: str
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class Call:
    """A program that is run, and what it reads. The last line that it prints is kept under the name `keep`."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    what: str = ""
    keep: str = ""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Files first; then each step of calls, which run together; then `run` here, and when it has ended, the end."""

    files: tuple[File, ...]
    start: tuple[tuple[Call, ...], ...]
    run: tuple[str, ...] = ()
    #: What to say when all has started; `{folder}` is the launch's.
    said: str = ""
