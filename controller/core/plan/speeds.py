"""How much of a number of replicas workers can carry beside one another, by what `headrace bench` measured there.

A worker speaks for itself, and only of what compares it with others: a fact counts as its ratio to the lower median of
those that told it, within SPEED_MIN and SPEED_MAX. A lie gains no more than that. Where one of the workers has told
nothing, all count alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low

from headrace.controller.core.plan.locality import WorkerFacts

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
    medians = {name: median_low(of) for name in names if (of := [facts[name] for facts in told if name in facts])}
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
