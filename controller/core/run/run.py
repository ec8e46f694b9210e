"""One run of a pipeline: the machine that turns a request into a dataset whose every record is accounted for.

`handle(event, now)` is its door: what it has learned leaves as commands, and time enters as an argument. It holds the
run's state and its table, and routes each event to the part that knows about it. A part returns commands, or the reason
why the run fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.controller.core.log import LOST, OVER, Leadership, LeaderState
from headrace.controller.core.messages import Command, LogEvent, messages as m
from headrace.controller.core.plan import Change, LinkPlan, RequestedChanges, WorkerFacts
from headrace.controller.core.run.amendment import Amendment
from headrace.controller.core.run.input import Intake, Listing
from headrace.controller.core.run.opening import Admission, EpochRaise, Inheritance, Opening, Surroundings
from headrace.controller.core.run.proposals import Committer
from headrace.controller.core.run.publishing import Publishing, held_words, kept_nothing
from headrace.controller.core.run.reading import ChangedFragments
from headrace.controller.core.run.reconfiguration import Reconfiguration
from headrace.controller.core.run.refusals import refusal
from headrace.controller.core.run.states import ENDED, ENDING, TRANSITIONS, WORKING, Machine, RunState, RunTurn
from headrace.controller.core.run.sweeps import Sweeps
from headrace.controller.core.run.tasks import DeathCounts, RunTasks
from headrace.controller.core.run.work import Parts, RunEvent, Step, Work, Works
from headrace.pipeline import Pipeline, PipelineError, StageKind
from headrace.store.ledger import (
    Change as LedgerChange,
    Closed,
    Entry,
    FragmentDropped,
    FragmentEnded,
    FragmentsListed,
    FragmentState,
    LedgerState,
    VersionHeld,
    VersionPublished,
    VersionSeen,
    balance_shown,
)

#: Seconds that a run may wait for a store that does not take its first entry. A full store is waited for without end,
#: and so is any once the run leads.
OPENING_S_MAX = 10.0


class Run:
    """The state machine of one pipeline's run."""

    def __init__(
        self, request: m.PipelineRequested, surroundings: Surroundings, inheritance: Inheritance | None = None
    ) -> None:
        self.request = request
        self.pipeline = pipeline = Pipeline.from_dict(request.pipeline)
        self.version = pipeline.version()
        #: The one name of the place where it writes.
        self.place = request.place or pipeline.dataset
        self._machine = Machine(f"run of {pipeline.name}", TRANSITIONS, RunState.OPENING)
        self.reason = ""
        #: The request that has no answer yet.
        self._unanswered: int | None = None if inheritance else request.request
        self._standby, self._reported = surroundings.standby or inheritance is not None, surroundings.reported
        self.leadership = Leadership(
            pipeline.dataset,
            surroundings.identity,
            LedgerState(),
            standby=self._standby,
            cluster=surroundings.cluster,
            limits=surroundings.log_limits,
        )
        self.ledger = self.leadership.ledger
        self.sinks = tuple(stage.name for stage in pipeline.of_kind(StageKind.SINK))
        self.sources = tuple(stage.name for stage in pipeline.of_kind(StageKind.SOURCE))
        #: Records and bytes that were closed before this run.
        self.records_resumed = self.bytes_resumed = 0
        inherited = inheritance or Inheritance(None, RequestedChanges(), lambda: False)
        self._inherited = inherited.plan
        self._workers = surroundings.workers
        self.intake = Intake(self.ledger, self.sinks, self.sources)
        self.listing = Listing(self.ledger, self.sources, self.sinks, request.changed_input)
        self.committer = Committer(self.ledger, pipeline.dependent_sinks)
        self._epoch = EpochRaise(self.leadership)
        self._opening = Opening(
            request, pipeline, self.leadership, self._epoch, inherited=inherited.plan, awaited=inherited.awaited
        )
        self.reconfiguration = Reconfiguration(
            request, inherited.requested, pipeline, self.ledger, self._workers, self.intake, self.listing
        )
        self._sweeps = Sweeps(self.intake, self.sinks)
        self._changed = ChangedFragments(
            request.changed_input, self.sinks, self.leadership, self.listing, self.intake, self._sweeps
        )
        self._publishing = Publishing(request, self.leadership, self.reconfiguration, inherited.requested.broken)
        reading = self.listing, self.intake, self._sweeps, self._changed, self.committer
        self._parts = Parts(self.leadership, self._workers, self._reported, *reading, self._epoch)
        self.amendment = Amendment(self.reconfiguration, self._parts, self._taken_up)
        #: What has tasks, once it is planned.
        self.works: Works | None = None

    # -- what others see --

    @property
    def state(self) -> RunState:
        """Where it stands."""
        return self._machine.state

    @property
    def tasks(self) -> RunTasks | None:
        """The tasks of the version in force, once it is planned."""
        return self.works.in_force.tasks if self.works else None

    @property
    def task_sets(self) -> list[RunTasks]:
        """Its tasks by version: those in force, and while the graph is changed those of the next version."""
        return [work.tasks for work in self.works] if self.works else []

    @property
    def deaths(self) -> DeathCounts:
        """Ends of its tasks and workers that nobody had asked for."""
        return self.works.in_force.losses.deaths if self.works else DeathCounts()

    @property
    def gathers(self) -> bool:
        """Whether it goes on with what an earlier leader began, and waits for its log or for workers to come back."""
        waits = self.works is not None and self.works.in_force.adoption.rejoin_at is not None
        return self._standby and (self.state is RunState.OPENING or waits)

    @property
    def fragments(self) -> Mapping[bytes, FragmentState]:
        """Those of the dataset."""
        return self.ledger.fragments

    def link(self, name: str) -> LinkPlan | None:
        """A link of the plan."""
        return next((link for tasks in self.task_sets for link in tasks.plan.links if link.name == name), None)

    @property
    def ended(self) -> bool:
        """The run goes on no more; its log may still be on its way to being handed over."""
        return self.state in ENDED

    @property
    def over(self) -> bool:
        """The run has ended and its log is handed over."""
        return self.ended and self.leadership.state in OVER

    @property
    def usurped(self) -> bool:
        """Its dataset was taken by a controller that led this cluster before, woke late, and will not keep it."""
        return self.leadership.state is LeaderState.DEPOSED and self.leadership.is_heir

    def trouble(self, now: float) -> str:
        """Why the ledger or the manifest is not written just now, for people; "" if nothing is in the way."""
        return self.leadership.trouble(now)[1] or (self._publishing.trouble if not self.ended else "")

    def wake_at(self) -> float | None:
        """When `handle(m.TimePassed())` is wanted next; None: only on an event."""
        if self.ended:
            return None if self.over else self.leadership.wake_at()
        times = [self.leadership.wake_at(), self._publishing.wake_at, self._opening.wake_at]
        if self.works and self.state in WORKING:
            # A past moment would be waited for without end: absent workers matter while there is work.
            times += [*self.works.wake_times(), self.amendment.leave_by]
        return min((time for time in times if time is not None), default=None)

    # -- events --

    def open(self) -> list[Command]:
        """Begin: look at the dataset's log."""
        return self.leadership.open()

    def handle(self, event: RunEvent, now: float) -> list[Command]:
        """Take one event; give the commands that follow from it."""
        if self.ended:
            return self._after_the_end(event, now)
        commands = self._dispatch(event, now)
        for _, entry in self.leadership.committed():
            commands += self._committed(entry)
        waited_s, trouble = self.leadership.trouble(now)
        if self.state is RunState.OPENING and waited_s >= OPENING_S_MAX and not self.leadership.stalled:
            commands += self._fail(f"the ledger of {self.pipeline.dataset} cannot be written: {trouble}")
        if self.leadership.state in LOST and not self.ended:
            commands += self._fail(self.leadership.why_not_leading())
        if not self.ended:
            commands += self._advance(now)
        return [*commands, *self.leadership.flush(now)]

    def worker_joined(self, worker: WorkerFacts, now: float) -> list[Command]:
        """A worker can take tasks from now on, and brings those that it still has."""
        self._workers.present[worker.name] = worker
        works = self.works if self.state in WORKING else None
        return [*(self._of_work(works.joined(worker.name, now)) if works else ()), *self.handle(m.TimePassed(), now)]

    def give_up(self, reason: str) -> list[Command]:
        """The shell met what the core cannot mend: an unreadable log, a store that is not there."""
        return self._fail(reason)

    def answer_to(self, request: int) -> list[Command]:
        """The same request was sent again: it takes the place of the first, if that has no answer yet."""
        if self._unanswered is not None:
            self._unanswered = request
            return []
        return [m.AnswerRequest(request, accepted=True)]

    def considered(self, event: m.SteerRequested) -> Change:
        """The change that a request asks of the plan. PipelineError, with the reason, where it cannot be made."""
        if self.state is RunState.DRAINING or self.state not in (RunState.OPENING, *WORKING):
            raise PipelineError(f"pipeline {self.pipeline.name!r} is {self.state.value}")
        self.amendment.check_free()
        return self.reconfiguration.considered(event, self.tasks, self.state.value)

    def check_without(self, worker: str) -> None:
        """Raises PipelineError where this run's tasks cannot leave a worker."""
        if self.tasks is not None and self.state in WORKING:
            self.amendment.check_free()
            self.reconfiguration.check_without(worker, self.tasks)

    def _dispatch(self, event: RunEvent, now: float) -> list[Command]:
        if isinstance(event, LogEvent):
            return self._on_log(event, now)
        match event:
            case m.TimePassed():
                return self.leadership.handle(event, now)
            case m.WorkerLost():
                return self._worker_lost(event, now)
            case m.StopRequested():
                return self._stop(event)
            case m.SteerRequested():
                return self._reconfigure(event)
            case m.SteerAdmitted():
                return self._admitted(event)
            case m.PipelineRequested():
                return self.amendment.asked(event, self.request, self.works, self.state)
            case m.AmendRecorded():
                return self.amendment.take_up(self.works)
            case m.HoldDecided() | m.GateRecorded():
                self.reconfiguration.stand(event)
                return []
            case m.WorkerDrained():
                if self.tasks is not None and any(task.worker == event.worker for task in self.tasks.plan.tasks):
                    self.reconfiguration.leave(event.worker)
                return []
            case m.ManifestWritten() | m.DatasetAudited():
                return self._failed_for(self._publishing.handle(event, now, ends=self.state in ENDING))
            case _:
                return self._of_work(self.works.handle(event, now, self.state)) if self.works else []

    def _on_log(self, event: m.LogEvent, now: float) -> list[Command]:
        if isinstance(event, m.LogRead) and self.leadership.state is LeaderState.READING:
            return self._opened(event, now)
        if isinstance(event, m.LogUnreadable) and not self._standby:
            return self._fail(event.error)
        commands = self.leadership.handle(event, now)
        if isinstance(event, m.EntryUnresolved) and event.refused:
            commands += self._fail(event.error)
        return commands

    def _after_the_end(self, event: RunEvent, now: float) -> list[Command]:
        """Only the log still matters: the entry that was being written, the resignation, and who took the log."""
        if not isinstance(event, LogEvent | m.TimePassed):
            return []
        held = self.leadership.state not in LOST
        commands = self.leadership.handle(event, now)
        if held and self.leadership.state in LOST and self.works:
            # Workers that obey whoever has the log now refused to stop; in a cluster its term is enough for a kill.
            commands += self.works.kill("its run has ended")
        changes = (change for _, entry in self.leadership.committed() for change in entry.changes)
        for change in changes:
            if isinstance(change, Closed):
                self.committer.durable(change)
        return [*commands, *self.leadership.flush(now)]

    def _committed(self, entry: Entry) -> list[Command]:
        commands: list[Command] = []
        if self.leadership.state is LeaderState.LEADING and self.state is RunState.OPENING:
            commands += self._failed_for(self._opening.apply())
        for change in entry.changes:
            commands += self._durable(change)
        if self.leadership.state is LeaderState.RESIGNED and not self.ended:
            self._machine.turn(RunTurn.RESIGNED)
            commands += self._ended(self.state.value)
        return commands

    def _durable(self, change: LedgerChange) -> list[Command]:
        """What follows from a durable change; most only change the ledger."""
        commands: list[Command] = []
        if isinstance(change, FragmentsListed):
            for fragment in change.fragments:
                self.intake.admit(fragment.id)
        elif isinstance(change, VersionSeen):
            self._changed.version_seen(change)
        elif isinstance(change, FragmentDropped):
            self.listing.settle((change.fragment,))
        elif isinstance(change, FragmentEnded):
            self.listing.copies.note(self.ledger.fragments[change.fragment].fragment, change.checksum)
            self._closed([change.fragment])
        elif isinstance(change, Closed):
            self._closed([item.fragment for item in change.ranges])
            for waiter in self.committer.durable(change):
                commands += self.works.of(waiter.task).proposals.accepted(waiter) if self.works else []
        elif isinstance(change, VersionPublished):
            commands.append(m.WriteManifest(self.pipeline.dataset, self.leadership.term))
        elif isinstance(change, VersionHeld):
            commands += self._fail(held_words(self.ledger, self.pipeline.dataset))
        return commands

    def _closed(self, fragments: list[bytes]) -> None:
        """More of these fragments is closed: those that are done are open no more."""
        self.intake.settle(fragments)
        self.listing.settle(fragments)
        self._changed.closed(fragments)

    # -- the opening --

    def _opened(self, event: m.LogRead, now: float) -> list[Command]:
        """The log was read for the first time: may this pipeline go on with this dataset?"""
        commands = self.leadership.handle(event, now)
        if self.leadership.state in (LeaderState.DENIED, LeaderState.READING):
            return []
        # A standby's workers are connected to the leader; those that a queue has waited for may leave and come back.
        plan = None if self._standby or self.request.queue else self.reconfiguration.plan
        admission = self._opening.admission(plan)
        if admission.refusal:
            return self._refuse(admission)
        return [*commands, *self._answer(admission)]

    def _refuse(self, admission: Admission) -> list[Command]:
        self.leadership.drop_campaign()
        self._machine.turn(RunTurn.FAULT)
        self.reason = admission.refusal
        return [*self._answer(admission), m.ReportRun(self.pipeline.name, self.state.value, self.reason)]

    def _answer(self, said: Admission) -> list[Command]:
        """Answer the request that has no answer yet, if there is one."""
        request, self._unanswered = self._unanswered, None
        answer = (not said.refusal, said.refusal, said.differences, said.warnings)
        return [] if request is None else [m.AnswerRequest(request, *answer)]

    def _begin_if_ready(self, now: float) -> list[Command]:
        opens = self.state is RunState.OPENING and self.leadership.state is LeaderState.LEADING
        if not opens or not self._opening.is_ready(now, fit_workers=bool(self._workers.fit())):
            return []
        try:
            plan = self._opening.first_plan(self.reconfiguration.plan, now)
        except PipelineError as error:
            return self._fail(str(error))
        if plan is None:
            return []
        self._machine.turn(RunTurn.PIPELINE_ACCEPTED)
        self._publishing.begin()
        self.records_resumed = balance_shown(self.ledger).records_closed
        # What one sink has not closed is read again, whatever the others have.
        self.bytes_resumed = sum(min(map(state.stored_bytes, self.sinks)) for state in self.ledger.fragments.values())
        tasks = RunTasks(plan, self.pipeline, self.version, self.leadership.term)
        tasks.index.served = self._inherited is not None
        work = Work(self.pipeline, tasks, self._parts)
        self.works = Works(work, self._parts)
        # A drain that an earlier leader was asked for and did not finish.
        for worker in sorted({task.plan.worker for task in work.tasks} & set(self._workers.drained)):
            self.reconfiguration.leave(worker)
        adopted = work.adoption.begin(self.leadership.term, now, inherited=self._inherited is not None)
        return [*adopted, *work.tasks.start_due(now, self.ledger.epoch, self._workers.present)]

    # -- work --

    def _advance(self, now: float) -> list[Command]:
        commands, works = [*self._begin_if_ready(now)], self.works
        if works and self.state in WORKING:
            for lost in works.in_force.adoption.given_up(now):
                commands += self._worker_lost(lost, now)
            commands += self._failed_for(works.waited_too_long(now))
        commands += self._publishing.ask_again(now, flows=self.state is RunState.RUNNING)
        self._changed.relist_if_due()
        if works and self.state in WORKING:
            for late in works.late(now):
                commands += self._of_work(works.handle(late, now, self.state))
            commands += self.amendment.advance(works, self.state, now)
            commands += self._change_if_due(works, now)
            commands += works.start_due(now)
        if works and self.state is RunState.RUNNING:
            commands += works.reader.reading.hand_out()
        if works and self.state in WORKING:
            commands += self._sweep_if_due(works)
        return [*commands, *(() if self.amendment.taking_up else self._end_if_due())]

    def _end_if_due(self) -> list[Command]:
        """End the run, or settle its changed input, where nothing is left to do."""
        everything = self.listing.done and self.intake.done and self.leadership.quiet and self.committer.empty
        if self.state in WORKING and (lost := self._publishing.excess(at_end=everything)):
            return self._fail(lost)
        if self.state is RunState.RUNNING and everything and self._changed.open:
            # What sinks held of a changed fragment when all had been sent is good, and closed first.
            return self._failed_for(self._changed.settle()) if self._sweeps.settled else []
        if self.state in WORKING and everything and (held := self._changed.why_held()):
            return self._fail(held)
        if self.state in WORKING and everything and not self._changed.open:
            if empty := kept_nothing(self.ledger, self.pipeline.dataset) or self._publishing.excess_before():
                return self._fail(empty)
            self._machine.turn(RunTurn.ALL_CLOSED)
            return self._publishing.complete()
        if self.state is RunState.DRAINING and self._sweeps.empty and self.committer.empty:
            self._machine.turn(RunTurn.SINKS_EMPTY)
            return self._publishing.stopped()
        return []

    def _sweep_if_due(self, works: Works) -> list[Command]:
        all_read = self.state is RunState.RUNNING and self.listing.done and self.intake.idle
        finish = all_read and self.leadership.quiet and (bool(self._changed.open) or not self.intake.done)
        return works.begin_sweep_if_due(all_read=all_read, finish=finish)

    def _worker_lost(self, event: m.WorkerLost, now: float) -> list[Command]:
        self._workers.present.pop(event.worker, None)
        if self.works is None or self.state not in WORKING:
            return []
        return self._failed_for(self.works.worker_lost(event, now))

    # -- requests --

    def _reconfigure(self, event: m.SteerRequested) -> list[Command]:
        """Pause, resume or change the run; refused at once where no plan can hold the change."""
        try:
            change = self.considered(event)
        except PipelineError as error:
            return [refusal(event.request, error)]
        return self._admitted(m.SteerAdmitted(event.request, event.pipeline, event.pause, change))

    def _admitted(self, event: m.SteerAdmitted) -> list[Command]:
        self.reconfiguration.take(event.pause, event.change)
        return [m.AnswerRequest(event.request, accepted=True, warnings=tuple(filter(None, [event.change.words()])))]

    def _change_if_due(self, works: Works, now: float) -> list[Command]:
        requested, work, busy = self.reconfiguration, works.in_force, self.amendment.busy
        if self.state is RunState.RUNNING and not busy and (reshape := requested.under_flow(work)) is not None:
            return self.amendment.reshape(works, reshape, now)
        waits = requested.waiting and not busy
        if self.state is RunState.RUNNING and (requested.stands or waits or work.tasks.index.lost):
            self._machine.turn(RunTurn.PAUSE_ASKED)
            self._halt()
            return self.amendment.advance(works, self.state, now)
        elif self.state is RunState.PAUSING and self._sweeps.empty:
            self._machine.turn(RunTurn.SINKS_EMPTY)
        # After a death a marker that halts is on its way: it must not meet what is read again.
        stands = self.state is RunState.PAUSED and self._sweeps.empty
        if busy or not stands or (requested.begins_anew(work.tasks) and not self._epoch.begun_anew()):
            return []
        commands = requested.change_all(work.tasks, now)
        if not requested.stands:
            self._machine.turn(RunTurn.RESUME_ASKED)
            self.intake.begin_again()
            self._sweeps.resume()
        return commands

    def _taken_up(self, pipeline: Pipeline, request: m.PipelineRequested) -> None:
        """Another version of the pipeline is in force."""
        self.pipeline, self.version = pipeline, pipeline.version()
        self.request = self._publishing.amended(m.amending(request, self.request))

    def _halt(self) -> None:
        """Hand out nothing more; the next sweep has sources let go of what they have not sent."""
        self.intake.drop_queue()
        self.listing.comparing.drop_asked()
        self._sweeps.halt()

    def _stop(self, event: m.StopRequested) -> list[Command]:
        if event.cancel or self.state is RunState.OPENING:
            self._machine.turn(RunTurn.CANCEL_ASKED)
            self.reason = "cancelled"
            self.leadership.resign()
            return self._ended("cancelled")
        if self.state in (RunState.RUNNING, RunState.PAUSING, RunState.PAUSED):
            self._machine.turn(RunTurn.STOP_ASKED)
            self._halt()
        return []

    # -- the end --

    def _of_work(self, step: Step) -> list[Command]:
        return [*self._failed_for(step[1]), *step[0]]

    def _failed_for(self, reason: str) -> list[Command]:
        return self._fail(reason) if reason else []

    def _fail(self, reason: str) -> list[Command]:
        if self.ended:
            return []
        answer = self._answer(Admission(reason))
        self.leadership.resign()
        self._machine.turn(RunTurn.FAULT)
        self.reason = reason
        # A controller that was deposed within a cluster leaves the tasks to the new leader.
        bequeathed = bool(self.leadership.cluster) and self.leadership.state is LeaderState.DEPOSED
        return [*answer, *self._ended("" if bequeathed else reason)]

    def _ended(self, reason: str) -> list[Command]:
        """Stop the tasks, if for a reason, and report the end."""
        stop = self.works.stop(reason) if self.works and reason else []
        stop += self.amendment.answer(self.amendment.why_ended(self.state))
        return stop if self.usurped else [*stop, m.ReportRun(self.pipeline.name, self.state.value, self.reason)]
