"""What a run did and what its dataset holds: the balance, as an object for programs and as a page for people.

The balance is read from the dataset's ledger and not from the run's progress. `records_read` comes from what sources
said of their fragments, the verdicts from what sinks closed; that the two agree is what "balanced" means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.controller.counts import counts_from
from headrace.protos import control_pb2 as pb
from headrace.stages.counters import WITHOUT
from headrace.store.entries import Counts
from headrace.store.fold import LedgerState
from headrace.store.folding import fold_log
from headrace.store.log import Log
from headrace.store.objects import open_store

#: Reasons that the page shows for each verdict; the rest is summed up. `--json` has them all.
REASONS_SHOWN = 8
#: The share of records without what a stage judges by from which it is said to have judged nothing.
UNJUDGED_SHARE = 0.99
MB = 1e6


@dataclass(frozen=True, slots=True)
class Balance:
    """The records of a dataset. `padding` is in tokens, `version` 0 before the first."""

    records_read: int
    counts: Counts
    shards: int
    version: int
    balanced: bool
    #: Whether each listed fragment was read to its end and is closed, or given up.
    complete: bool
    #: Fragments of which the rest was given up, since their object changed or vanished.
    fragments_dropped: int = 0
    #: Tokens of a sequence, 0 where it is not known: then tokens that pieces repeat are left out of account.
    seq_len: int = 0

    @property
    def padding_share(self) -> float:
        """Padding as a share of all tokens in the sequences, 0 to 1."""
        whole = self.counts.sequences * self.seq_len or self.counts.tokens + self.counts.padding
        return self.counts.padding / whole if whole else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        counts = self.counts
        return {
            "records_read": self.records_read,
            "kept": counts.kept,
            "filtered": counts.filtered,
            "filtered_by": dict(counts.filtered_by),
            "duplicate": counts.duplicate,
            "quarantined": counts.quarantined,
            "quarantined_by": dict(counts.quarantined_by),
            "edited": dict(counts.edited),
            "counters": dict(counts.counters),
            "balanced": self.balanced,
            "complete": self.complete,
            "fragments_dropped": self.fragments_dropped,
            "tokens": counts.tokens,
            "sequences": counts.sequences,
            "padding": counts.padding,
            "padding_share": round(self.padding_share, 6),
            "shards": self.shards,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class StageSpeed:
    """One stage in one run. `busy_s` is summed over its replicas, so `mb_s` is the speed of one core."""

    stage: str
    records: int
    dropped: int
    bytes: int
    busy_s: float

    @property
    def mb_s(self) -> float:
        """Megabytes that one replica gets through in a second of work."""
        return self.bytes / self.busy_s / MB if self.busy_s > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "stage": self.stage,
            "records": self.records,
            "dropped": self.dropped,
            "bytes": self.bytes,
            "busy_s": round(self.busy_s, 3),
            "mb_s": round(self.mb_s, 2),
        }


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run and the dataset behind it."""

    pipeline: str
    dataset: str
    state: str
    pipeline_version: str
    balance: Balance
    bytes_read: int
    seconds: float
    first_batch_s: float
    records_resumed: int
    tokenizer_engine: str
    stages: tuple[StageSpeed, ...] = ()
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_dict(self) -> dict[str, Any]:
        """As JSON: the keys of `headrace run --json`."""
        return {
            "pipeline": self.pipeline,
            "dataset": self.dataset,
            "state": self.state,
            "pipeline_version": self.pipeline_version,
            **self.balance.to_dict(),
            "bytes_read": self.bytes_read,
            "seconds": round(self.seconds, 3),
            "first_batch_s": round(self.first_batch_s, 3),
            "records_resumed": self.records_resumed,
            "tokenizer_engine": self.tokenizer_engine,
            "stages": [stage.to_dict() for stage in self.stages],
            "warnings": list(self.warnings),
            "facts": dict(self.facts),
        }


def read_ledger(dataset: str) -> LedgerState:
    """The fold of a dataset's whole ledger. Raises StoreError, EntryError, FoldError."""
    return fold_log(Log(open_store(dataset)), LedgerState())


def balance_of(ledger: LedgerState) -> Balance:
    """What a ledger says became of the records, by the word of the main sink; balanced if each sink is."""
    main = main_sink(ledger.counts)
    read, agreed, complete = 0, True, bool(ledger.fragments)
    for sink, counts in ledger.counts.items():
        closed = ended = 0
        for state in ledger.fragments.values():
            closed += state.of(sink).size
            ended += state.records_due(sink)
            complete = complete and state.done((sink,))
        read = ended if sink == main else read
        agreed = agreed and closed == counts.records and (ended == counts.records or not complete)
    # Input that holds no record at all has been read to its end without a word of any sink.
    unread = any(state.count != 0 and state.dropped is None for state in ledger.fragments.values())
    complete = complete and (bool(ledger.counts) or not unread)
    dropped = sum(state.dropped is not None for state in ledger.fragments.values())
    counts = ledger.counts.get(main, Counts())
    seq_len = _seq_len(ledger.pipeline, main)
    return Balance(read, counts, len(ledger.shards), ledger.version, agreed, complete, dropped, seq_len)


def unjudged(ledger: LedgerState) -> tuple[str, ...]:
    """For each stage that hardly found what it judges by in what came to it: that it has judged nothing."""
    counts = ledger.counts.get(main_sink(ledger.counts), Counts())
    stages = ledger.pipeline.get("stages", ())
    places = {str(stage["name"]): place for place, stage in enumerate(stages)}
    lost = {**counts.filtered_by, **counts.quarantined_by}
    found: list[str] = []
    for key, without in sorted(counts.counters.items()):
        name, _, what = key.partition("/")
        if name not in places or not what.startswith(WITHOUT):
            continue
        before = sum(count for reason, count in lost.items() if places.get(reason.partition("/")[0], -1) < places[name])
        came = counts.records - before
        if without >= UNJUDGED_SHARE * came:
            fields = [f"{option}=" for option in stages[places[name]].get("parameters", {}) if option.endswith("_key")]
            advice = f"; name the field that holds it with {' or '.join(fields)}" if fields else ""
            found.append(f"{name}: {without:,} of {came:,} records are {what}, and were let through unjudged{advice}")
    return tuple(found)


def _seq_len(pipeline: Mapping[str, Any], sink: str) -> int:
    """What the pipeline declares; 0 for a sink that writes no sequences."""
    stages = [stage for stage in pipeline.get("stages", ()) if stage["name"] == sink]
    return int(stages[0]["parameters"].get("seq_len", 0)) if stages else 0


def main_sink(counts: Mapping[str, Counts]) -> str:
    """Each sink sees every record; the one that people ask about is that which writes tokens, else the first."""
    return max(counts, key=lambda sink: counts[sink].tokens, default="")


def speeds(stages: Sequence[pb.StageProgress]) -> tuple[StageSpeed, ...]:
    """The rows of a status as StageSpeed."""
    return tuple(StageSpeed(item.stage, item.records, item.dropped, item.bytes, item.busy_s) for item in stages)


def closed_balance(status: pb.PipelineStatus) -> Balance:
    """What a running pipeline has closed so far, by the controller's word."""
    by_sink = {sink: counts_from(counts) for sink, counts in status.counts.items()}
    counts = by_sink.get(main_sink(by_sink), Counts())
    return Balance(counts.records, counts, status.shards, 0, balanced=True, complete=False)
