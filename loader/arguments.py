"""What a caller gave, as the loader means it, or an error that says what would do."""

import enum
import operator
import os
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from headrace.loader.dataset import Source, Sources, TokenDataset
from headrace.loader.order import Cut, LoaderError
from headrace.store import StoreError, counted

E = TypeVar("E", bound=enum.Enum)

#: cu_seqlens counts tokens of a flattened batch in int32
BATCH_TOKENS_MAX: Final = (1 << 31) - 1


def whole(name: str, value: Any, least: int = 0) -> int:
    """`value` as an int, also where it is numpy's, which JSON does not know. Raises TypeError, ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} is at least {least}, got {number}")
    return number


def chosen(kind: type[E], name: str, value: E | str) -> E:
    """The member of `kind` of that value. Raises ValueError with those that there are."""
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} is one of {', '.join(repr(one.value) for one in kind)}; got {value!r}") from None


def listed_sources(dataset: Any) -> Sequence[Source]:
    """One dataset or a mixture as a list of sources. Raises TypeError for what is neither."""
    if isinstance(dataset, TokenDataset | str | os.PathLike):
        return [Source(dataset)]
    if not isinstance(dataset, Sequence) or not all(isinstance(one, Source) for one in dataset):
        raise TypeError(f"a dataset is a URI, a path, a TokenDataset or a list of Source(dataset, weight): {dataset!r}")
    return dataset


def check_sizes(sources: Sources, cut: Cut, pass_samples: int | None) -> None:
    """Raise ValueError for a batch or a pass that cannot be, LoaderError for a mixture with an empty dataset."""
    datasets = sources.datasets
    if cut.batch_size * sources.seq_len > BATCH_TOKENS_MAX:
        raise ValueError(f"{cut.batch_size} sequences of {sources.seq_len} tokens pass 2^31 tokens a batch")
    if len(datasets) == 1 and pass_samples is not None:
        raise ValueError("pass_samples is for mixtures; a pass over one dataset has its samples")
    if len(datasets) > 1 and not all(dataset.layout.samples for dataset in datasets):
        empty = [dataset for dataset in datasets if not dataset.layout.samples]
        raise LoaderError(f"{empty} of the mixture: no samples, so no weight can be kept; leave it out")


def check_step(dataset: TokenDataset, cut: Cut, samples: int) -> None:
    """Raise LoaderError where a pass of so many samples has no step."""
    if cut.steps(samples) == 0:
        why = _no_step(cut, samples) if samples else _no_samples(dataset)
        raise LoaderError(f"{dataset!r}: {why}")


def _no_samples(dataset: TokenDataset) -> str:
    """Why a dataset holds none, as far as its ledger says."""
    # of a dataset that holds some, the manifest is enough
    from headrace.store.datasets import fold_ledger
    from headrace.store.ledger import empty_sinks

    try:
        why = "; ".join(empty_sinks(fold_ledger(dataset.store)))
    except StoreError:
        why = ""
    why = why or "its input was empty, or no record was kept"
    return f"no samples: {why}; `headrace dataset show` says what became of each"


def _no_step(cut: Cut, samples: int) -> str:
    """Why a pass of so few samples has no step, and what would give it one."""
    # with a batch of one sample a rank, each rank has one
    way = (
        "lower batch_size"
        if samples >= cut.world_size
        else f"train with at most {counted(samples, 'rank')} and batch_size 1"
    )
    return (
        f"a pass of {counted(samples, 'sample')} cannot fill one global batch of {cut.stride} (batch_size "
        f"{cut.batch_size} x world_size {cut.world_size}); {way}, or pass last='pad'"
    )
