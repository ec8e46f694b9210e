"""A pipeline with a base: `--from DATASET@VERSION`, compared before anything is started."""

from __future__ import annotations

from dataclasses import replace

from headrace.client.errors import CliError, UsageError
from headrace.pipeline import Base, Pipeline, PipelineError, first_change, unchanged_stages
from headrace.store import NoDataset
from headrace.store.datasets import Dataset
from headrace.store.history import split_address, version_named, view
from headrace.store.ledger import LedgerState

#: What may be judged again.
QUARANTINED = "quarantined"


def with_base(pipeline: Pipeline, address: str, judge_again: str = "") -> Pipeline:
    """The pipeline with a base, or as it is where the address is empty.

    Raises UsageError for the options, CliError where nothing can be taken over, or where the output was begun
    otherwise, StoreError for the base.
    """
    if judge_again not in ("", QUARANTINED):
        raise UsageError(f"--judge-again {judge_again!r}: give {QUARANTINED}")
    if not address:
        if judge_again:
            raise UsageError("--judge-again needs --from: without it every record is judged")
        return pipeline
    uri, name = split_address(address)
    whole = Dataset.open(uri)
    if whole.uri == pipeline.dataset:
        raise UsageError(f"--from {address} is the dataset that this run writes; to continue it, leave out --from")
    if not whole.version:
        raise CliError(f"{whole.uri} has no published version that could be taken over: run it to its end")
    dataset = view(whole, version_named(whole.store, whole.state, name) if name else whole.version)
    state = dataset.state
    recipes: dict[str, dict[str, tuple[str, ...]]] = {}
    reasons: dict[str, str] = {}
    changed = ""
    for version in dict.fromkeys(shard.closed.version for shard in dataset.shards):
        try:
            earlier = Pipeline.from_dict(state.pipelines.get(version))
        except PipelineError:
            continue  # a recipe of a newer Headrace: its records are judged again
        recipes[version], why = unchanged_stages(earlier, pipeline)
        reasons |= why
        changed = first_change(earlier, pipeline)
    if not any(stages for paths in recipes.values() for stages in paths.values()):
        lines = [f"{source}: {reason}" for source, reason in sorted(reasons.items())]
        raise CliError(f"nothing of {address} can be taken over; run without --from", lines)
    entry = state.published[dataset.version].number
    base = Base(dataset.uri, dataset.version, entry, changed, recipes, again=bool(judge_again))
    _check_output(pipeline, base)
    return replace(pipeline, base=base)


def _check_output(pipeline: Pipeline, base: Base) -> None:
    """CliError where the ledger of the output says that this pipeline began it without this base."""
    try:
        state: LedgerState = Dataset.open(pipeline.dataset).state
    except NoDataset:
        return
    begun = state.pipelines.get(pipeline.version())
    if begun is None:
        return
    named = begun.get("base")
    if named != base.to_dict():
        what = f"from {named['dataset']}@{named['version']}" if isinstance(named, dict) else "without --from"
        raise CliError(f"{pipeline.dataset} was begun {what}: go on in the same way, or without --from")
