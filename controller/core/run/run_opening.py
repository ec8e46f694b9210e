"""The beginning of a run: may this pipeline write this dataset, and with which plan?"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.controller.core.cluster import LeaderState
from headrace.controller.core.messages import AnswerRequest, Command, ReportRun
from headrace.controller.core.plan import Plan, plan
from headrace.controller.core.run.admission import admit
from headrace.controller.core.run.run_adoption import REJOIN_S, Adoption, without_solitary
from headrace.controller.core.run.run_states import RunState, RunTurn
from headrace.controller.core.run.tasks import Crew
from headrace.pipeline import PipelineError
from headrace.store.ledger import EpochRaised, PipelineApplied, Removed, balance_of


class Opening(Adoption):
    """From the log's first reading to the first tasks."""

    def _opened(self, event: object, now: float) -> list[Command]:
        """The log was read for the first time: may this pipeline go on with this dataset?"""
        commands = self.leadership.handle(event, now)
        if self.leadership.state is LeaderState.DENIED:
            return []
        admission = admit(self.pipeline, self.ledger, amend=self._amend)
        if admission.refusal:
            return self._refuse(admission.refusal, admission.differences)
        if not self._standby:
            # A standby has no workers yet: they attend the leader, and come here when it is gone.
            try:
                self._plan()
            except PipelineError as error:
                return self._refuse(str(error), ())
        self._accept(commands, admission.warnings)
        return commands

    def _plan(
        self,
        counts: Mapping[str, int] | None = None,
        places: Mapping[str, str] | None = None,
        transports: Mapping[str, str] | None = None,
    ) -> Plan:
        """The plan as it is wished for, and with these wishes besides."""
        return plan(
            self.pipeline,
            self._fit_workers(),
            fuse=self._fuse,
            replicas=self._replicas,
            places={**self._places, **(places or {})},
            transports={**self._transports, **(transports or {})},
            counts={**self._counts, **(counts or {})},
            current=self.crew.plan if self.crew else None,
            taken=self._beside(),
        )

    def _accept(self, commands: list[Command], warnings: tuple[str, ...]) -> None:
        if self._request is not None:
            commands.append(AnswerRequest(self._request, accepted=True, warnings=warnings))
            self._request = None

    def answer_to(self, request: int) -> list[Command]:
        """Whoever applied the run asks again: answered in the place of the first time, if that was not answered."""
        if self._request is not None:
            self._request = request
            return []
        return [AnswerRequest(request, accepted=True)]

    def _refuse(self, reason: str, differences: tuple[str, ...]) -> list[Command]:
        request, self._request = self._request, None
        self.leadership.drop_campaign()
        self._turn(RunTurn.FAULT)
        self.reason = reason
        commands: list[Command] = [ReportRun(self.pipeline.name, self.state.value, reason)]
        if request is not None:
            commands.insert(0, AnswerRequest(request, accepted=False, reason=reason, differences=differences))
        return commands

    def _apply(self) -> list[Command]:
        """A leader makes its pipeline the dataset's. The log may have grown since it was read first: look again."""
        if self._applied:
            return self._begin_index()
        admission = admit(self.pipeline, self.ledger, amend=self._amend)
        if admission.refusal:
            return self._fail(admission.refusal)
        if not self._submitted_pipeline:
            self._submitted_pipeline = True
            applied = PipelineApplied(self.version, self.pipeline.to_dict())
            if admission.anew:
                self.leadership.submit(EpochRaised("begun anew"), Removed("nothing was kept"), applied)
            else:
                reason = "created" if not self.ledger.pipeline else "amended"
                self.leadership.submit(applied, EpochRaised(reason))
        return []

    def _begin_index(self) -> list[Command]:
        """An index knows what is kept up to its epoch: where no earlier leader's goes on, an epoch begins with it."""
        if self.pipeline.stateful is not None and self._inherited is None and not self._submitted_pipeline:
            self._submitted_pipeline, self._renewed_from = True, self.ledger.epoch
            self.leadership.submit(EpochRaised("the dedup index begins"))
        return []

    @property
    def _applied(self) -> bool:
        return self.ledger.pipeline_version == self.version and self.ledger.epoch > 0

    def _begin_if_ready(self, now: float) -> list[Command]:
        leads = self.leadership.state is LeaderState.LEADING
        if self.state is not RunState.OPENING or not leads or not self._applied:
            return []
        if self._inherited is None and (self._waits_for_workers(now) or not self._fit_workers()):
            return []
        if self._renewed_from == self.ledger.epoch:
            return []
        self._renewed_from = None
        try:
            self.plan = without_solitary(self._inherited) if self._inherited else self._plan()
        except PipelineError as error:
            return self._fail(str(error))
        self._turn(RunTurn.PIPELINE_ACCEPTED)
        self.records_resumed = balance_of(self.ledger).records_closed
        # What one sink has not closed is read again, whatever the others have.
        states = self.ledger.fragments.values()
        self.bytes_resumed = sum(min(map(state.stored_bytes, self.sinks)) for state in states)
        self.crew = Crew(self.plan, self.pipeline, self.version, self.leadership.term)
        self.crew.index_served = self._inherited is not None
        return [*self._inherit(now), *self.crew.start_due(now, self.ledger.epoch, self._workers)]

    def _waits_for_workers(self, now: float) -> bool:
        """Whether workers of an earlier leader, who had not planned the run yet, may still come to this one."""
        if self._waited or not self._awaited():
            self._plan_by = None
            return False
        if self._plan_by is None:
            self._plan_by = now + REJOIN_S
        if now >= self._plan_by:
            # A moment that has passed would be waited for without end.
            self._plan_by, self._waited = None, True
        return not self._waited
