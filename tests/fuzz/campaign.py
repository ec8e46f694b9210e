"""A campaign that goes on: what each target had of the fuzzer, over sessions and commits, in one JSON file.

A target's turn is short, and the target whose decoder had the least processor time comes next: whenever a session ends,
the time is spread evenly, and the next one goes on from there. Time counts for a decoder as long as the text of its
modules is the same. The corpus of a target (`.fuzz`) goes on too; its inputs are run again at the start of each turn,
and counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.harness import Report, Target

ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Entry:
    """What a target had of the fuzzer at one commit."""

    target: str
    commit: str
    #: Of the text of its modules, as hexadecimal digits.
    decoder: str
    #: Of the processor.
    seconds: float = 0.0
    executions: int = 0
    #: Executions that reached the interesting state by an input that is no seed.
    fresh: int = 0
    #: Branches seen by the fuzzer in one turn, at most.
    edges: int = 0
    #: Names of the inputs that broke it.
    crashes: tuple[str, ...] = ()

    def add(self, report: Report) -> None:
        """Add a turn."""
        self.seconds = round(self.seconds + report.seconds, 1)
        self.executions += report.executions
        self.fresh += report.fresh
        self.edges = max(self.edges, report.edges)
        if report.account:
            self.crashes = (*self.crashes, Path(report.crash).name or "not saved")


class Campaign:
    """The record, and whose turn it is."""

    def __init__(self, path: Path, targets: Iterable[Target], seconds: float, turn_s: float, commit: str) -> None:
        self._path = path
        self._targets = {target.name: target for target in targets}
        self._decoders = {name: decoder_of(target) for name, target in self._targets.items()}
        self._seconds = seconds
        self._turn_s = turn_s
        self._commit = commit
        self._entries = load(path)
        #: Who is running, and who broke in this session.
        self._out: set[str] = set()

    def next(self) -> tuple[Target, float] | None:
        """The target that had the least, and the seconds of its turn; None where each has had its time."""
        had = {name: self.had(name) for name in self._targets if name not in self._out}
        name = min(had, key=lambda name: had[name], default="")
        if not name or had[name] >= self._seconds:
            return None
        self._out.add(name)
        return self._targets[name], min(self._turn_s, self._seconds - had[name])

    def had(self, name: str) -> float:
        """The seconds that a target's decoder, as it is now, had in all sessions that reached the interesting state."""
        key = name, self._decoders[name]
        return sum(entry.seconds for entry in self._entries if (entry.target, entry.decoder) == key and entry.fresh)

    def ended(self, report: Report) -> None:
        """Record a turn; a target that broke, or reached nothing, has no other one in this session."""
        name = report.target
        if not report.account and report.fresh:
            self._out.remove(name)
        key = (name, self._commit, self._decoders[name])
        entry = next((it for it in self._entries if (it.target, it.commit, it.decoder) == key), None)
        if entry is None:
            entry = Entry(*key)
            self._entries.append(entry)
        entry.add(report)
        save(self._path, self._entries)


def load(path: Path) -> list[Entry]:
    """The entries of a record, none where there is no file."""
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["entries"]
    return [Entry(**{**row, "crashes": tuple(row["crashes"])}) for row in rows]


def save(path: Path, entries: list[Entry]) -> None:
    """Replace the record, an entry a line."""
    rows = sorted((asdict(entry) for entry in entries), key=lambda row: (row["target"], row["commit"], row["decoder"]))
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    text = f'{{\n "benchmark": "fuzz",\n "command": "make fuzz",\n "entries": [\n  {lines}\n ]\n}}\n'
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def decoder_of(target: Target) -> str:
    """A digest of the text of a target's modules."""
    digest = hashlib.sha256()
    for module in target.modules:
        path = ROOT / (module.removeprefix("headrace.").replace(".", "/") + ".py")
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()[:12]


def commit_now() -> str:
    """The commit of this tree, with a plus where files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60).stdout.strip()
