"""Who this process is, in words that let another process of the same host prove that it is dead."""

from __future__ import annotations

import os
import pathlib
import socket
from collections.abc import Mapping
from typing import Any

_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
#: The field of /proc/<pid>/stat that holds the start in clock ticks since boot, counted behind the name (proc(5)).
_START_FIELD = 19


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
