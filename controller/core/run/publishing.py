"""The end of a run: how much it may lose, what it publishes, and when its manifest is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.controller.core.log import Leadership
from headrace.controller.core.messages import (
    Allowance,
    AuditDataset,
    Command,
    DatasetAudited,
    ManifestWritten,
    PipelineRequested,
    WriteManifest,
)
from headrace.controller.core.run.reconfiguration import Reconfiguration
from headrace.store import counted
from headrace.store.ledger import Counts, LedgerState, VersionHeld, VersionPublished, chief_of, lacks_input, losses_of

#: Seconds before a manifest is written again that the store did not take, but may take later.
MANIFEST_AGAIN_S = 2.0
#: Seconds between two audits of a run that flows, how many times as long as the last one took, and rows that its entry,
#: or a message, names.
AUDIT_S = 60.0
AUDIT_REST = 20
REASONS_MAX = 32
#: Closed records from which on a share of quarantined ones means something: the first bad record may be the first.
SHARE_RECORDS_MIN = 1000
_NOTHING = Counts()


def excess(
    allowance: Allowance, ledger: LedgerState, dataset: str, before: Mapping[str, Counts], *, at_end: bool
) -> str:
    """Why too much is lost of what was closed since these counts `before`, and where that can be seen; empty if not."""
    if allowance.records is None and allowance.share is None:
        return ""
    for sink, counts in ledger.counts.items():
        earlier = before.get(sink, _NOTHING)
        lost, all_of_them = counts.quarantined - earlier.quarantined, counts.records - earlier.records
        judged = at_end or all_of_them >= SHARE_RECORDS_MIN
        too_many = allowance.records is not None and lost > allowance.records
        too_great = allowance.share is not None and judged and lost > allowance.share * all_of_them
        if too_many or too_great:
            verb = "is" if lost == 1 else "are"
            allowed = f"{allowance.records}" if too_many else f"{100 * (allowance.share or 0.0):g}%"
            by = {why: count - earlier.quarantined_by.get(why, 0) for why, count in counts.quarantined_by.items()}
            chief = chief_of(ledger, by)
            records = counted(all_of_them, "record")
            return (
                f"{lost} of {records} closed by sink {sink} {verb} quarantined, more than the {allowed} "
                f"allowed; most of them by {chief}; see `headrace dataset show {dataset} --quarantine`, then mend "
                "the input or raise --max-quarantined and run it again"
            )
    return ""


def kept_nothing(ledger: LedgerState, dataset: str) -> str:
    """Why no version is published of a dataset that is closed and holds nothing, and what to do; empty if it does."""
    if any(counts.kept for counts in ledger.counts.values()):
        return ""
    counts = max(ledger.counts.values(), key=lambda item: item.records, default=None)
    if counts is None or not counts.records:
        return "nothing was kept, since the input holds no records: no version is published; see to the input"
    shown = "--quarantine" if counts.quarantined >= counts.filtered else "--samples"
    lost = losses_of(ledger, counts)
    return (
        f"nothing was kept of {counted(counts.records, 'record')}: {lost}; no version is published. See "
        f"`headrace dataset show {dataset} {shown}`, then mend the input or the pipeline and run it again"
    )


def held_words(ledger: LedgerState, dataset: str) -> str:
    """Why a version is held, and what to do."""
    return (
        f"all is committed, but version {ledger.version + 1} is held by its gate: {'; '.join(ledger.held)}. Mend the "
        f"input or the pipeline and run it again, or publish it by `headrace dataset publish {dataset} --anyway`"
    )


def lacking_words(ledger: LedgerState, dataset: str) -> str:
    """Why a run that has closed all ends with a version that is incomplete, and what to do."""
    return (
        f"all is committed, but version {ledger.version} is incomplete: a rollback hides "
        f"{counted(ledger.rolled_back, 'shard')} of its input, which no run reads again; `headrace dataset rollback` "
        f"to a version of {dataset} that shows them undoes it"
    )


class Publishing:
    """Publishes a version of the dataset where its gate lets it pass, and has its manifest written before the log is
    handed over.
    """

    def __init__(
        self,
        request: PipelineRequested,
        leadership: Leadership[LedgerState],
        reconfiguration: Reconfiguration,
        broken: tuple[str, ...] = (),
    ) -> None:
        self._leadership, self._ledger, self._dataset = leadership, leadership.ledger, leadership.log
        self._reconfiguration = reconfiguration
        self._gate, self._pauses, self._allowance = request.gate, request.gate_pauses, request.allowance
        #: What each sink had closed before.
        self._before: Mapping[str, Counts] = {}
        self._write_at: float | None = None
        #: The version that waits for its gate.
        self._waiting: VersionPublished | None = None
        #: The gate that was asked and has not answered: none is asked meanwhile.
        self._asked: Mapping[str, Any] | None = None
        #: While the run flows: when the gate is asked next, and when and of how many shards it was.
        self._look_at = self._asked_at = 0.0
        self._looked = 0
        self._broken = broken
        #: Whether all is closed, and the version lacks what a rollback hides: the run fails once it is published.
        self._lacks = False
        #: Why the store did not take the manifest, or was not read for the gate.
        self._trouble = ""

    def amended(self, request: PipelineRequested) -> PipelineRequested:
        """The options in force are those of this request; it. What an earlier gate said is forgotten."""
        if request.gate != self._gate:
            self._broken, self._looked, self._look_at = (), 0, 0.0
        self._gate, self._pauses, self._allowance = request.gate, request.gate_pauses, request.allowance
        return request

    def begin(self) -> None:
        """What is closed by now was closed before; a later leader of the same run begins there too."""
        self._before = dict(self._ledger.counts)

    def excess(self, *, at_end: bool) -> str:
        """Why the run has lost too much of what it has closed; empty if it has not."""
        return excess(self._allowance, self._ledger, self._dataset, self._before, at_end=at_end)

    def excess_before(self) -> str:
        """Why too much is lost of what no version shows, where this run has closed nothing; empty if not.

        So a run that failed for it fails again when nothing was mended.
        """
        newest, shown = self._ledger.newest, dict.fromkeys(self._before, _NOTHING)
        if self._before != self._ledger.counts or not self._ledger.unshown:
            return ""
        for number, closed in ((shard.number, shard.closed) for shard in self._ledger.shards):
            if newest is not None and (number <= newest.shows or newest.hides_entry(number)):
                shown[closed.sink] += closed.counts
        why = excess(self._allowance, self._ledger, self._dataset, shown, at_end=True)
        return why and f"this run closed nothing, and of what no version shows {why}"

    @property
    def trouble(self) -> str:
        """What keeps the version from being published just now, for people; "" if nothing does."""
        return self._trouble or (f"its gate is broken: {'; '.join(self._broken)}" if self._broken else "")

    @property
    def wake_at(self) -> float | None:
        """When the manifest is written, or the gate asked, again."""
        return self._write_at

    def complete(self) -> list[Command]:
        """All is closed: publish a version, or write the manifest of the one that has it all.

        It is incomplete where a rollback hides a part of the input.
        """
        newest, self._lacks = self._ledger.newest, lacks_input(self._ledger)
        if newest is not None and newest.complete != self._lacks and not self._ledger.unshown:
            return [WriteManifest(self._dataset, self._leadership.term)]
        version, reason = self._ledger.version + 1, "stopped" if self._lacks else "completed"
        return self._publish(VersionPublished(version, reason, complete=not self._lacks))

    def stopped(self) -> list[Command]:
        """The run was stopped and the sinks are empty: publish what is closed."""
        if kept_nothing(self._ledger, self._dataset):
            self._leadership.resign()
            return []
        if self._ledger.newest is not None and not self._ledger.unshown:
            return [WriteManifest(self._dataset, self._leadership.term)]
        return self._publish(VersionPublished(self._ledger.version + 1, "stopped", complete=False))

    def _publish(self, version: VersionPublished) -> list[Command]:
        if not self._gate:
            self._leadership.submit(version)
            return []
        self._waiting = version
        return self._ask(final=True)

    def _ask(self, *, final: bool) -> list[Command]:
        if self._asked is not None:
            return []
        self._asked = self._gate
        return [AuditDataset(self._dataset, self._gate, self._leadership.term, final)]

    def handle(self, event: DatasetAudited | ManifestWritten, now: float, *, ends: bool) -> str:
        """Take what the gate or the store says; why the run fails, if it does."""
        if event.term != self._leadership.term:
            return ""  # An earlier run on this dataset asked, and has ended.
        if isinstance(event, ManifestWritten):
            return self._written(event, now) if ends else ""
        asked, self._asked = self._asked, None
        if event.final:
            return self._audited(event, now) if ends else ""
        if self._waiting is not None:
            self._write_at = now
        if asked != self._gate:
            return ""  # Another gate has been put in its place.
        self._broken = event.broken[:REASONS_MAX]
        self._look_at = max(self._look_at, now + AUDIT_REST * (now - self._asked_at))
        if self._broken and self._pauses and not ends:
            self._reconfiguration.pause_for_gate(self._broken, logged=bool(self._leadership.cluster))
        return ""

    def _audited(self, event: DatasetAudited, now: float) -> str:
        """Publish what passes, hold what does not."""
        version, self._trouble = self._waiting, event.error
        if version is None:
            return ""
        if event.stalled:
            self._write_at = now + MANIFEST_AGAIN_S
            return ""
        if event.error:
            return f"all is committed, but its gate could not be asked: {event.error}; run it again"
        self._waiting, self._broken = None, ()
        held = VersionHeld(version.version, event.broken[:REASONS_MAX])
        self._leadership.submit(held if event.broken else version)
        return ""

    def _written(self, event: ManifestWritten, now: float) -> str:
        """Hand the log over only now, so that the manifest stands when the run ends; why the run fails, if it does."""
        self._trouble = event.error
        if event.stalled:
            self._write_at = now + MANIFEST_AGAIN_S
            return ""
        if event.error:
            return f"all is committed, but the manifest could not be written: {event.error}; run it again"
        if self._lacks:
            return lacking_words(self._ledger, self._dataset)
        self._leadership.resign()
        return ""

    def ask_again(self, now: float, *, flows: bool) -> list[Command]:
        """The store may have room again, or answer; and a run that flows asks its gate now and then."""
        shards = len(self._ledger.shards)
        if flows and self._gate and self._asked is None and now >= self._look_at and shards > self._looked:
            self._asked_at, self._look_at, self._looked = now, now + AUDIT_S, shards
            return self._ask(final=False)
        if self._write_at is None or now < self._write_at:
            return []
        self._write_at = None
        if self._waiting is not None:
            return self._ask(final=True)
        return [WriteManifest(self._dataset, self._leadership.term)]
