"""The memory of what a task's command stages have started: it counts as the task's own.

A command is started by a keeper, a child of the task that all below it fall to when their parents end
(`headrace.stages.commands.keeper`). So the keepers' descendants are all that a command has started, wherever it went.
The sum of what each has in memory is an upper bound, which is quickly read: what forks share counts in each. Only where
that bound is over the limit, each page is divided by those that have it (Pss), which takes the kernel longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

#: Processes of a task's commands that are looked at; what more there are has memory that is not seen.
PROCESSES_MAX = 4096
#: The file by which a keeper is known among the children of a task: the task's own code started it with that.
_KEEPER = b"/stages/commands/keeper.py"
#: What cannot be given back by forgetting a file's pages: bytes of the process, and of memory that it shares.
_QUICK = ("RssAnon:", "RssShmem:")
_EXACT = ("Pss_Anon:", "Pss_Shmem:")


def command_bytes(task: int, allowed: int) -> int:
    """Resident bytes of all that the commands of a task have started; exact only where they may exceed `allowed`."""
    processes = _below_keepers(task)
    bound = sum(_sum_of(f"/proc/{pid}/status", _QUICK) for pid in processes)
    if bound <= allowed:
        return bound
    return min(bound, sum(_sum_of(f"/proc/{pid}/smaps_rollup", _EXACT) for pid in processes))


def _below_keepers(task: int) -> list[int]:
    found = [pid for pid in _children(task) if _is_keeper(pid)]
    for pid in found:
        if len(found) >= PROCESSES_MAX:
            break
        found.extend(_children(pid))
    return found[:PROCESSES_MAX]


def _children(pid: int) -> Iterator[int]:
    """The children of all threads of a process; none of one that is gone."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())


def _is_keeper(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return any(word.endswith(_KEEPER) for word in file.read(1 << 14).split(b"\0"))
    return False


def _sum_of(path: str, fields: tuple[str, ...]) -> int:
    """The sum of these fields, which are in KiB, as bytes."""
    total = 0
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(fields):
                total += int(line.split()[1]) << 10
    return total
