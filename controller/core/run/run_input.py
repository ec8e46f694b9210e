"""A run's records on their way: listed, handed out, proposed, swept for what was lost."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.controller.core.messages import (
    AnswerDecision,
    AskDecision,
    Command,
    DecisionAsked,
    DecisionEvent,
    DecisionMade,
    FragmentsWereRead,
    FragmentWasRead,
    ReadFragment,
    ShardProposed,
    SourceListed,
    TaskSwept,
)
from headrace.controller.core.run.commit import Waiter
from headrace.controller.core.run.input import ChangedInput
from headrace.controller.core.run.needs import AnswerNeeds, NeedsAsked, Records, ReleaseClaims, VerdictsLetGo, unmet
from headrace.controller.core.run.run_base import HALTING
from headrace.controller.core.run.run_comparing import Altered
from headrace.controller.core.run.run_states import RunState
from headrace.controller.core.run.tasks import Crew, Task, TaskState
from headrace.store import counted
from headrace.store.ledger import ClaimsReleased, FragmentDropped, FragmentEnded, FragmentsListed

#: Changed fragments that are named at the end of a run.
CHANGED_SHOWN = 5


class Input(Altered):
    """From a source's listing to a shard's proposal."""

    def _source_listed(self, event: SourceListed) -> list[Command]:
        current = self.crew.current(event.task, event.attempt) if self.crew else None
        if current is None or not self.listing.expects(event):
            return []
        if event.error:
            return self._fail(event.error)
        fresh, known = self.listing.take(event)
        for fragment in known:
            self.intake.admit(fragment.id)
        if fresh:
            self.leadership.submit(FragmentsListed(tuple(fresh)))
        while self.listing.back:
            self.leadership.submit(self.listing.back.popitem()[1])
        self._take_compared()
        for gone in self.listing.vanished(event.stage) if event.last else ():
            self._halt_fragment(gone.id, self.listing.why_open(gone))
        return []

    def _was_read(self, event: FragmentWasRead) -> list[Command]:
        if self.crew is None or self.crew.current(event.task, event.attempt) is None:
            return []
        if self.listing.comparing.heard(event):
            self._take_compared()
            return []
        if event.error and (event.changed or event.unreadable):
            if not self.intake.reads(event.task, event.fragment):
                # Old news, or none of this task's: who reads it now finds the same.
                return []
            if event.changed and self.intake.excuses(event.task, event.fragment):
                self._dirty = True
                return []
            self.intake.halt(event.fragment, event.task)
            self._halt_fragment(event.fragment, event.error)
            if event.unreadable:
                self._unreadable.add(event.fragment)
            else:
                self._stale.add(self.ledger.fragments[event.fragment].fragment.stage)
            return []
        if event.error:
            return self._fail(event.error)
        if self.intake.was_read(event.task, event.fragment, event.count) and event.count >= 0:
            state = self.ledger.fragments[event.fragment]
            if state.count is None and event.fragment not in self._submitted_ends:
                self._submitted_ends.add(event.fragment)
                self.leadership.submit(FragmentEnded(event.fragment, event.count, event.checksum))
        return []

    def _were_read(self, event: FragmentWasRead | FragmentsWereRead) -> list[Command]:
        commands: list[Command] = []
        for read in event.reads if isinstance(event, FragmentsWereRead) else (event,):
            if not self.ended:
                commands += self._was_read(read)
        return commands

    def _settle(self, fragments: Sequence[bytes]) -> None:
        """More of these fragments is closed: those that are done are no longer open, nor wanted as they were listed."""
        self.intake.settle(fragments)
        self.listing.settle(fragments)
        for fragment in fragments:
            if fragment in self._changed and self.ledger.fragments[fragment].done(self.sinks):
                # Who was thought dead has closed the rest of it.
                del self._changed[fragment]

    def _settle_changed(self) -> list[Command]:
        """All else is closed, and what sinks held of the changed fragments too: do as the run was asked."""
        reread = self._changed_input is ChangedInput.REREAD
        again = reread and ((self._stale and self._relisted) or not self._unreadable.isdisjoint(self._changed))
        if self._changed_input is ChangedInput.HALT or again:
            return self._fail("; and ".join(filter(None, (self._why_open(), self._why_altered()))))
        for fragment, why in self._changed.items():
            self.leadership.submit(FragmentDropped(fragment, why, reread))
        self._changed.clear()
        self._relist = reread and bool(self._stale)
        return []

    def _relist_if_due(self) -> None:
        """What was given up is in the log: before that it would be taken for open, and compared and given up again."""
        if self._relist and self.leadership.quiet:
            self._relist, self._relisted = False, True
            self.listing.again(self._stale)
            self._stale.clear()

    def _why_open(self) -> str:
        """What is said at the end of a run whose input changed, vanished or could not be read while it was open."""
        shown = "; ".join(list(dict.fromkeys(self._changed.values()))[:CHANGED_SHOWN])
        more = len(set(self._changed.values())) - CHANGED_SHOWN
        told = f"{shown}{f'; and {more} more' if more > 0 else ''}. All else is closed."
        open_still = counted(len(self._changed), "fragment stands open", "fragments stand open")
        if self._unreadable.issuperset(self._changed):
            return (
                f"{open_still}, since their devices failed: {told} The same command reads "
                "them when that is mended; or --changed-input drop gives up what is open of them"
            )
        return (
            f"{open_still}, since what was listed changed, vanished or cannot be read: "
            f"{told} Put the old objects back and run "
            "again, or choose: --changed-input drop gives up what is open of them, --changed-input reread gives it "
            "up and reads the new objects whole, beside what is closed of the old ones"
        )

    def _asked(self, event: ShardProposed | NeedsAsked | VerdictsLetGo | DecisionEvent) -> list[Command]:
        match event:
            case ShardProposed():
                return self._proposed(event)
            case NeedsAsked():
                return self._needs_asked(event)
            case VerdictsLetGo():
                return self._let_go(event)
            case DecisionAsked() | DecisionMade():
                return self._passed_on(event)

    def _passed_on(self, event: DecisionEvent) -> list[Command]:
        """A solitary task and the decider speak with each other: while both are the attempts that count now."""
        decider = self.crew.decider if self.crew else None
        if self.crew is None or decider is None or decider.state is not TaskState.READY:
            return []
        place = decider.plan.worker, decider.plan.name, decider.attempt
        match event:
            case DecisionAsked():
                known = self.crew.current(event.task, event.attempt) is not None
                return [AskDecision(*place, event.task, event.attempt, event.question)] if known else []
            case DecisionMade():
                asker = self.crew.current(event.asker, event.asker_attempt)
                if asker is None or (event.task, event.attempt) != place[1:]:
                    return []
                return [AnswerDecision(asker.plan.worker, event.asker, event.asker_attempt, event.decision)]

    def _let_go(self, event: VerdictsLetGo) -> list[Command]:
        """Some of what the last sweep found in a sink is not there any more: look again before the end."""
        if self.crew is not None and self.crew.current(event.task, event.attempt) is not None:
            self._settled, self._dirty = False, self._dirty or self.state in HALTING
        return []

    def _proposed(self, event: ShardProposed) -> list[Command]:
        """Judge a proposal: only who leads knows all that is closed. A sink that hears nothing proposes again."""
        if self._renewed_from is not None:
            # The epoch is on its way to the log: what is queued now would stand behind it, and be of the one before.
            return []
        judgement = self.committer.judge(event, self.version, self.ledger.epoch)
        if judgement.closed is not None:
            released = (ClaimsReleased(event.sink, event.released),) if event.released else ()
            self.leadership.submit(judgement.closed, *released)
        if judgement.outcome is None:
            return []
        to = Waiter(event.task, event.attempt, event.proposal)
        return self._answer(to, judgement.outcome, judgement.overlaps, judgement.reason)

    def _needs_asked(self, event: NeedsAsked) -> list[Command]:
        """A sink asks what its duplicates may lean on. Where nothing can be leant on, they are to be read again."""
        task = self.crew.current(event.task, event.attempt) if self.crew else None
        if self.crew is None or task is None:
            return []
        halted = self.state in HALTING and self._halted
        settled = (self._settled or halted) and not self.intake.sweeping
        still_open, gone = unmet(self.ledger, event.sink, event.records)
        lost: Records = ()
        if self.committer.empty and settled:
            # Nothing is on its way: what no sink holds is not closed before this sink is empty, or never.
            still_open, lost = self.intake.parted(event.sink, still_open)
        elif self.committer.empty:
            # What is queued may be in no sink's hands any more, and be kept: while anything is, nothing is called lost.
            # Verdicts that lean on what is halted would be read again and again, so that nothing ever settles.
            still_open, lost = self.intake.parted_halted(event.sink, still_open)
        if any(fragment in self._changed for fragment, _ in lost):
            # This run reads them no more, and a sink that was given up may hold them still and come back: only a new
            # epoch refuses what it proposes, and only there may a duplicate of them be kept.
            self.crew.index_lost = True
        commands: list[Command] = []
        if gone and (decider := self.crew.decider) is not None:
            place = decider.plan.worker, decider.plan.name, decider.attempt
            commands.append(ReleaseClaims(*place, gone))
        if gone or lost:
            self._dirty, self._settled = True, False
        answer = AnswerNeeds(task.plan.worker, event.task, event.attempt, event.proposal, still_open, (*gone, *lost))
        return [*commands, answer]

    def _assign(self) -> list[Command]:
        if self.crew is None or self.crew.links_missing:
            return []
        commands = self._assign_suspects(self.crew)
        readers: list[Task] = []
        heads: dict[str, int] = {}
        for task in self.crew:
            head = task.plan.stages[0]
            if not task.plan.alone and self.listing.is_source(head):
                readers.append(task)
                heads[head] = heads.get(head, 0) + 1
        commands += self.listing.comparing.ask(readers)
        for task in readers:
            head = task.plan.stages[0]
            if task.state is not TaskState.READY:
                continue
            for fragment, gaps in self.intake.assign(head, task.plan.name, heads[head]):
                self._settled = False
                fragment = self.ledger.as_it_stands(fragment)
                commands.append(ReadFragment(task.plan.worker, task.plan.name, task.attempt, fragment, gaps))
        return commands

    def _assign_suspects(self, crew: Crew) -> list[Command]:
        """What is suspect goes to the solitary task of its path, which is started when there is work for it."""
        commands: list[Command] = []
        intake = self.intake
        for path in intake.solitary.paths():
            task = crew.solitary(path)
            if task.state is not TaskState.READY:
                continue
            for fragment, gaps in intake.solitary.assign(path, task.plan.name):
                self._settled = False
                guilty, trial = intake.suspicion.condemned(fragment.id), intake.suspicion.trial(fragment.id)
                plan, fragment = task.plan, self.ledger.as_it_stands(fragment)
                commands.append(ReadFragment(plan.worker, plan.name, task.attempt, fragment, gaps, guilty, trial))
        return commands

    def _sweep_if_due(self) -> list[Command]:
        assert self.crew is not None
        if self.intake.sweeping or not self.crew.roster.stable or self.crew.links_missing:
            return []
        drained = self.state is RunState.RUNNING and self.listing.done and self.intake.idle
        finish = drained and not self._settled and self.leadership.quiet and (self._changed or not self.intake.done)
        halting = self.state in HALTING
        halt = halting and not self._halted
        if not (self._dirty or finish or halt):
            return []
        self._dirty, self._final = False, drained
        number = self.intake.begin_sweep(task.plan.name for task in self.crew)
        return self.crew.sweep(number, halt=halting)

    def _swept(self, event: TaskSwept) -> list[Command]:
        if self.crew is None or self.crew.current(event.task, event.attempt) is None:
            return []
        if not self.intake.swept(event):
            return []
        if self.state in HALTING:
            self._halted = True
            return self.crew.seal(self.sinks, "stop" if self.state is RunState.DRAINING else "pause")
        lost = self.intake.requeue_lost()
        # What was sent behind the markers is still on its way where a source was reading when they began.
        if lost == 0 and self._final and self.intake.idle and self.listing.done:
            self._settled = True
            return self.crew.seal(self.sinks, "end")
        return []
