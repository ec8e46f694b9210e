"""More tasks before anything can be measured: where tasks wait and cores idle, there is nothing to lose.

A stage that loads for minutes, or takes long for a record, has no rate yet. What can be seen is that its tasks are at
work all the time while hardly a core is. Tasks of such groups are multiplied up to what workers hold; rates correct
the numbers later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headrace.controller.core.scaling.model import CORES_SHORT, ThroughputModel
from headrace.controller.core.scaling.readings import Reading, ReadingError, bytes_left

#: The share of the time for which the tasks of a group are at work, and the share of the cores that are in use at most.
BUSY_MIN, CORES_MAX = 0.9, 0.25
#: How many times as many tasks are worth a trial.
TIMES_MIN = 2.0
#: Cores that are taken to be in use where none is seen: no number of tasks is free of cost.
CORES_SEEN_MIN = 0.01
#: Steps of the bisection.
STEPS = 16


def trial(
    before: Reading, after: Reading, apart: Sequence[tuple[int, int]] = (), pays_s: float = 0.0
) -> tuple[ThroughputModel, Mapping[str, int]] | None:
    """The run without costs, and tasks by the first stage of their chain to try; None where tasks may not wait.

    What is left has to last for `pays_s` seconds at the pace so far, if there is one.
    """
    seconds = after.at - before.at
    old = {stage.stage: stage for stage in before.stages}
    try:
        made = [stage.since(old[stage.stage]) for stage in after.stages if stage.stage in old]
    except ReadingError:
        return None
    busy = {stage.stage: stage.busy_s for stage in made}
    used = sum(max(0.0, stage.cpu_s) for stage in made) / seconds if seconds > 0 else math.inf
    if used > CORES_MAX * after.cores:
        return None
    read = sum(stage.stored_bytes for stage in made if stage.stage in after.sources)
    if read > 0 and bytes_left(after) / read * seconds < pays_s:
        return None
    wait = {
        index
        for index, group in enumerate(after.groups)
        if not group.fixed and sum(busy.get(name, 0.0) for name in group.stages) >= BUSY_MIN * seconds * group.replicas
    }
    model = ThroughputModel({}, after.groups, after.limits, 0.0, 0.0, 0.0, after.fragments_open, after.sources)
    most = CORES_SHORT * after.limits.cores / max(used, CORES_SEEN_MIN * after.cores)
    low, high = 1.0, max(1.0, most)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if model.holds(_times(after, wait, middle)) else (low, middle)
    # Groups to which nothing has come yet will want tasks too.
    free = [index for index, group in enumerate(after.groups) if not group.fixed]
    low = low if wait >= {*free} else 1.0 + (low - 1.0) / 2
    counts = model.kept_apart(_times(after, wait, low), apart)
    gained = max((counts[index] / after.groups[index].replicas for index in wait), default=1.0)
    if gained < TIMES_MIN:
        return None
    return model, {after.groups[index].stages[0]: counts[index] for index in free}


def _times(reading: Reading, wait: set[int], times: float) -> dict[int, int]:
    """So many times the tasks of groups that wait; readers are no more than fragments that are open."""
    counts: dict[int, int] = {}
    for index, group in enumerate(reading.groups):
        if group.fixed:
            continue
        counts[index] = group.replicas
        if index in wait:
            reads = not {*group.stages}.isdisjoint(reading.sources)
            most = max(group.replicas, int(reading.fragments_open)) if reads else math.inf
            counts[index] = int(min(most, group.replicas * times))
    return counts
