"""What the controller's process is: in words that let another of the same host prove that it is dead; and its garbage.

CPython looks for cycles after every 700 new objects, and through all objects whenever they have grown by a quarter. A
plan of 100,000 tasks and a ledger of a million ranges are large trees without a cycle, and were looked through again
and again while they grew: 0.83 s instead of 0.51 s for the plan (benchmarks/scale.py).
"""

from __future__ import annotations

import gc
import os
import pathlib
import socket
from collections.abc import Mapping
from typing import Any

_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
#: The field of /proc/<pid>/stat that holds the start in clock ticks since boot, counted behind the name (proc(5)).
_START_FIELD = 19
#: New objects between two looks for cycles; looks at the youngest between two at the older, and at all.
GARBAGE_OBJECTS, GARBAGE_OLDER, GARBAGE_ALL = 100_000, 20, 20


def look_for_cycles_seldom() -> None:
    """Have the process look for cyclic garbage after so many new objects; all other garbage goes at once, as ever."""
    gc.set_threshold(GARBAGE_OBJECTS, GARBAGE_OLDER, GARBAGE_ALL)


def identity() -> dict[str, Any]:
    """Host, boot, pid and start of this process: no two processes share all four."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "boot": _boot(), "pid": pid, "start": _start(pid) or 0}


def is_alive(other: Mapping[str, Any]) -> bool | None:
    """Whether that process lives; None where this host cannot know."""
    if not other.get("boot") or other["boot"] != _boot():
        return None
    if not _sees_all_processes():
        return None
    return _start(int(other["pid"])) == int(other["start"])


def _boot() -> str:
    try:
        namespace = os.readlink("/proc/self/ns/pid")
        return f"{_BOOT_ID.read_text().strip()} {namespace}"
    except OSError:
        return ""


def _sees_all_processes() -> bool:
    """With /proc mounted hidepid, another user's process looks dead; then nothing is proved."""
    return pathlib.Path("/proc/1/stat").exists()


def _start(pid: int) -> int | None:
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in ("Z", "X") else int(fields[_START_FIELD])
