"""The datasets that one loader reads, behind one numbering of their shards."""

import os
import resource
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from headrace.loader.dataset.dataset import (
    DESCRIPTORS,
    DESCRIPTORS_CACHED,
    SHARDS_OPEN_MAX,
    TokenDataset,
    open_dataset,
)
from headrace.loader.dataset.manifest import ShardEntry
from headrace.loader.dataset.shard import Shard
from headrace.loader.dataset.verify import WAIT_S_MAX
from headrace.loader.order import DatasetGrew, LoaderError, SampleLayout, SourceGrew

#: of the cache, what may be held at once: what is in use and what comes must fit together
HELD_SHARE: Final = 0.5
TOKEN_BYTES_MAX: Final = 4
#: of a small shard in a cache: its header, its pieces and its map, on pages of their own
SHARD_BYTES_MIN: Final = 16 << 10


@dataclass(frozen=True, slots=True)
class Source:
    """One dataset of a mixture: the dataset, its URI or path, its weight, and the name that reports use."""

    dataset: TokenDataset | str | os.PathLike[str]
    weight: float = 1.0
    #: the dataset's own name by default; where several have one name, it is followed by the source's number: "plain[1]"
    name: str = ""


def told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """The names, with its number behind each that several have: those of all datasets of one pipeline are the same."""
    return tuple(f"{name}[{at}]" if names.count(name) > 1 else name for at, name in enumerate(names))


def open_max(datasets: Sequence[TokenDataset]) -> int:
    """How many shards each of these may have open with a third of the descriptors that this process may have.

    Where that is less than they want, the soft limit is raised as far as the hard one allows.
    """
    each = [DESCRIPTORS if dataset.cache is None else DESCRIPTORS_CACHED for dataset in datasets]
    wanted = 3 * sum(
        of * min(SHARDS_OPEN_MAX, dataset.layout.shards) for of, dataset in zip(each, datasets, strict=True)
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return SHARDS_OPEN_MAX
    return max(1, soft // 3 // sum(each))


class Sources:
    """Open datasets of tokens, with one tokenizer and one seq_len. Raises LoaderError for others."""

    def __init__(self, sources: Sequence[Source]) -> None:
        if not sources:
            raise ValueError("a loader needs at least one dataset")
        self.datasets: list[TokenDataset] = [
            source.dataset if isinstance(source.dataset, TokenDataset) else open_dataset(os.fspath(source.dataset))
            for source in sources
        ]
        self.weights = tuple(float(source.weight) for source in sources)
        self.names = told_apart(
            [source.name or dataset.manifest.dataset for source, dataset in zip(sources, self.datasets, strict=True)]
        )
        first = self.datasets[0].manifest
        for dataset in self.datasets:
            if not dataset.seq_len:
                raise LoaderError(f"{dataset!r} has documents and no tokens: open_dataset(uri).documents() gives them")
        for dataset in self.datasets[1:]:
            for field in ("seq_len", "tokenizer", "pad_id"):
                mine, theirs = getattr(first, field), getattr(dataset.manifest, field)
                if mine != theirs:
                    raise LoaderError(
                        f"{self.datasets[0]!r} and {dataset!r} cannot be mixed: {field} is {mine!r} and {theirs!r}"
                    )
        self.seq_len = first.seq_len
        self.pad_id = first.pad_id
        self._starts = [0]
        for dataset in self.datasets:
            self._starts.append(self._starts[-1] + dataset.layout.shards)
        self._before: dict[tuple[int, int, str], SampleLayout | None] = {}
        self._verifiers = [dataset.verifier for dataset in self.datasets]
        self._open_max = open_max(self.datasets)
        for dataset in self.datasets:
            dataset.open_max = self._open_max
        if len(self.datasets) == 1:
            self.shard = self.datasets[0].shard  # type: ignore[method-assign]

    def until(self, stopped: Callable[[], bool]) -> "Sources":
        """The same open datasets, for one loop: its waits for shards and rows end once `stopped`."""
        found = Sources.__new__(Sources)
        found.__dict__.update(self.__dict__, stopped=stopped)
        if len(self.datasets) == 1:
            found.shard = partial(self.datasets[0].shard, stopped=stopped)  # type: ignore[method-assign]
        return found

    def stopped(self) -> bool:
        """Whether nobody waits for rows any more; see `until`."""
        return False

    def __getstate__(self) -> Any:
        raise TypeError("make the loader's sources anew in the other process: Sources(loader.sources.plain())")

    def plain(self, *, forked: bool = False) -> list[Source]:
        """What made these sources, for another process; `forked` gives datasets with threads of their own."""
        datasets = [dataset.replica() if forked else dataset for dataset in self.datasets]
        return [Source(*one) for one in zip(datasets, self.weights, self.names, strict=True)]

    @property
    def versions(self) -> tuple[int, ...]:
        """The version that each dataset is read at."""
        return tuple(dataset.version for dataset in self.datasets)

    def layout_before(self, source: int, samples: int, root: str) -> SampleLayout | None:
        """The layout of a source's first shards, of so many samples and that root; None where it begins otherwise."""
        key = (source, samples, root)
        if key not in self._before:
            # looked for once: it reads the checksums of all shards
            part = known_part(self.datasets[source], {"samples": samples, "layout_root": root})
            self._before[key] = None if part is None else part.layout
        return self._before[key]

    def shard(self, number: int) -> Shard:
        """The shard of that number, counted through all datasets; see `TokenDataset.shard`."""
        source = bisect_right(self._starts, number) - 1
        return self.datasets[source].shard(number - self._starts[source], self.stopped)

    def at_hand(self, number: int) -> Shard | None:
        """The shard of that number where nothing has to be fetched for it: local, or open."""
        source = bisect_right(self._starts, number) - 1
        return self.datasets[source].at_hand(number - self._starts[source])

    def entry(self, number: int) -> tuple[TokenDataset, ShardEntry]:
        """The dataset of a shard, and what its manifest says of it."""
        source = bisect_right(self._starts, number) - 1
        dataset = self.datasets[source]
        return dataset, dataset.manifest.shards[number - self._starts[source]]

    def fetch_whole(self, number: int) -> None:
        """Have all of a shard fetched when it is opened."""
        source = bisect_right(self._starts, number) - 1
        self.datasets[source].fetch_whole(number - self._starts[source])

    def can_hold(self, numbers: Sequence[int]) -> bool:
        """Whether these shards may all be open at once: none of them would be given up, nor fill a cache."""
        held = dict.fromkeys(range(len(self.datasets)), 0)
        for number in numbers:
            source = bisect_right(self._starts, number) - 1
            rows = self.datasets[source].manifest.shards.sequences[number - self._starts[source]]
            held[source] += rows * self.seq_len * TOKEN_BYTES_MAX + SHARD_BYTES_MIN
        caches = {source: self.datasets[source].cache for source in held}
        roomy = all(cache is None or held[at] <= cache.space_bytes * HELD_SHARE for at, cache in caches.items())
        return roomy and len(numbers) <= self._open_max

    def release(self, needed: set[int]) -> None:
        """Let go of open shards that are not among these numbers."""
        for start, dataset in zip(self._starts, self.datasets, strict=False):
            dataset.release({number - start for number in needed})

    def check(self) -> None:
        """Raise what a check behind the reader found."""
        for verifier in self._verifiers:
            if verifier.error is not None:
                raise verifier.error

    def pause_checks(self) -> None:
        """Put checks behind the reader off until `go_on_checking`."""
        for dataset in self.datasets:
            dataset.verifier.pause()

    def go_on_checking(self) -> None:
        """Let the checks behind the reader run."""
        for dataset in self.datasets:
            dataset.verifier.go_on()

    def wait_verified(self, timeout_s: float = WAIT_S_MAX) -> None:
        """Return when every shard that was read from has been checked."""
        for dataset in self.datasets:
            dataset.wait_verified(timeout_s)


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
