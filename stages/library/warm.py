"""Compiles the loops of filters, dedup and decontamination: `python -m headrace.stages.library.warm [NAME...]`.

A fresh machine has no machine code, and making all of it takes forty seconds of a core. A run begins with that, in
processes of its own, while its controller and its tasks start; these wait for what is not ready when they need it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Self

from headrace.daemon import be_killed_with
from headrace.pipeline import PipelineError, Stage
from headrace.stages.text.machine import COMPILER_ADVICE, NEEDS_COMPILER, can_compile, is_kept, is_prepared
from headrace.store.files import CACHE_ADVICE

_DEDUP = re.compile(r"\bdedup(?!\.repeats|[-_]lines|[-_]pa(?:ragraphs|ssages))")
#: Loops by name, and by which words a pipeline file or a stage's target asks for them.
LOOPS: Mapping[str, re.Pattern[str]] = {
    "repetition": re.compile(r"gopher_repetition|duplicate_lines|GopherRepetition"),
    "gopher": re.compile(r"gopher_quality|GopherQuality"),
    "c4": re.compile(r"c4_quality|C4Quality"),
    "fineweb": re.compile(r"fineweb_quality|FinewebQuality"),
    "keys": _DEDUP,
    "index": _DEDUP,
    "spans": re.compile(r"dedup_lines|dedup_paragraphs|dedup_passages|RepeatRemover"),
    "decontamination": re.compile(r"decontaminat"),
}
#: Processes that compile: with more of them most would wait for the words, which all filters count.
PROCESSES_MAX = 2
#: Seconds after which it is said again what is compiled.
AGAIN_S = 10.0
#: Seconds between two looks at what is compiled, for those that wait.
LOOK_S = 0.2


class Compiling:
    """The processes that compile what a run needs and this machine has not yet."""

    def __init__(self) -> None:
        self._began_at = 0.0
        self._names: list[str] = []
        self._shown: list[str] | None = None
        self._shown_at = 0.0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._warned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def begin(self, text: str, *, certain: bool = False) -> None:
        """Compile what a pipeline file with this text needs, or what is named in it, unless that is done or begun.

        Raises PipelineError where that cannot be compiled on this host, and it is `certain` that it is needed.
        """
        asked = [name for name, words in LOOPS.items() if name not in self._names and words.search(text)]
        missing = [name for name in asked if not is_prepared(name)]
        if not missing:
            return
        if not can_compile():
            if certain:
                raise PipelineError(f"{NEEDS_COMPILER}: {COMPILER_ADVICE}")
            return
        if not is_kept():
            self._warned = True
            return
        self._began_at = self._began_at or time.monotonic()
        self._names += missing
        self._processes += [_start(order) for order in _orders(missing)]

    def news(self) -> list[str]:
        """What has changed since the last call, a line each."""
        if self._warned:
            self._warned = False
            return [f"machine code cannot be kept, each task compiles for itself, up to half a minute: {CACHE_ADVICE}"]
        if not self._names:
            return []
        if self._shown == []:
            return []
        now = time.monotonic()
        left = [name for name in self._names if not is_prepared(name)]
        if left == self._shown and now < self._shown_at + AGAIN_S:
            return []
        first, again = self._shown is None, left == self._shown
        self._shown, self._shown_at = left, now
        if not left:
            return [f"compiled {', '.join(self._names)} in {now - self._began_at:.1f} s"]
        done = f"{len(self._names) - len(left)} of {len(self._names)} done"
        why = ", once on this machine" if first else ""
        after = f" after {now - self._began_at:.0f} s" if again else ""
        return [f"compiling {', '.join(left)}{why}; {done}{after}"]

    def finish(self, say: Callable[[str], object]) -> None:
        """Wait until what was begun is compiled, or no process is left that does it; `say` what is new meanwhile."""
        while True:
            for line in self.news():
                say(line)
            running = [process for process in self._processes if process.poll() is None]
            if not running or all(map(is_prepared, self._names)):
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].wait(LOOK_S)
        for line in self.news():
            say(line)


def _orders(names: Sequence[str]) -> list[Sequence[str]]:
    """What each process compiles, one after the other.

    The second begins with the last: what both need is compiled by one, for which the other would wait.
    """
    return [names, names[::-1]][: min(PROCESSES_MAX, len(os.sched_getaffinity(0)), len(names))]


def _start(names: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "headrace.stages.library.warm", "--for", str(os.getpid()), *names]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)  # noqa: S603 - our own module


def compile_loops(names: Sequence[str] = tuple(LOOPS)) -> None:
    """Compile those that are not in the cache, as the stages do."""
    for name in names:
        for compile_ in _compilers(name):
            compile_()


def _compilers(name: str) -> Iterator[Callable[[], object]]:
    # What other loops need takes up to half a second to import.
    if name == "decontamination":
        from headrace.stages.decontamination import compile_search

        yield compile_search
        return
    if name == "spans":
        from headrace.stages.dedup.spans import compile_spans

        yield compile_spans
        return
    from headrace.stages.library import filters
    from headrace.stages.runtime import build_stage

    stages: dict[str, Callable[[], Sequence[Stage]]] = {
        "repetition": lambda: [filters.gopher_repetition()],
        "gopher": lambda: [filters.gopher_quality()],
        "c4": lambda: [filters.c4_quality()],
        "fineweb": lambda: [filters.fineweb_quality()],
        "keys": lambda: filters.dedup()[:1],
        "index": lambda: filters.dedup()[1:],
    }
    for stage in stages[name]():
        yield partial(build_stage, stage, {})


def main() -> None:
    """Compile what is named, or all, and say how long it took. `--for PID` compiles alone, until that process ends."""
    names = sys.argv[1:]
    alone = names[:1] == ["--for"]
    if alone:
        be_killed_with(int(names[1]))
        names = names[2:]
    if unknown := set(names) - set(LOOPS):
        raise SystemExit(f"no loops are called {', '.join(sorted(unknown))}; there are {', '.join(LOOPS)}")
    # A tenth of the time, in a process that ends when it is done.
    gc.disable()
    begun = time.monotonic()
    names = names or list(LOOPS)
    others = [] if alone else [_start(order) for order in _orders(names)[1:]]
    compile_loops(names)
    # All is compiled: they have nothing left to do.
    for other in others:
        other.kill()
        other.wait()
    print(f"the loops are compiled ({time.monotonic() - begun:.1f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()
