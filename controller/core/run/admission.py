"""May this pipeline go on with this dataset? Asked once, when the dataset's log has been read."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.pipeline import Pipeline, StageKind, difference
from headrace.store import counted
from headrace.store.ledger import LedgerState


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer: a reason to refuse (empty: none), what differs, and what to warn of.

    `anew`: another pipeline was here, and nothing that it made is worth keeping, so the dataset begins anew.
    """

    refusal: str = ""
    differences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    anew: bool = False


def nothing_kept(ledger: LedgerState) -> bool:
    """Whether no sink has kept a record, and no version was published."""
    return not ledger.version and not any(counts.kept for counts in ledger.counts.values())


def _begins_anew(ledger: LedgerState) -> tuple[str, ...]:
    """What is said where verdicts are forgotten; nothing where there was none."""
    closed = max((counts.records for counts in ledger.counts.values()), default=0)
    if not closed:
        return ()
    told = (
        f"the dataset begins anew: another pipeline had read {counted(closed, 'record')} into it and kept none; what "
        "it quarantined is not named any more, and `headrace dataset gc` deletes it"
    )
    return (told,)


def admit(pipeline: Pipeline, ledger: LedgerState, *, amend: bool) -> Admission:
    """Compare a pipeline with the one that made the dataset so far.

    Another graph, source, parameter or tokenizer is refused, unless `amend` says that what is still open shall be
    processed by the new one; the sinks' form cannot change once there are shards. Another environment alone warns.
    A dataset in which nothing was kept takes any pipeline, and begins anew with it.
    """
    if not ledger.pipeline:
        return Admission()
    earlier = Pipeline.from_dict(ledger.pipeline)
    changed = difference(earlier.identity(), pipeline.identity())
    if changed and not amend:
        if nothing_kept(ledger):
            return Admission(warnings=_begins_anew(ledger), anew=True)
        return Admission(
            f"dataset {pipeline.dataset} was made by another pipeline; write to a new dataset, or add --amend to "
            "process what is still open with this one",
            tuple(changed),
        )
    sinks = {stage.name for stage in pipeline.of_kind(StageKind.SINK)}
    fixed = [line for line in changed if line.split(".", 1)[0] in sinks]
    if fixed and ledger.shards:
        if nothing_kept(ledger):
            return Admission(warnings=_begins_anew(ledger), anew=True)
        return Admission(
            f"dataset {pipeline.dataset} holds shards of another form, and --amend cannot change them: write to a new "
            "dataset",
            tuple(fixed),
        )
    if changed or earlier.environment == pipeline.environment:
        return Admission()
    lines = difference(earlier.environment, pipeline.environment)
    return Admission(warnings=tuple(f"environment differs: {line}" for line in lines))
