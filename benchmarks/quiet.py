"""Measuring on a machine that others use too: what they took meanwhile, and measuring again where it was too much."""

import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")

#: A measurement is made again where other processes took more than this part of what all cores had to give.
OTHERS_SHARE_MAX = 0.05
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Meanwhile:
    """While something was measured: seconds of the clock, processor time of ours and of everybody else."""

    seconds: float
    cpu_s: float
    others_s: float
    #: How many measurements before were too disturbed to count.
    again: int = 0

    @property
    def others_share(self) -> float:
        """What others took, as a part of what all cores had to give."""
        return self.others_s / (self.seconds * CORES)


def watched(measure: Callable[[], T]) -> tuple[T, Meanwhile]:
    """Measure once. Processes that `measure` does not wait for count among the others."""
    start, before, machine_before = time.perf_counter(), cpu_seconds(), machine_seconds()
    result = measure()
    seconds, spent = time.perf_counter() - start, cpu_seconds() - before
    return result, Meanwhile(seconds, spent, max(0.0, machine_seconds() - machine_before - spent))


def undisturbed(measure: Callable[[], T], again_max: int) -> tuple[T, Meanwhile]:
    """Measure, and again where others took more than OTHERS_SHARE_MAX; the least disturbed one if they always do."""
    tries: list[tuple[T, Meanwhile]] = []
    while len(tries) <= again_max:
        tries.append(watched(measure))
        if tries[-1][1].others_share <= OTHERS_SHARE_MAX:
            break
    result, meanwhile = min(tries, key=lambda item: item[1].others_share)
    return result, replace(meanwhile, again=len(tries) - 1)


def cpu_seconds() -> float:
    """Of this process and of all that it has waited for, theirs included."""
    times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in times)


def machine_seconds() -> float:
    """Of all processes and the kernel since the start of the machine; not idle, and not waiting for a disk."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
