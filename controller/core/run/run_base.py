"""What a run is made of, and what each of its parts may do: turn its state, answer a sink, give up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from headrace.controller.core.cluster import (
    LOG_LIMITS,
    OVER,
    Claims,
    InvalidTransitionError,
    Leadership,
    LeaderState,
    LogLimits,
)
from headrace.controller.core.messages import AnswerProposal, AnswerRequest, Command, Outcome, ReportRun
from headrace.controller.core.plan import Change, LinkPlan, Need, Plan, Wished, WorkerFacts
from headrace.controller.core.run.allowance import ANY_LOSS, Allowance
from headrace.controller.core.run.commit import Committer, Waiter
from headrace.controller.core.run.input import ChangedInput, Compared, Intake, Listing
from headrace.controller.core.run.run_states import ENDED, TRANSITIONS, RunState, RunTurn
from headrace.controller.core.run.tasks import Crew, Deaths
from headrace.pipeline import Pipeline, StageKind
from headrace.store.ledger import FragmentState, LedgerState, Range

#: Seconds that a run may wait for a store that does not take its first entry. One that is full is waited for without
#: end, and so is any once the run leads.
OPENING_S_MAX = 10.0
#: The run has tasks; in HALTING, sources are to send nothing more.
WORKING = (RunState.RUNNING, RunState.PAUSING, RunState.PAUSED, RunState.DRAINING)
HALTING = (RunState.PAUSING, RunState.PAUSED, RunState.DRAINING)


class RunBase:
    """One run's state; its behaviour stands in the parts that derive from this (`run.py` names them)."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        identity: Mapping[str, Any],
        workers: Sequence[WorkerFacts],
        claims: Claims | None = None,
        request: int | None = 0,
        amend: bool = False,
        fuse: bool = True,
        replicas: int = 0,
        allowance: Allowance = ANY_LOSS,
        standby: bool = False,
        changed_input: ChangedInput = ChangedInput.HALT,
        places: Mapping[str, str] | None = None,
        transports: Mapping[str, str] | None = None,
        seal: Mapping[str, float] | None = None,
        limits: Mapping[str, float] | None = None,
        cluster: str = "",
        inherited: Plan | None = None,
        log_limits: LogLimits = LOG_LIMITS,
        drained: Collection[str] = (),
        beside: Callable[[], Mapping[str, Need]] = dict,
        wished: Wished | None = None,
        token: str = "",
        place: str = "",
        awaited: Callable[[], bool] = lambda: False,
    ) -> None:
        self.pipeline = pipeline
        self.version = pipeline.version()
        self.state = RunState.OPENING
        self.reason = ""
        self.leadership = Leadership(
            pipeline.dataset,
            identity,
            LedgerState(),
            standby=standby,
            cluster=cluster,
            limits=log_limits,
        )
        self.ledger = self.leadership.ledger
        self.sinks = tuple(stage.name for stage in pipeline.of_kind(StageKind.SINK))
        self.sources = tuple(stage.name for stage in pipeline.of_kind(StageKind.SOURCE))
        self._amend, self._fuse, self._replicas, self._allowance = amend, fuse, replicas, allowance
        self._begin_with(wished or Wished(), dict(places or {}), dict(transports or {}))
        #: When sinks seal, and what a record and a task may take, if the request says so.
        self.seal, self.limits = dict(seal or {}), dict(limits or {})
        #: The plan of an earlier leader, what workers brought of its tasks, and how long absent ones are waited for.
        self._inherited = inherited
        self._claims = claims or Claims()
        self._rejoin_at: float | None = None
        #: Where there is no such plan: whether some workers are not back.
        self._awaited = awaited
        #: Which workers get no tasks, and what the tasks of other runs reserve now: the controller's to say.
        self._drained, self._beside = drained, beside
        #: The name of the request that began it, so that the same one again is known; and who waits for an answer.
        self.token = token
        #: Where it writes, by its one name.
        self.place = place or pipeline.dataset
        self._request: int | None = request
        self._standby = standby
        self._workers = {worker.name: worker for worker in workers}
        self.plan: Plan | None = None
        self.crew: Crew | None = None
        self.intake = Intake(self.ledger, self.sinks, self.sources)
        self.committer = Committer(self.ledger)
        self.listing = Listing(self.ledger, self.sources, self.sinks)
        self.listing.reread = changed_input is ChangedInput.REREAD
        self._changed_input = changed_input
        self._forget_all()

    def _begin_with(self, wished: Wished, places: dict[str, str], transports: dict[str, str]) -> None:
        """What people wished in the request and since: places, transports, and tasks of a stage."""
        self._places, self._transports = {**places, **wished.made.places}, {**transports, **wished.made.transports}
        self._counts = dict(wished.made.replicas)
        #: Somebody wants the run to stand still, or planned otherwise, in this order; why a change was not made.
        self.pause_wanted, self.refused_change = wished.pause, ""
        self.changes: list[Change] = list(wished.waiting)
        #: Whether each change that people wished for came true, the oldest first; who writes it down empties it.
        self.seen_to: list[bool] = []

    @property
    def gathers(self) -> bool:
        """Whether it goes on with what an earlier leader began, and waits for its log or for workers to come back."""
        return self._standby and (self.state is RunState.OPENING or self._rejoin_at is not None)

    def _forget_all(self) -> None:
        """What a run learns as it goes: nothing yet."""
        #: Records and bytes that were closed before this run.
        self.records_resumed = 0
        self.bytes_resumed = 0
        self._plan_by: float | None = None
        self._waited = False
        self._submitted_ends: set[bytes] = set()
        self._submitted_pipeline = False
        self._dirty = self._settled = self._halted = False
        #: Whether all had been read when the sweep under way began.
        self._final = False
        #: Fragments whose object changed or vanished while they were open, and how that was found.
        self._changed: dict[bytes, str] = {}
        #: Objects that were read, hold other bytes now, and are not read for it.
        self._altered: list[Compared] = []
        #: Sources to be listed again for what this run gave up; whether that is due, and whether one was.
        self._stale: set[str] = set()
        self._relist = self._relisted = False
        #: Those that a failed device keeps from being read.
        self._unreadable: set[bytes] = set()
        #: The epoch that is being raised for a new index.
        self._renewed_from: int | None = None
        #: Ends of its tasks and workers that nobody had asked for.
        self.deaths = Deaths()
        #: Lost workers whose tasks have no place: since when, and why.
        self._away: dict[str, tuple[float, str]] = {}
        #: When a manifest that the store did not take is written again, and why it did not.
        self._manifest_at: float | None = None
        self._manifest_trouble = ""

    @property
    def fragments(self) -> Mapping[bytes, FragmentState]:
        """Those of the dataset."""
        return self.ledger.fragments

    def link(self, name: str) -> LinkPlan | None:
        """A link of the plan."""
        return next((link for link in self.crew.plan.links if link.name == name), None) if self.crew else None

    def _fit_workers(self) -> list[WorkerFacts]:
        """The workers that may be given tasks."""
        return [worker for worker in self._workers.values() if worker.name not in self._drained]

    def _halt(self) -> None:
        """Hand out nothing more; the next sweep has sources let go of what they have not sent."""
        self.intake.drop_queue()
        self.listing.comparing.drop_asked()
        self.intake.abort_sweep()
        self._halted = False

    @property
    def _empty(self) -> bool:
        """Sources have let go, nothing is on its way, and what sinks held is closed."""
        return self._halted and not self._dirty and self.intake.held_are_closed()

    @property
    def over(self) -> bool:
        """The run has ended and its log is handed over."""
        return self.ended and self.leadership.state in OVER

    @property
    def ended(self) -> bool:
        """The run goes on no more; its log may still be on its way to being handed over."""
        return self.state in ENDED

    def _turn(self, turn: RunTurn) -> None:
        target = TRANSITIONS.get((self.state, turn))
        if target is None:
            raise InvalidTransitionError(f"run of {self.pipeline.name}: {self.state.value} on {turn.value!r}")
        self.state = target

    def _fail(self, reason: str) -> list[Command]:
        if self.ended:
            return []
        request, self._request = self._request, None
        self.leadership.resign()
        self._turn(RunTurn.FAULT)
        self.reason = reason
        answer = [] if request is None else [AnswerRequest(request, accepted=False, reason=reason)]
        # Who was deposed within a cluster leaves the tasks to whoever leads now.
        bequeathed = bool(self.leadership.cluster) and self.leadership.state is LeaderState.DEPOSED
        stop = self.crew.stop(reason) if self.crew and not bequeathed else []
        return [*answer, *stop, ReportRun(self.pipeline.name, self.state.value, reason)]

    def give_up(self, reason: str) -> list[Command]:
        """The shell met what the core cannot mend: an unreadable log, a store that is not there."""
        return self._fail(reason)

    def _answer(
        self, to: Waiter, outcome: Outcome, overlaps: tuple[Range, ...] = (), reason: str = ""
    ) -> list[Command]:
        if (current := self.crew.current(to.task, to.attempt) if self.crew else None) is None:
            return []
        return [AnswerProposal(current.plan.worker, to.task, to.attempt, to.proposal, outcome, overlaps, reason)]
