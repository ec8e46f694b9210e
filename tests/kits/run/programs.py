"""Programs that others have, played by scripts: each notes its words and what it reads, and does what a test says."""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: A name that would run something in a shell that took it for its own words.
EVIL = 'it\'s $(touch canary) `touch canary`;"touch canary" & %j\\ @name@ é'
_NOTES = """#!/bin/bash
noted=$(mktemp {notes}/XXXXXX)
printf '%s\\0' {name} "$@" > "$noted"
"""


class Programs:
    """A folder of programs for a PATH, and what they were called with."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.notes = folder / "bin", folder / "notes"
        self.bin.mkdir()
        self.notes.mkdir()

    def add(self, name: str, script: str = "", *, into: Path | None = None) -> Path:
        """A program that does what a bash script says, after it has noted its words."""
        path = (into or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_NOTES.format(notes=self.notes, name=name) + script + "\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def calls(self, name: str) -> list[list[str]]:
        """The words of each call of one program, sorted."""
        found = [note.read_bytes().decode().split("\0")[:-1] for note in self.notes.iterdir()]
        return sorted(words[1:] for words in found if words and words[0] == name)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "SLURM"))}
        return {**kept, "PATH": f"{self.bin}:/usr/bin:/bin", **more}
