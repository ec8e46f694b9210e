"""Which workers run how many replicas of each chain, and why: the part of a plan that counts cores and memory.

Stages of one place form a **column**: a worker that takes part runs replicas of all of them, so that what talks much
stays together and links stay inside the worker. A stage may declare the cores and the memory that one replica of it
takes (`Stage.cores`, `Stage.memory_bytes`), and where it would rather be (`Stage.near`). What is declared is reserved
and never promised twice; what is not declared weighs nothing.

Workers are chosen in this order: near what the stage requests to be near, on the host, rack and zone of the stages
that it reads from, by what was measured of them (`speeds`), then by name. A number of replicas that was asked for is
spread by the same measures. The cost grows with workers and tasks by n log n.

How much of a number of replicas workers can carry beside one another, by what `headrace bench` measured there. A
worker speaks for itself, and only of what compares it with others: a fact counts as its ratio to the lower median of
those that told it, within SPEED_MIN and SPEED_MAX. A lie gains no more than that. Where one of the workers has told
nothing, all count alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from headrace.controller.core.plan.locality import WorkerFacts, eligible
from headrace.pipeline import Pipeline, PipelineError, StageKind
from headrace.store import counted

#: Facts of one core; of a host's way to the store and to other hosts.
CORE_FACTS = ("reader_bytes_s", "filters_bytes_s", "tokenizer_bytes_s")
STORE_FACTS = ("store_read_bytes_s", "store_write_bytes_s", "net_bytes_s")
#: What a worker is told to say of its host.
PLACEMENT_FACTS = (*CORE_FACTS, *STORE_FACTS)
#: How slow and how quick a worker is believed to be beside the median.
SPEED_MIN, SPEED_MAX = 0.25, 4.0


def weights(workers: Sequence[WorkerFacts], *, moves: bool) -> tuple[float, ...]:
    """Parts of 1, one a worker: cores by their speed; for what `moves` bytes, at most their part of the store."""
    cores = _speeds(workers, CORE_FACTS)
    store = _speeds(workers, STORE_FACTS) if moves else None
    if cores is None and store is None:
        return (1 / len(workers),) * len(workers)
    parts = [] if cores is None else [_parts([max(1, one.cores) * of for one, of in zip(workers, cores, strict=True)])]
    parts += [] if store is None else [_parts(store)]
    return _parts([min(of) for of in zip(*parts, strict=True)])


def _speeds(workers: Sequence[WorkerFacts], names: Sequence[str]) -> list[float] | None:
    """Each worker beside the median; None where one of them has told none of these facts, or there is one worker."""
    told = [dict(worker.measured) for worker in workers]
    medians = {
        name: sorted(of)[(len(of) - 1) // 2]
        for name in names
        if (of := [facts[name] for facts in told if name in facts])
    }
    found: list[float] = []
    for facts in told:
        ratios = [math.log(facts[name]) - math.log(medians[name]) for name in names if name in facts]
        if not ratios:
            return None
        mean = sum(ratios) / len(ratios)
        found.append(math.exp(min(math.log(SPEED_MAX), max(math.log(SPEED_MIN), mean))))
    return found if len(found) > 1 else None


def _parts(of: Sequence[float]) -> tuple[float, ...]:
    whole = sum(of)
    return tuple(one / whole for one in of)


#: Workers that an error or a reason names; the others are counted.
NAMED_MAX = 5

#: Stages whose bytes come from a store, or go to one.
_MOVES = (StageKind.SOURCE, StageKind.SINK)

Chain = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """What one replica reserves; 0 for what was not declared."""

    cores: float = 0.0
    memory_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.cores:g} cores and {size(self.memory_bytes)}"


NOTHING = Need()


@dataclass(slots=True)
class Placement:
    """How many replicas of each chain each worker runs, in the workers' order by name; and a reason a chain."""

    shares: dict[Chain, tuple[tuple[WorkerFacts, int], ...]] = field(
        default_factory=dict[Chain, tuple[tuple[WorkerFacts, int], ...]]
    )
    reasons: dict[Chain, str] = field(default_factory=dict[Chain, str])

    def workers(self, chain: Chain) -> tuple[str, ...]:
        """The names of the workers that run a chain."""
        return tuple(worker.name for worker, _ in self.shares[chain])


class Stock:
    """What is left of each worker's cores and memory while a plan is made."""

    def __init__(self, workers: Sequence[WorkerFacts], taken: Mapping[str, Need] | None = None) -> None:
        self._left = {worker.name: [float(max(1, worker.cores)), float(worker.memory_bytes)] for worker in workers}
        for name, need in (taken or {}).items():
            if name in self._left:
                self.take(name, need, 1)
        self._memory_known = {worker.name for worker in workers if worker.memory_bytes}

    def holds(self, worker: str, need: Need) -> int | None:
        """How many times the need fits in what is left; None where it weighs nothing."""
        cores, memory = self._left[worker]
        counts: list[int] = []
        if need.cores:
            counts.append(int((cores + 1e-9) / need.cores))
        if need.memory_bytes and worker in self._memory_known:
            counts.append(int(memory / need.memory_bytes))
        return max(0, min(counts)) if counts else None

    def take(self, worker: str, need: Need, times: int) -> None:
        """Reserve."""
        left = self._left[worker]
        left[0] -= need.cores * times
        left[1] -= need.memory_bytes * times

    def says(self, worker: str) -> str:
        """What is left, for people."""
        cores, memory = self._left[worker]
        known = size(int(memory)) if worker in self._memory_known else "unknown memory"
        return f"{worker}: {max(0.0, cores):g} cores and {known} left"


def need_of(pipeline: Pipeline, chain: Chain) -> Need:
    """A fused chain runs one stage at a time, so it takes the cores of its largest; memory it takes for all."""
    stages = [pipeline.stage(name) for name in chain]
    return Need(max(stage.cores for stage in stages), sum(stage.memory_bytes for stage in stages))


def place(
    pipeline: Pipeline,
    chains: Sequence[Chain],
    workers: Sequence[WorkerFacts],
    places: Mapping[Chain, str],
    wanted: Mapping[Chain, int | None],
    taken: Mapping[str, Need] | None = None,
) -> Placement:
    """Distribute the replicas of every chain. `wanted` None: as many as the worker has cores for.

    `taken` is what other pipelines reserve, by worker. PipelineError with the numbers if the workers cannot hold them.
    """
    stock, placed = Stock(workers, taken), Placement()
    needs = {chain: need_of(pipeline, chain) for chain in chains}
    columns: dict[tuple[str, str], list[Chain]] = {}
    for chain in chains:
        # Records flow past a stage that remembers: where it stands is no matter of the others.
        apart = chain[0] if pipeline.stage(chain[0]).kind is StageKind.STATEFUL else ""
        columns.setdefault((places[chain], apart), []).append(chain)
    for (where, _), together in columns.items():
        fit = eligible(workers, together[0][0], where)
        order = _ordered(pipeline, together, fit, placed)
        counts = [count for chain in together if (count := wanted[chain]) is not None]
        limit = min([len(order), *counts])
        chosen = _chosen(together, order, limit, needs, stock)
        for chain in together:
            count = wanted[chain]
            if count is not None:
                moves = any(pipeline.stage(name).kind in _MOVES for name in chain)
                parts = weights(chosen, moves=moves)
                _spread(chain, count, chosen, needs[chain], stock, placed, parts)
        _fill([chain for chain in together if wanted[chain] is None], chosen, needs, stock, placed)
        for chain in together:
            placed.reasons[chain] = _reason(pipeline, chain, where, placed.shares[chain], needs[chain], wanted[chain])
    return placed


def _ordered(
    pipeline: Pipeline, together: Sequence[Chain], fit: Sequence[WorkerFacts], placed: Placement
) -> list[WorkerFacts]:
    """The workers of a place, the best first."""
    near = [stage.near for chain in together for stage in map(pipeline.stage, chain) if stage.near]
    feeding = {name for chain in together for name in pipeline.flows_from(chain[0])}
    upstream = [worker for chain, share in placed.shares.items() if feeding & {*chain} for worker, _ in share]
    hosts = {worker.host for worker in upstream if worker.host}
    moves = any(pipeline.stage(name).kind in _MOVES for chain in together for name in chain)
    carries = dict(zip((worker.name for worker in fit), weights(fit, moves=moves), strict=True))
    kin = {kind: {label for worker in upstream for label in worker.of(kind)} for kind in ("rack", "zone")}

    def rank(worker: WorkerFacts) -> tuple[object, ...]:
        return (
            sum(not worker.meets(request) for request in near),
            bool(hosts) and worker.host not in hosts,
            *(bool(labels) and labels.isdisjoint(worker.of(kind)) for kind, labels in kin.items()),
            -carries[worker.name],
            worker.name,
        )

    return sorted(fit, key=rank)


def _chosen(
    together: Sequence[Chain],
    order: Sequence[WorkerFacts],
    limit: int,
    needs: Mapping[Chain, Need],
    stock: Stock,
) -> list[WorkerFacts]:
    """The first `limit` workers that can hold a replica of each chain of the column, by name."""
    column = total(needs[chain] for chain in together)
    holding = [worker for worker in order if stock.holds(worker.name, column) != 0]
    if not holding:
        names = " and ".join("+".join(chain) for chain in together)
        raise PipelineError(f"a replica of {names} takes {column}; no worker has that: {_listed(order, stock)}")
    return sorted(holding[:limit], key=lambda worker: worker.name)


def _spread(
    chain: Chain,
    count: int,
    chosen: Sequence[WorkerFacts],
    need: Need,
    stock: Stock,
    placed: Placement,
    parts: Sequence[float],
) -> None:
    """An asked-for number of replicas, one each and then by `parts`; what does not fit on one goes to those with room.

    With equal parts that is round after round.
    """
    given = dict.fromkeys((worker.name for worker in chosen), 1 if count >= len(chosen) else 0)
    room = {worker.name: stock.holds(worker.name, need) for worker in chosen}
    left = count - sum(given.values())
    heap = [
        ((given[worker.name] + 1) / parts[index], index, worker.name)
        for index, worker in enumerate(chosen)
        if (limit := room[worker.name]) is None or given[worker.name] < limit
    ]
    heapify(heap)
    while left and heap:
        _, index, name = heap[0]
        given[name] += 1
        left -= 1
        if (limit := room[name]) is not None and given[name] >= limit:
            heappop(heap)
        else:
            heapreplace(heap, ((given[name] + 1) / parts[index], index, name))
    if left or not all(given.values()):
        asked = counted(count, f"replica of {need} was", f"replicas of {need} each were")
        raise PipelineError(f"stage {chain[0]!r}: {asked} asked for and {count - left} fit: {_listed(chosen, stock)}")
    for name, share in given.items():
        stock.take(name, need, share)
    placed.shares[chain] = tuple((worker, given[worker.name]) for worker in chosen)


def _fill(
    chains: Sequence[Chain],
    chosen: Sequence[WorkerFacts],
    needs: Mapping[Chain, Need],
    stock: Stock,
    placed: Placement,
) -> None:
    """As many columns on each worker as it has cores and memory for; at least one of each chain."""
    if not chains:
        return
    column = total(needs[chain] for chain in chains)
    counts: list[tuple[WorkerFacts, int]] = []
    for worker in chosen:
        fits = stock.holds(worker.name, column)
        by_cores = max(1, worker.cores)
        count = by_cores if fits is None else min(fits, by_cores) if not column.cores else fits
        if not count:
            raise PipelineError(
                f"stage {chains[0][0]!r} and those in its column take {column}; {stock.says(worker.name)}"
            )
        stock.take(worker.name, column, count)
        counts.append((worker, count))
    for chain in chains:
        placed.shares[chain] = tuple(counts)


def total(needs: Iterable[Need]) -> Need:
    """The sum of what several replicas take."""
    parts = list(needs)
    return Need(sum(part.cores for part in parts), sum(part.memory_bytes for part in parts))


def _listed(workers: Sequence[WorkerFacts], stock: Stock) -> str:
    said = "; ".join(stock.says(worker.name) for worker in workers[:NAMED_MAX])
    return said + (f"; and {len(workers) - NAMED_MAX} more" if len(workers) > NAMED_MAX else "")


def _reason(
    pipeline: Pipeline,
    chain: Chain,
    where: str,
    share: Sequence[tuple[WorkerFacts, int]],
    need: Need,
    wanted: int | None,
) -> str:
    """Why the chain stands where it does, for people."""
    total = sum(count for _, count in share)
    words = [f"{total} replica{'s' * (total != 1)} on {len(share)} worker{'s' * (len(share) != 1)}"]
    words.append(f"{wanted} asked for" if wanted is not None else "one for each core")
    if len(chain) > 1:
        words.append("fused, since the quickest link is none")
    if need.cores or need.memory_bytes:
        words.append(f"each takes {need}")
    if where:
        words.append(f"placed on {where}")
    near = sorted({pipeline.stage(name).near for name in chain} - {""})
    for request in near:
        met = sum(worker.meets(request) for worker, _ in share)
        words.append(f"{met} of {len(share)} near {request}")
    return "; ".join(words)


def size(count: int) -> str:
    """Bytes for people."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.3g} {unit}"
