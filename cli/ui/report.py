"""What a run did and what its dataset holds: the balance, as an object for programs and as a page for people.

The balance is read from the dataset's ledger and not from the run's progress (`store/ledger/core/balance.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.cli.ui.deaths import DeathRow
from headrace.cli.ui.words import MB
from headrace.protos import control_pb2 as pb
from headrace.stages.runtime import WITHOUT
from headrace.store import open_store
from headrace.store.ledger import Balance, Counts, LedgerState, Log, fold_log, main_sink

if TYPE_CHECKING:
    import pyarrow as pa

#: The share of records without what a stage judges by from which it is said to have judged nothing.
UNSEEN_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class StageSpeed:
    """One stage in one run, summed over its tasks.

    `busy_s` is the time for which they were at work, and what they waited for among it, `cpu_s` that of a core. So
    `mb_s` is what one core gets through, however many tasks share it.
    """

    stage: str
    records: int
    dropped: int
    bytes: int
    busy_s: float
    cpu_s: float = 0.0

    @property
    def mb_s(self) -> float:
        """Megabytes that one core gets through in a second; 0 where it spent no time that could be measured."""
        return self.bytes / self.cpu_s / MB if self.cpu_s > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        seconds = {"busy_s": round(self.busy_s, 3), "cpu_s": round(self.cpu_s, 3)}
        return {**asdict(self), **seconds, "mb_s": round(self.mb_s, 2)}


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is: bytes as they are stored, records and tokens of the ledger."""

    pipeline: str
    #: starting, running, publishing, completed, ...
    state: str
    seconds: float
    bytes_read: int
    bytes_total: int
    records_closed: int
    tokens: int
    #: What was said since the last one: deaths, what is compiled, what is waited for.
    notes: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """What was read of the input, from 0 to 1."""
        return min(1.0, self.bytes_read / self.bytes_total) if self.bytes_total else 0.0


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """One run and the dataset behind it; a notebook shows it as the page that the command prints."""

    pipeline: str
    dataset: str
    state: str
    pipeline_version: str
    balance: Balance
    #: As `Recipes.to_json` gives them.
    recipes: Sequence[Mapping[str, Any]]
    bytes_read: int
    seconds: float
    first_batch_s: float
    records_resumed: int
    tokenizer_engine: str
    stages: tuple[StageSpeed, ...] = ()
    #: Tasks, workers and controllers that died in it.
    deaths: tuple[DeathRow, ...] = ()
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_dict(self) -> dict[str, Any]:
        """As JSON: the keys of `headrace run --json`."""
        return {
            **{name: getattr(self, name) for name in _AS_THEY_ARE},
            **self.balance.to_dict(),
            "recipes": list(self.recipes),
            "seconds": round(self.seconds, 3),
            "first_batch_s": round(self.first_batch_s, 3),
            "stages": [stage.to_dict() for stage in self.stages],
            "deaths": [asdict(death) for death in self.deaths],
            "warnings": list(self.warnings),
            "facts": dict(self.facts),
        }

    def __repr__(self) -> str:
        counts = self.balance.counts
        parts = f"{counts.kept:,} kept, {counts.filtered:,} filtered, {counts.duplicate:,} duplicate"
        return (
            f"<RunResult {self.pipeline!r} {self.state} in {self.seconds:.1f} s: {counts.records:,} records, {parts}, "
            f"{counts.quarantined:,} quarantined, {counts.tokens:,} tokens; {self.dataset}>"
        )

    def _repr_html_(self) -> str:
        from headrace.cli.ui.page import html_of, run_page

        # the checker sees this module under two names
        return html_of(run_page(self))  # pyright: ignore[reportArgumentType]

    def documents(self) -> pa.RecordBatchReader:
        """The kept documents, as a stream of Arrow that pandas, polars and DuckDB take. Raises StoreError."""
        return self._rows("documents")

    def verdicts(self) -> pa.RecordBatchReader:
        """A row a record that was not kept: the stage, its verdict and its reason. As `documents`."""
        return self._rows("verdicts")

    def quarantine(self) -> pa.RecordBatchReader:
        """A row a record that was quarantined, with its raw bytes. As `documents`."""
        return self._rows("quarantine")

    def log(self) -> pa.RecordBatchReader:
        """A row a version that was published up to now, the oldest first: when, why and its balance. As `documents`."""
        from headrace.store.datasets import Dataset
        from headrace.store.history import log_rows

        return log_rows(Dataset.open(self.dataset).state)

    def _rows(self, role: str) -> pa.RecordBatchReader:
        from headrace.store.datasets import Dataset, read_rows

        return read_rows(Dataset.open(self.dataset).of_version(), role)


_AS_THEY_ARE = (
    *("pipeline", "dataset", "state", "pipeline_version"),
    *("bytes_read", "records_resumed", "tokenizer_engine"),
)


def read_ledger(dataset: str) -> LedgerState:
    """The fold of a dataset's whole ledger. Raises StoreError, EntryError, FoldError."""
    return fold_log(Log(open_store(dataset)), LedgerState())


def passed_unseen(ledger: LedgerState) -> tuple[str, ...]:
    """For each stage that hardly found what it judges by in what came to it: that it has judged nothing."""
    counts = ledger.counts.get(main_sink(ledger.counts), Counts())
    stages = ledger.pipeline.get("stages", ())
    places = {str(stage.get("name", "")): place for place, stage in enumerate(stages)}
    lost = {**counts.filtered_by, **counts.quarantined_by}
    found: list[str] = []
    for key, without in sorted(counts.counters.items()):
        name, _, what = key.partition("/")
        if name not in places or not what.startswith(WITHOUT):
            continue
        before = sum(count for reason, count in lost.items() if places.get(reason.partition("/")[0], -1) < places[name])
        came = counts.records - before
        if without >= UNSEEN_SHARE * came:
            fields = [f"{option}=" for option in stages[places[name]].get("parameters", {}) if option.endswith("_key")]
            advice = f"; name the field that holds it with {' or '.join(fields)}" if fields else ""
            found.append(
                f"{name}: {without:,} of {came:,} records are {what}, and were let through without being judged{advice}"
            )
    return tuple(found)


def speeds(stages: Sequence[pb.StageProgress]) -> tuple[StageSpeed, ...]:
    """The rows of a status as StageSpeed."""
    return tuple(
        StageSpeed(item.stage, item.records, item.dropped, item.bytes, item.busy_s, item.cpu_s) for item in stages
    )
