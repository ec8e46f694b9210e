"""The end of a run: published, stopped or cancelled."""

from __future__ import annotations

from headrace.controller.core.messages import Command, ManifestWritten, ReportRun, StopRequested, WriteManifest
from headrace.controller.core.run.allowance import kept_nothing
from headrace.controller.core.run.run_base import RunBase
from headrace.controller.core.run.run_states import RunState, RunTurn
from headrace.store.ledger import VersionPublished

#: Seconds before a manifest is written again that the store took not, but may take later.
MANIFEST_AGAIN_S = 2.0


class Ending(RunBase):
    """From the last closed record, or somebody's wish, to the log's handing over."""

    def _publish(self, turn: RunTurn) -> list[Command]:
        if empty := kept_nothing(self.ledger, self.pipeline.dataset):
            return self._fail(empty)
        self._turn(turn)
        newest = self.ledger.newest
        fresh = newest is None or not newest.complete or self.ledger.unshown > 0
        if fresh:
            self.leadership.submit(VersionPublished(self.ledger.version + 1, "completed"))
        return [] if fresh else [WriteManifest(self.pipeline.dataset)]

    def _publish_what_is_closed(self) -> list[Command]:
        """After a stop: the sinks hold nothing any more."""
        self._turn(RunTurn.SINKS_EMPTY)
        if kept_nothing(self.ledger, self.pipeline.dataset):
            self.leadership.resign()
            return []
        if self.ledger.newest is not None and not self.ledger.unshown:
            return [WriteManifest(self.pipeline.dataset)]
        self.leadership.submit(VersionPublished(self.ledger.version + 1, "stopped", complete=False))
        return []

    def _manifest_written(self, event: ManifestWritten, now: float) -> list[Command]:
        """Only now hand the log over: who sees the run end shall find the manifest."""
        if self.state not in (RunState.PUBLISHING, RunState.EMPTIED):
            return []
        self._manifest_trouble = event.error
        if event.stalled:
            self._manifest_at = now + MANIFEST_AGAIN_S
            return []
        if event.error:
            return self._fail(f"all is committed, but the manifest could not be written: {event.error}; run it again")
        self.leadership.resign()
        return []

    def _manifest_again(self, now: float) -> list[Command]:
        """The store may have room again."""
        if self._manifest_at is None or now < self._manifest_at:
            return []
        self._manifest_at = None
        return [WriteManifest(self.pipeline.dataset)]

    def _resigned(self) -> list[Command]:
        self._turn(RunTurn.RESIGNED)
        stop = self.crew.stop(self.state.value) if self.crew else []
        return [*stop, ReportRun(self.pipeline.name, self.state.value, self.reason)]

    def _stop(self, event: StopRequested) -> list[Command]:
        if event.cancel or self.state is RunState.OPENING:
            self._turn(RunTurn.CANCEL_ASKED)
            self.reason = "cancelled"
            self.leadership.resign()
            stop = self.crew.stop("cancelled") if self.crew else []
            return [*stop, ReportRun(self.pipeline.name, self.state.value, self.reason)]
        if self.state in (RunState.RUNNING, RunState.PAUSING, RunState.PAUSED):
            self._turn(RunTurn.STOP_ASKED)
            self._halt()
        return []
