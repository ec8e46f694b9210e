"""A dataset that has more shards than when a state was saved: telling that from another dataset, and reading the old.

A newer version of a dataset lists the shards of the older one, in their order, and then its own. So the layout that a
state was saved over is that of the first shards, and which these are follows from the state alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.loader import DatasetGrew, SourceGrew
from headrace.loader.dataset.dataset import TokenDataset


def known_part(dataset: TokenDataset, bound: Mapping[str, Any]) -> TokenDataset | None:
    """The first shards of a dataset that has more by now, where a state (or one of its sources) is bound to these."""
    samples, root = bound.get("samples"), bound.get("layout_root")
    ends = dataset.layout.ends
    if type(samples) is not int or not 0 < samples <= dataset.layout.samples:
        return None
    # empty shards behind the last sample may belong to either
    first = int(np.searchsorted(ends, samples, side="left")) + 1
    last = int(np.searchsorted(ends, samples, side="right"))
    for count in range(first, last + 1):
        part = dataset.first_shards(count)
        if part.layout.root == root:
            return part
    return None


def known_parts(datasets: Sequence[TokenDataset], state: Mapping[str, Any]) -> list[TokenDataset]:
    """What a state knows of each dataset: its first shards, or all of it where the state knows that, or another."""
    bounds = state.get("sources") or [state]
    parts = list(datasets)
    for number, (dataset, bound) in enumerate(zip(datasets, bounds, strict=False)):
        if isinstance(bound, Mapping) and bound.get("layout_root") != dataset.layout.root:
            parts[number] = known_part(dataset, bound) or dataset
    return parts


def refuse_growth(parts: Sequence[TokenDataset], datasets: Sequence[TokenDataset]) -> None:
    """Raise DatasetGrew where a dataset has more than the part of it that a state knows."""
    grown = [
        SourceGrew(number, dataset.store.uri, *((one.layout.shards, one.layout.samples) for one in (part, dataset)))
        for number, (part, dataset) in enumerate(zip(parts, datasets, strict=True))
        if part is not dataset
    ]
    if grown:
        raise DatasetGrew(grown, len(datasets))
