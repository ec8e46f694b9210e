"""The run with faults: starts the command as a supervisor would, fires the schedule, and notes what happened.

One thread looks at the ledger, the command and the clock every few milliseconds. The command is started again at once
whenever it ends without being done, as systemd does with Restart=always; so a later run may meet processes of an
earlier one that are frozen or have not noticed yet. A command that fails although nothing was done to it is a finding.
"""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.chaos.live.clusters import AttachedCluster, LocalCluster
from headrace.chaos.live.faults import (
    TOOLED,
    Begun,
    Handle,
    HostReach,
    Marked,
    Process,
    Tools,
    hold,
    matching,
)
from headrace.chaos.live.scenario import (
    NETWORK,
    NOTHING_YET,
    SLOW_RUNS_S,
    SLOW_TURN_S,
    FaultTimeline,
    Fired,
    Kind,
    Planned,
    ScenarioOutcome,
    Start,
    Unit,
)
from headrace.store import ObjectStore

LOOK_S = 0.005
#: Seconds between the end of a command and its next start, doubled up to the second while it fails at once.
START_AGAIN_S = 0.1
START_AGAIN_S_MAX = 2.0
#: A command that lived this long did not fail at once, seconds.
LIVED_S = 5.0
#: Seconds in which the processes of a run must be gone once its command is done.
REST_S = 15.0
#: Seconds between two looks for a target that is not there yet.
_SEARCH_S = 0.02


@dataclass(slots=True)
class _Lasting:
    """A fault that lasts: the processes that are held, or what a tool has begun, and when it ends."""

    fired: Fired
    handles: list[Handle]
    until_s: float
    stopped: bool = True
    begun: Begun | None = None


@dataclass(slots=True)
class _Running:
    """The command of now."""

    process: subprocess.Popen[bytes]
    start: Start
    fired_before: int
    #: Whether processes of an earlier start were still there.
    met_others: bool


@dataclass(slots=True)
class Conductor:
    """Carries out one schedule on one command, from its first start to its end: one round."""

    marked: Marked
    dataset: pathlib.Path | ObjectStore
    logs: pathlib.Path
    schedule: Sequence[Planned]
    ways: Mapping[str, Sequence[str]]
    limit_s: float
    tools: Tools = field(default_factory=Tools)
    #: The daemons that the command talks to; None for a run that brings its own, or a cluster of others.
    local: LocalCluster | None = None
    #: The processes that faults affect; None: those of the command and the local cluster.
    subjects: AttachedCluster | None = None
    #: The rounds before this one: times, commits and firings are counted on from them.
    earlier: ScenarioOutcome = NOTHING_YET
    #: The workers on other hosts, of a cluster that lives.
    reach: HostReach | None = None
    _timeline: FaultTimeline = field(init=False)
    _waiting: list[Planned] = field(init=False)
    _fired: list[Fired] = field(default_factory=list[Fired])
    _lasting: list[_Lasting] = field(default_factory=list[_Lasting])
    _starts: list[Start] = field(default_factory=list[Start])
    _zero: float = 0.0
    _search_at: float = 0.0
    _failures: int = 0

    def __post_init__(self) -> None:
        self._timeline = FaultTimeline(self.dataset)
        self._waiting = list(self.schedule)
        self._zero = time.monotonic() - self.earlier.seconds
        self.logs.mkdir(parents=True, exist_ok=True)

    def run(self) -> ScenarioOutcome:
        """See the command through to its end, under all faults."""
        answer: dict[str, Any] = {}
        problem = ""
        running = self._start()
        try:
            while not problem:
                self._turn()
                if running.process.poll() is None:
                    problem = self._overdue()
                    self._pause(running)
                    continue
                code = self._ended(running)
                if code == 0:
                    answer = json.loads((self.logs / f"{running.start.number}.out").read_bytes())
                    if answer.get("complete"):
                        break
                problem = self._unprovoked(running) or self._overdue()
                if not problem:
                    running = self._start_again(running)
            left = () if problem else self._rest()
        finally:
            self._let_go()
            self.marked.kill()
            running.process.wait()
            if self.local is not None:
                self.local.reap()
        return self._outcome(answer, left, problem)

    # -- the command --

    def _now(self) -> float:
        return time.monotonic() - self._zero

    def _start(self) -> _Running:
        met_others = bool(self._starts) and bool(self.marked.alive())
        start = Start(len(self.earlier.starts) + len(self._starts) + 1, self._now())
        self._starts.append(start)
        with (
            open(self.logs / f"{start.number}.out", "wb") as out,
            open(self.logs / f"{start.number}.err", "wb") as errors,
        ):
            return _Running(self.marked.start(out, errors), start, len(self._fired), met_others)

    def _start_again(self, ended: _Running) -> _Running:
        lived = ended.start.ended_s - ended.start.at_s >= LIVED_S
        self._failures = 0 if lived else self._failures + 1
        until = self._now() + min(START_AGAIN_S_MAX, START_AGAIN_S * 2 ** max(0, self._failures - 1))
        while self._now() < until:
            self._turn()
            time.sleep(LOOK_S)
        return self._start()

    def _ended(self, running: _Running) -> int:
        running.start.ended_s, running.start.code = self._now(), running.process.returncode
        lines = (self.logs / f"{running.start.number}.err").read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line for line in lines if line.startswith("headrace: ")]
        running.start.said = said[-1] if said else ""
        return running.process.returncode

    def _unprovoked(self, running: _Running) -> str:
        """Say so if it failed by itself: no fault since it began, none lasting, no rest of an earlier start.

        Of a cluster that lives the controllers are started again by others, when they think fit: until records are
        closed again, a command that finds none has been provoked too.
        """
        provoked = len(self._fired) > running.fired_before or self._lasting or running.met_others
        if self.subjects is not None and self._fired:
            provoked = provoked or self._timeline.next_close(self._fired[-1].ended_s) is None
        if provoked or running.start.code == 0:
            return ""
        return (
            f"the command ended with exit code {running.start.code} although nothing was done to it: "
            f"{running.start.said or 'it said nothing'} (start {running.start.number}, see its log)"
        )

    def _overdue(self) -> str:
        if self._now() - self.earlier.seconds < self.limit_s:
            return ""
        living = ", ".join(process.title for process in self.marked.alive())
        last_s = self._timeline.commits[-1].at_s if self._timeline.commits else self.earlier.seconds
        return (
            f"the run did not end within {self.limit_s:.0f} s: {self._timeline.entries} ledger entries, the last one "
            f"{self._now() - last_s:.0f} s ago; living: {living or 'nothing'}"
        )

    def _pause(self, running: _Running) -> None:
        try:
            running.process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            return

    def _rest(self) -> tuple[str, ...]:
        """What is still there when all should be gone. Faults that last are ended first."""
        self._let_go()
        if self.local is not None:
            self.local.close()
        deadline = time.monotonic() + REST_S
        while (living := self.marked.alive()) and time.monotonic() < deadline:
            time.sleep(_SEARCH_S)
        return tuple(f"{process.pid} {process.title}" for process in living)

    # -- the faults --

    def _turn(self) -> None:
        """Take in what the ledger has, end what is over, fire what is due."""
        now = self._now()
        self._timeline.look(now)
        if self.local is not None:
            self.local.look()
        for lasting in list(self._lasting):
            self._carry(lasting, now)
        if now < self._search_at:
            return
        for planned in [item for item in self._waiting if self._is_due(item, now)]:
            if self._fire(planned):
                self._waiting.remove(planned)
            else:
                self._search_at = now + _SEARCH_S

    def _closes(self) -> int:
        return self.earlier.closes + self._timeline.closes

    def _is_due(self, planned: Planned, now: float) -> bool:
        if self.earlier.starts and not self._timeline.closes:
            return False  # what is overdue from the round before waits until this one is on its way
        base_s, base_commits = 0.0, 0
        if planned.base is not None:
            fired = (*self.earlier.fired, *self._fired)
            before = next((f for f in fired if (f.planned.fault, f.planned.nth) == planned.base), None)
            if before is None:
                return False
            base_s, base_commits = before.at_s, before.commits
        if planned.unit is Unit.COMMITS:
            return self._closes() >= base_commits + planned.after
        return now >= base_s + planned.after

    def _fire(self, planned: Planned) -> bool:
        """Inject the fault; False without a victim yet."""
        if self.reach is not None and self.reach.awaits(planned):
            return self._take(planned, self.reach)
        if self.reach is not None and planned.kind in NETWORK:
            self.reach.impairment(planned)
            return False
        if planned.kind in TOOLED:
            begun = self.tools.begin(planned)
            self._note(planned, begun.victims, [], begun)
            return True
        far = self.reach.alive() if self.reach is not None else []
        found = matching(planned.target, [*self._living().alive(), *far], self.ways)
        if not found:
            return False
        chosen = found if planned.target == "everything" else [found[int(planned.pick * len(found))]]
        if self.reach is not None and (elsewhere := [process for process in chosen if process.elsewhere]):
            # What is here follows when they have answered: it may hold the controller that asks them.
            self.reach.inject(planned, elsewhere)
            return False
        victims, handles = self._strike(planned, chosen)
        if not victims:
            return False  # the victim is gone by now
        self._note(planned, victims, handles)
        return True

    def _take(self, planned: Planned, reach: HostReach) -> bool:
        """Note what workers elsewhere were asked to do, once they have answered; False before, or if it came to nil."""
        begun = reach.take(planned)
        if begun is None:
            return False
        here = self._living().alive() if planned.target == "everything" else []
        victims, handles = self._strike(planned, here) if here else ((), [])
        self._note(planned, (*begun.victims, *victims), handles, begun)
        return True

    def _strike(self, planned: Planned, chosen: Sequence[Process]) -> tuple[tuple[str, ...], list[Handle]]:
        """Signal processes of this host; who was hit, and the hold on those that are to go on later."""
        if planned.kind is Kind.KILL and planned.target == "everything":
            return tuple(process.title for process in self._living().kill()), []
        number = {Kind.KILL: signal.SIGKILL, Kind.RESTART: signal.SIGTERM}.get(planned.kind, signal.SIGSTOP)
        handles = hold(chosen)
        hit = [handle for handle in handles if handle.send(number)]
        for handle in handles:
            if handle not in hit or not planned.for_s:
                handle.close()
        return tuple(handle.process.title for handle in hit), hit if planned.for_s else []

    def _note(
        self, planned: Planned, victims: tuple[str, ...], handles: list[Handle], begun: Begun | None = None
    ) -> None:
        now = self._now()
        fired = Fired(planned, now, self._closes(), victims, ended_s=now)
        if begun is not None:
            fired.affected = begun.affected
        self._fired.append(fired)
        if planned.for_s:
            self._lasting.append(_Lasting(fired, handles, now + planned.for_s, begun=begun))
        elif begun is not None:
            begun.end()

    def _carry(self, lasting: _Lasting, now: float) -> None:
        """End a fault whose time is over; let a slow process run its small share."""
        kind = lasting.fired.planned.kind
        if now >= lasting.until_s:
            self._end(lasting)
        elif kind is Kind.SLOW:
            runs = (now - lasting.fired.at_s) % SLOW_TURN_S >= SLOW_TURN_S - SLOW_RUNS_S
            if runs == lasting.stopped:
                lasting.stopped = not runs
                for handle in lasting.handles:
                    handle.send(signal.SIGCONT if runs else signal.SIGSTOP)

    def _end(self, lasting: _Lasting) -> None:
        self._lasting.remove(lasting)
        if lasting.begun is not None:
            lasting.begun.end()
        for handle in lasting.handles:
            if not self._held_by_another(handle):
                handle.send(signal.SIGCONT)
            handle.close()
        lasting.fired.ended_s = self._now()

    def _held_by_another(self, handle: Handle) -> bool:
        return any(other.process.pid == handle.process.pid for item in self._lasting for other in item.handles)

    def _living(self) -> AttachedCluster | Marked:
        return self.subjects or self.marked

    def _let_go(self) -> None:
        for lasting in list(self._lasting):
            self._end(lasting)

    def _outcome(self, answer: Mapping[str, Any], left: tuple[str, ...], problem: str) -> ScenarioOutcome:
        if self.reach is not None:
            self.reach.finish()
        self._timeline.look(self._now())
        for fired in self._fired:
            closed = self._timeline.next_close(fired.ended_s)
            fired.recovered_s = None if closed is None else closed - fired.ended_s
        return ScenarioOutcome(
            fired=tuple(self._fired),
            waiting=tuple(self._waiting),
            starts=tuple(self._starts),
            commits=tuple(self._timeline.commits),
            answer=answer,
            left=left,
            seconds=self._now() - self.earlier.seconds,
            problem=problem,
            epochs=self._timeline.epochs,
        )
