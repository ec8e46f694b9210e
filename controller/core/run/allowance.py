"""How much of its input a run may lose to quarantine before it is ended: a count, a share, or both.

A share is judged from SHARE_RECORDS_MIN closed records on, since the first bad record of a run may be its first, and
of any number at the end. What is closed stays closed: a run that is started again with a wider allowance goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.store import counted
from headrace.store.ledger import LedgerState

#: Closed records from which on a share means something.
SHARE_RECORDS_MIN = 1000


@dataclass(frozen=True, slots=True)
class Allowance:
    """Quarantined records that are allowed, of one sink: at most `records`, and at most `share` of all; None: any."""

    records: int | None = None
    share: float | None = None

    def excess(self, ledger: LedgerState, dataset: str, *, at_end: bool) -> str:
        """Why the run has lost too much, and where that can be seen; empty if it has not."""
        if self.records is None and self.share is None:
            return ""
        for sink, counts in ledger.counts.items():
            lost, all_of_them = counts.quarantined, counts.records
            judged = at_end or all_of_them >= SHARE_RECORDS_MIN
            too_many = self.records is not None and lost > self.records
            too_great = self.share is not None and judged and lost > self.share * all_of_them
            if too_many or too_great:
                verb = "is" if lost == 1 else "are"
                allowed = f"{self.records}" if too_many else f"{100 * (self.share or 0.0):g}%"
                chief = max(counts.quarantined_by, key=counts.quarantined_by.__getitem__, default="unknown")
                records = counted(all_of_them, "record")
                return (
                    f"{lost} of {records} closed by sink {sink} {verb} quarantined, more than the {allowed} "
                    f"allowed; most of them by {chief}; see `headrace dataset show {dataset} --quarantine`, then mend "
                    "the input or raise --max-quarantined and run it again"
                )
        return ""


#: Nothing that is lost ends the run.
ANY_LOSS = Allowance()


def kept_nothing(ledger: LedgerState, dataset: str) -> str:
    """What is wrong with a dataset all of which is closed and that holds nothing, and what to do; empty if it does."""
    if any(counts.kept for counts in ledger.counts.values()):
        return ""
    counts = max(ledger.counts.values(), key=lambda item: item.records, default=None)
    if counts is None or not counts.records:
        return "nothing was kept, since the input holds no records: no version is published; see to the input"
    parts: list[str] = []
    nobody: Mapping[str, int] = {}
    reasons = ("quarantined", counts.quarantined_by), ("filtered", counts.filtered_by), ("duplicate", nobody)
    for verdict, by in reasons:
        count: int = getattr(counts, verdict)
        if count:
            chief = max(by, key=by.__getitem__) if by else ""
            parts.append(f"{count:,} {verdict}" + (f" (most of them by {chief})" if chief else ""))
    shown = "--quarantine" if counts.quarantined >= counts.filtered else "--samples"
    return (
        f"nothing was kept of {counted(counts.records, 'record')}: {', '.join(parts)}; no version is published. See "
        f"`headrace dataset show {dataset} {shown}`, then mend the input or the pipeline and run it again"
    )
