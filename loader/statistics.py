"""What a loader counts, and how it is told to Prometheus."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol


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
    #: how long assembling the received batches took, on whichever thread, in seconds
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
    shares: tuple[SourceShare, ...] = ()

    @property
    def data_wait_s_a_step(self) -> float:
        """How long the caller waited for a batch, on average, in seconds."""
        return self.data_wait_s / self.batches if self.batches else 0.0


class Counted(Protocol):
    """A loader, as far as metrics are concerned."""

    def statistics(self) -> LoaderStatistics:
        """Counts so far."""
        ...


_COUNTERS = {
    "batches": "Batches that the training loop received.",
    "samples": "Sequences that the training loop received.",
    "tokens": "Tokens that the training loop received; its rate is tokens a second.",
    "data_wait_s": "Seconds that the training loop waited for batches.",
    "assemble_s": "Seconds spent assembling batches, on whichever thread.",
    "verified_bytes": "Bytes read to check checksums.",
    "cache_hits": "Shards found in the local cache.",
    "cache_misses": "Shards fetched into the local cache.",
    "store_bytes": "Bytes read from remote stores.",
    "hedged_reads": "Ranged reads asked for a second time.",
}


class LoaderCollector:
    """A collector for `prometheus_client`: `REGISTRY.register(LoaderCollector(loader, rank="0"))`."""

    def __init__(self, loader: Counted, **labels: str) -> None:
        self._loader = loader
        self._labels = labels

    def collect(self) -> Iterator[Any]:
        """Yield the loader's counters as `headrace_loader_*`."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        now = self._loader.statistics()
        names, values = list(self._labels), list(self._labels.values())
        for field, text in _COUNTERS.items():
            metric = CounterMetricFamily(
                f"headrace_loader_{field.removesuffix('_s')}{_unit(field)}", text, labels=names
            )
            metric.add_metric(values, getattr(now, field))
            yield metric
        share = GaugeMetricFamily("headrace_loader_share", "Share of a source reached.", labels=[*names, "source"])
        passes = GaugeMetricFamily(
            "headrace_loader_source_passes", "How often a source was read.", labels=[*names, "source"]
        )
        for source in now.shares:
            share.add_metric([*values, source.name], source.reached)
            passes.add_metric([*values, source.name], source.passes)
        yield share
        yield passes


def _unit(field: str) -> str:
    return "_seconds" if field.endswith("_s") else ""
