"""What a fuzz target is, and what the runner counts of it.

A target wraps one decoder. It proves something only where the fuzzer gets behind the decoder's checks: so each says
which state is the interesting one (a whole, accepted value), the runner counts how often that was reached by bytes that
nobody prepared, and each has a canary: a value that no seed gives, which a fuzzer that works finds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import resource
import struct
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from mmap import mmap
from pathlib import Path
from random import Random
from typing import Any

#: Memory of one fuzzing process, in MiB: a decoder that takes more for one of these small inputs is at fault.
RSS_MIB_MAX = 1536
#: Time for one input, in seconds: a machine may be busy, but no decoder works on some KiB for so long.
INPUT_S_MAX = 20
#: Executions and processor time after which a canary that was not found is given up.
CANARY_EXECUTIONS_MAX = 1_000_000
CANARY_CPU_S_MAX = 90
#: Seconds between two looks at the processor time of a target's children.
LOOK_S = 1.0
#: Characters of a crash's account that a report repeats.
ACCOUNT_MAX = 4000


class CanarySang(Exception):  # noqa: N818 - named after what happened
    """The fuzzer found the canary."""


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder, to be fuzzed.

    `run` gives the decoded value where the interesting state was reached, None where the decoder refused the bytes with
    an error of its own, and raises where an invariant is broken: whatever it raises is a crash. Values are compared
    with `==`. What stands in the way of the fuzzer (a checksum, a seal) `run` repairs in the input, besides
    trying it as it is.
    """

    name: str
    #: The modules whose decoders these are.
    modules: tuple[str, ...]
    run: Callable[[bytes], object | None]
    #: A small corpus, made by our own encoders; `run` takes each of it.
    seeds: Callable[[], Iterable[bytes]]
    #: What value is the canary; None for any that no seed gives.
    canary: Callable[[Any], bool] | None = None
    #: Changes an input within its structure; half of all mutations are its, the rest are libFuzzer's.
    mutate: Callable[[bytes, Random], bytes] | None = None
    #: What libFuzzer puts into inputs: words of the format.
    words: tuple[bytes, ...] = ()
    #: Bytes of an input, and of the largest seed if that has more.
    bytes_max: int = 1024


class Tally:
    """Counts of one fuzzing process, in memory that outlives it."""

    _FIELDS = struct.Struct("<5Q")

    def __init__(self) -> None:
        self._memory = mmap(-1, self._FIELDS.size)
        self.executions = self.reached = self.fresh = self.canary_at = self.cpu_ms = 0

    def save(self) -> None:
        """Say it to the process that watches."""
        counted = (self.executions, self.reached, self.fresh, self.canary_at, self.cpu_ms)
        self._FIELDS.pack_into(self._memory, 0, *counted)

    def load(self) -> None:
        """Take what the fuzzing process said."""
        counted = self._FIELDS.unpack_from(self._memory)
        self.executions, self.reached, self.fresh, self.canary_at, self.cpu_ms = counted


class Watched:
    """A target with its tally: what libFuzzer calls with each input."""

    def __init__(
        self,
        target: Target,
        tally: Tally,
        folder: Path,
        seconds: float,
        executions_max: int,
        *,
        ends_with_canary: bool,
    ) -> None:
        self._target = target
        self._tally = tally
        self._folder = folder
        self._seconds = seconds
        self._executions_max = executions_max
        self._ends_with_canary = ends_with_canary
        self._look_at = self._children_s = 0.0
        self.seeds = list(dict.fromkeys(bytes(seed) for seed in target.seeds()))
        values = [target.run(seed) for seed in self.seeds]
        assert self.seeds, f"{target.name} has no seeds"
        assert all(value is not None for value in values), f"{target.name}: a seed is refused"
        self._known = frozenset(self.seeds)
        self._sings = target.canary or (lambda value: value not in values)
        assert not any(self._sings(value) for value in values), f"{target.name}: a seed is the canary"

    def __call__(self, data: bytes) -> None:
        tally = self._tally
        tally.executions += 1
        try:
            value = self._target.run(data)
            if value is not None:
                self._reached(data, value)
        except BaseException:
            # libFuzzer saves what ends the process by a signal, and knows nothing of exceptions.
            (self._folder / f"crash-{hashlib.sha1(data).hexdigest()}").write_bytes(data)
            raise
        finally:
            self._save()
        if self._is_over():
            # At the end of its time there is nothing to clean up, and libFuzzer would report on itself.
            os._exit(0)

    def _reached(self, data: bytes, value: object) -> None:
        tally = self._tally
        tally.reached += 1
        if data in self._known:
            return
        tally.fresh += 1
        if not tally.canary_at and self._sings(value):
            tally.canary_at = tally.executions
            if self._ends_with_canary:
                raise CanarySang(f"the canary sings: {value!r:.200}")

    def _save(self) -> None:
        # Of the processor, and so the same on a busy machine.
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at, self._children_s = now + LOOK_S, children_s()
        self._tally.cpu_ms = int((time.process_time() + self._children_s) * 1000)
        self._tally.save()

    def _is_over(self) -> bool:
        tally = self._tally
        if tally.cpu_ms < self._seconds * 1000:
            return False
        given_up = tally.executions >= self._executions_max or tally.cpu_ms >= CANARY_CPU_S_MAX * 1000
        return bool(tally.canary_at) or given_up


#: What Python says of itself before another program begins.
PROGRAMS = frozenset({"os.exec", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"})


def no_program(event: str, details: tuple[object, ...]) -> None:
    """An audit hook: an input may name any program, so that none is begun but Python, in which some decoders run."""
    if event in PROGRAMS and details[:1] != (sys.executable,):
        raise RuntimeError(f"a target begins another program: {details!r:.200}")


def children_s() -> float:
    """Processor time of the children of this process, in seconds: some decoders run in one."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total, mine = ended.ru_utime + ended.ru_stime, os.getpid()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_bytes().rpartition(b")")[2].split()[1]) == mine:
                # The clock of another process, as clock_getcpuclockid(3) names it.
                total += time.clock_gettime(~int(path.parent.name) << 3 | 2)
    return total


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one target."""

    target: str
    executions: int
    #: Of the processor.
    seconds: float
    per_second: int
    #: Executions that reached the interesting state, and those of them whose input was no seed.
    reached: int
    fresh: int
    #: The execution that found the canary; 0 for none.
    canary_at: int
    edges: int
    #: The input that broke the target, saved; empty for none.
    crash: str
    #: What was said about it.
    account: str

    @property
    def problem(self) -> str:
        """Why the run of this target failed; empty where it did not."""
        if self.account:
            return f"it broke; the input is {self.crash or 'not known'}"
        if not self.fresh:
            return "the interesting state was never reached"
        return "" if self.canary_at else "the canary was not found"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "problem": self.problem}


_EDGES = re.compile(r"cov: (\d+)")


def report_of(target: Target, tally: Tally, folder: Path, status: int, log: str) -> Report:
    """The report on a process that has ended with `status`, with its inputs in `folder` and its words in `log`."""
    tally.load()
    saved = sorted(str(path) for kind in ("crash", "timeout", "oom") for path in folder.glob(f"{kind}-*"))
    edges = _EDGES.findall(log)
    return Report(
        target.name,
        tally.executions,
        tally.cpu_ms / 1000,
        round(tally.executions * 1000 / max(tally.cpu_ms, 1)),
        tally.reached,
        tally.fresh,
        tally.canary_at,
        int(edges[-1]) if edges else 0,
        saved[-1] if saved and status else "",
        f"exit status {status}\n{log[-ACCOUNT_MAX:]}" if status else "",
    )
