"""Lists of records, as JSON Lines: what some commands write, and what `headrace dataset retract --list` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.cli.ui import number
from headrace.client import CliError


def write_list(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a line for each record. Raises CliError."""
    try:
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error


#: The largest list that is read, in bytes.
LIST_BYTES_MAX = 1 << 30


def read_list(path: Path) -> list[str]:
    """The ids of a list of records: JSON Lines with an `id` each. Raises CliError."""
    try:
        if path.stat().st_size > LIST_BYTES_MAX:
            raise CliError(f"{path} has {number(path.stat().st_size)} bytes; the limit is {number(LIST_BYTES_MAX)}")
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read the list {path}: {error}") from error
    ids: list[str] = []
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            name = json.loads(line)["id"]
        except (ValueError, LookupError, TypeError, RecursionError):
            name = None
        if not isinstance(name, str) or not name:
            raise CliError(f'{path}, line {place}: no record; a line of the list is {{"id": "..."}}')
        ids.append(name)
    return ids
