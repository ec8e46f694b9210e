"""What became of the records of a dataset, as its ledger says: the one reckoning behind every page, object and status.

Its equation is of what is closed: closed = kept + filtered + duplicate + quarantined. A source may have read more than
sinks have closed, after a kill or a stop, or while a run goes on. That is open, stands beside the equation, and is no
part of a share: read = closed + open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.store import counted, whole_number
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts

#: The reason of a source for a record that has not the field of its text.
NO_TEXT = "no text"


@dataclass(frozen=True, slots=True)
class Balance:
    """The records of a dataset by the word of one sink. `padding` of counts is in tokens."""

    #: What became of the records that are closed.
    counts: Counts
    #: Records that a source read to the end of their fragment and that the sink has not closed.
    records_open: int = 0
    fragments: int = 0
    #: Fragments of which something is open, or whose end is not logged.
    fragments_open: int = 0
    #: Of these, those whose end is not logged: nobody knows how many records they hold.
    fragments_unended: int = 0
    #: Fragments of which the rest was given up, since their object changed or vanished.
    fragments_dropped: int = 0
    #: Sinks that have something open, where the pipeline has several.
    open_at: tuple[str, ...] = ()
    shards: int = 0
    #: The newest published version; 0: none yet.
    version: int = 0
    #: Tokens of a sequence, 0 where it is not known: then tokens that pieces repeat are left out of account.
    seq_len: int = 0
    #: Whether each closed record has exactly one verdict, at every sink.
    balanced: bool = True
    #: Whether each listed fragment was read to its end and is closed by every sink, or given up.
    complete: bool = False

    @property
    def records_closed(self) -> int:
        """Records that have their verdict: the left side of the equation."""
        return self.counts.records

    @property
    def records_read(self) -> int:
        """Records that are closed, and those that were read and are open."""
        return self.records_closed + self.records_open

    @property
    def padding_share(self) -> float:
        """Padding as a share of all tokens in the sequences, 0 to 1."""
        whole = self.counts.sequences * self.seq_len or self.counts.tokens + self.counts.padding
        return self.counts.padding / whole if whole else 0.0

    def numbers(self) -> dict[str, float]:
        """What scorecards show and gates limit, by name; shares are of the closed records, 0 to 1."""
        counts, records = self.counts, max(1, self.counts.records)
        found: dict[str, float] = {
            "records": self.records_closed,
            "records_open": self.records_open,
            "kept": counts.kept,
            "duplicate": counts.duplicate,
            "kept_share": counts.kept / records,
            "filtered_share": counts.filtered / records,
            "duplicate_share": counts.duplicate / records,
            "quarantined_share": counts.quarantined / records,
            "tokens": counts.tokens,
            "sequences": counts.sequences,
        }
        removed = {**counts.filtered_by, **counts.quarantined_by}
        found |= {f"removed.{reason}": count / records for reason, count in removed.items()}
        return found | ({"padding_share": self.padding_share} if counts.sequences else {})

    @property
    def equation(self) -> str:
        """Closed = kept + filtered + duplicate + quarantined, in digits."""
        counts = self.counts
        parts = (counts.kept, counts.filtered, counts.duplicate, counts.quarantined)
        return f"{self.records_closed:,} = " + " + ".join(f"{part:,}" for part in parts)

    @property
    def open_words(self) -> str:
        """What is open, as a sentence without its stop; empty where the dataset is complete."""
        if self.complete:
            return ""
        if not self.fragments:
            return "nothing is listed yet"
        if not self.fragments_open:
            return f"all is closed at this sink, and not at {', '.join(self.open_at)}"
        words = f"{counted(self.fragments_open, 'fragment is', 'fragments are')} open"
        if self.fragments_unended:
            words += self._unended_words
        if self.records_open:
            words = f"{counted(self.records_open, 'record', 'records')} read and not closed; {words}"
        return words

    @property
    def _unended_words(self) -> str:
        if self.fragments_unended < self.fragments_open:
            return f", {self.fragments_unended:,} of them not read to the end"
        return " and not read to the end" if self.fragments_open == 1 else ", none of them read to the end"

    def to_dict(self) -> dict[str, Any]:
        """As JSON; a status on the wire has the same keys (`Balance` in protos/control.proto)."""
        counts = {name: getattr(self.counts, name) for name in Counts.__match_args__}
        return {
            **{name: getattr(self, name) for name in _TOLD},
            **{name: dict(value) if isinstance(value, Mapping) else value for name, value in counts.items()},
            "open_at": list(self.open_at),
            "padding_share": round(self.padding_share, 6),
        }


#: What JSON has of a balance beside its counts.
_TOLD = (
    *("records_read", "records_closed", "records_open", "balanced", "complete", "shards", "version"),
    *("fragments", "fragments_open", "fragments_unended", "fragments_dropped"),
)


def balance_of(ledger: LedgerState, sink: str | None = None) -> Balance:
    """What a ledger says became of the records, by the word of `sink`; without one, by that of the main sink."""
    sinks = sinks_of(ledger)
    name = sink if sink is not None else main_sink(ledger.counts) or (sinks[0] if sinks else "")
    totals = ledger.totals
    open_at = tuple(other for other in sinks if totals.fragments_open(other))
    return Balance(
        counts=ledger.counts.get(name, Counts()),
        records_open=totals.records_open(name),
        fragments=totals.fragments,
        fragments_open=totals.fragments_open(name),
        fragments_unended=totals.unended,
        fragments_dropped=totals.given_up,
        open_at=open_at if len(sinks) > 1 else (),
        shards=len(ledger.shards),
        version=ledger.version,
        seq_len=_seq_len(ledger.pipeline, name),
        balanced=all(
            totals.records(other) == ledger.counts.get(other, Counts()).records
            for other in {*ledger.counts, *totals.sinks}
        ),
        complete=totals.fragments > 0 and not open_at and not totals.fragments_open(name),
    )


def sinks_of(ledger: LedgerState) -> tuple[str, ...]:
    """The sinks of the pipeline in force; where it names none, those that have closed something."""
    stages = ledger.pipeline.get("stages", ())
    declared = tuple(str(stage.get("name", "")) for stage in stages if stage.get("kind") == "sink")
    return declared or tuple(sorted(ledger.counts))


def main_sink(counts: Mapping[str, Counts]) -> str:
    """Each sink sees every record; the one that people ask about is that which writes tokens, else the first."""
    return max(sorted(counts), key=lambda sink: counts[sink].tokens, default="")


def empty_sinks(ledger: LedgerState) -> tuple[str, ...]:
    """For each sink that kept nothing, where another did: that it holds nothing, and why."""
    empty = [(sink, counts) for sink, counts in sorted(ledger.counts.items()) if counts.records and not counts.kept]
    if not any(counts.kept for counts in ledger.counts.values()):
        return ()
    return tuple(
        f"sink {sink} kept none of {counted(counts.records, 'record')}: {losses_of(ledger, counts)}"
        for sink, counts in empty
    )


def losses_of(ledger: LedgerState, counts: Counts) -> str:
    """What was not kept, and what took most of it."""
    reasons: tuple[tuple[str, int, Mapping[str, int]], ...] = (
        ("quarantined", counts.quarantined, counts.quarantined_by),
        ("filtered", counts.filtered, counts.filtered_by),
        ("duplicate", counts.duplicate, {}),
    )
    return ", ".join(
        f"{count:,} {verdict}" + (f" (most of them by {chief_of(ledger, by)})" if by else "")
        for verdict, count, by in reasons
        if count
    )


def chief_of(ledger: LedgerState, by: Mapping[str, int]) -> str:
    """The `stage/reason` that took most, and for records without a text the field in which their source looked."""
    chief = max(by, key=by.__getitem__, default="unknown")
    name, _, reason = chief.partition("/")
    stages = (stage for stage in ledger.pipeline.get("stages", ()) if stage.get("name") == name)
    key = next((stage.get("parameters", {}).get("text_key", "") for stage in stages), "")
    return f'{chief}, looked for in the field "{key}": text_key= names another' if reason == NO_TEXT and key else chief


def _seq_len(pipeline: Mapping[str, Any], sink: str) -> int:
    """What the pipeline declares; 0 for a sink that writes no sequences."""
    for stage in pipeline.get("stages", ()):
        if stage.get("name") == sink:
            return whole_number(stage.get("parameters", {}).get("seq_len")) or 0
    return 0
