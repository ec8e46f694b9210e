"""What a loader counts, and how it is told to Prometheus."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.loader.dataset import Sources
from headrace.loader.order import Event, Mixture, weights_at


@dataclass(frozen=True, slots=True)
class SourceShare:
    """How much of one source a mixture has read, over all ranks and up to the state."""

    name: str
    #: of all samples since the last change of weights, as asked for
    asked: float
    #: of all samples since the beginning
    reached: float
    samples: int
    #: how often the source was read, 1 being all of it once; above 1 it is upsampled
    passes: float


@dataclass(frozen=True, slots=True)
class LoaderStatistics:
    """Counts since the loader was made, of what its caller received."""

    batches: int
    #: rows, those that pad a last batch not counted
    samples: int
    #: tokens of these rows, the padding inside of them counted
    tokens: int
    #: how long the caller waited for batches, in seconds
    data_wait_s: float
    #: how long assembling the received batches took, on whichever thread of this process, in seconds
    assemble_s: float
    verified_shards: int
    verified_bytes: int
    #: shards found in the local cache, and shards that had to be fetched; none where storage is local
    cache_hits: int = 0
    cache_misses: int = 0
    #: bytes read from remote stores
    store_bytes: int = 0
    #: parts asked for a second time because the first answer took too long
    hedged_reads: int = 0
    #: from when the first batch was asked for to when the last one came, whatever the caller did between, in seconds
    elapsed_s: float = 0.0
    #: samples that all ranks have been given since the beginning of the journal
    position: int = 0
    #: which rank this is
    rank: int = 0
    shares: tuple[SourceShare, ...] = ()

    @property
    def tokens_s(self) -> float:
        """Tokens a second over all that time: the pace of the loop, and not what the loader could do."""
        return self.tokens / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def data_wait_s_a_step(self) -> float:
        """How long the caller waited for a batch, on average, in seconds."""
        return self.data_wait_s / self.batches if self.batches else 0.0


def shares_of(sources: Sources, mixture: Mixture, events: Sequence[Event], absolute: int) -> tuple[SourceShare, ...]:
    """What each source was to give and gave up to the absolute position."""
    given = mixture.given(absolute)
    asked = weights_at(events, absolute, sources.weights)
    return tuple(
        SourceShare(
            name=name,
            asked=asked[at] / sum(asked),
            reached=int(given[at]) / absolute if absolute else 0.0,
            samples=int(given[at]),
            passes=mixture.passes[at].read(int(given[at])),
        )
        for at, name in enumerate(sources.names)
    )


def statistics_of(
    counts: "ReceivedCounts", sources: Sources, shares: tuple[SourceShare, ...], position: int, rank: int
) -> LoaderStatistics:
    """What was counted, with what the datasets and their caches counted."""
    datasets = sources.datasets
    # datasets may share one cache
    caches = {id(dataset.cache): dataset.cache.statistics() for dataset in datasets if dataset.cache is not None}
    return LoaderStatistics(
        batches=counts.batches,
        samples=counts.samples,
        tokens=counts.samples * sources.seq_len,
        data_wait_s=counts.wait_s,
        assemble_s=counts.assemble_s,
        elapsed_s=counts.elapsed_s,
        position=position,
        rank=rank,
        verified_shards=sum(dataset.verified_shards for dataset in datasets),
        verified_bytes=sum(dataset.verified_bytes for dataset in datasets),
        cache_hits=sum(cache.hits for cache in caches.values()),
        cache_misses=sum(cache.misses for cache in caches.values()),
        store_bytes=sum(cache.fetched_bytes for cache in caches.values()),
        hedged_reads=sum(cache.hedges for cache in caches.values()),
        shares=shares,
    )


class ReceivedCounts:
    """Counts what a loop receives. Moments are those of `time.perf_counter`."""

    __slots__ = ("_first_s", "_last_s", "assemble_s", "batches", "samples", "wait_s")

    def __init__(self) -> None:
        self.batches = self.samples = 0
        self.wait_s = self.assemble_s = 0.0
        self._first_s = self._last_s = 0.0

    def count(self, samples: int, asked_s: float, came_s: float, assemble_s: float = 0.0) -> None:
        """A batch came that was asked for at `asked_s`."""
        if not self.batches:
            self._first_s = asked_s
        self._last_s = came_s
        self.batches += 1
        self.samples += samples
        self.wait_s += came_s - asked_s
        self.assemble_s += assemble_s

    @property
    def elapsed_s(self) -> float:
        """From when the first batch was asked for to when the last one came."""
        return self._last_s - self._first_s


class HasStatistics(Protocol):
    """A loader, as far as metrics are concerned."""

    def statistics(self) -> LoaderStatistics:
        """Counts so far."""
        ...


_COUNTERS = {
    "batches": "Batches that the training loop received.",
    "samples": "Sequences that the training loop received.",
    "tokens": "Tokens that the training loop received; its rate is tokens a second.",
    "data_wait_s": "Seconds that the training loop waited for batches.",
    "elapsed_s": "Seconds from the first batch asked for to the last one received.",
    "assemble_s": "Seconds spent assembling batches, on whichever thread of this process.",
    "verified_bytes": "Bytes read to check checksums.",
    "cache_hits": "Shards found in the local cache.",
    "cache_misses": "Shards fetched into the local cache.",
    "store_bytes": "Bytes read from remote stores.",
    "hedged_reads": "Ranged reads asked for a second time.",
}


class LoaderCollector:
    """A collector for `prometheus_client`: `REGISTRY.register(LoaderCollector(loader, rank="0"))`.

    Of several loaders in one process: `LoaderCollector(train, split="train").add(validation, split="validation")`.
    """

    def __init__(self, loader: HasStatistics, /, **labels: str) -> None:
        self._names = tuple(labels)
        self._loaders = [(loader, tuple(labels.values()))]

    def add(self, loader: HasStatistics, /, **labels: str) -> "LoaderCollector":
        """Tell of this loader too. Raises ValueError unless it has the same labels with other values."""
        values = tuple(labels.get(name, "") for name in self._names)
        if set(labels) != set(self._names) or values in [others for _, others in self._loaders]:
            raise ValueError(f"a value of its own for each of the labels {list(self._names)} is wanted, got {labels}")
        self._loaders.append((loader, values))
        return self

    def collect(self) -> Iterator[Any]:
        """Yield the loader's counters as `headrace_loader_*`."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        told = [(loader.statistics(), values) for loader, values in self._loaders]
        for field, text in _COUNTERS.items():
            name = f"headrace_loader_{field.removesuffix('_s')}{_unit(field)}"
            metric = CounterMetricFamily(name, text, labels=self._names)
            for now, values in told:
                metric.add_metric(values, getattr(now, field))
            yield metric
        position = GaugeMetricFamily("headrace_loader_position", "Samples given to all ranks.", labels=self._names)
        of_sources = [*self._names, "source"]
        share = GaugeMetricFamily("headrace_loader_share", "Share of a source reached.", labels=of_sources)
        passes = GaugeMetricFamily("headrace_loader_source_passes", "How often a source was read.", labels=of_sources)
        for now, values in told:
            position.add_metric(values, now.position)
            for source in now.shares:
                share.add_metric([*values, source.name], source.reached)
                passes.add_metric([*values, source.name], source.passes)
        yield from (position, share, passes)


def _unit(field: str) -> str:
    return "_seconds" if field.endswith("_s") else ""
