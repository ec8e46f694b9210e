"""The queues of a cluster as operators set them, and what may be asked of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Queues of a cluster, and pipelines that wait in all of them.
QUEUES_MAX = 64
QUEUED_MAX = 1024
WEIGHT_MAX = 1000
#: Priorities lie between minus and plus this.
PRIORITY_MAX = 100
#: Cores of a quota or a claim.
CORES_MAX = 1 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class QueueRule:
    """One queue: its share of the cores beside others is by weight, its quota in cores (0: none) is never exceeded."""

    name: str
    weight: int = 1
    cores: int = 0
    priority: int = 0


#: What a queue is that nobody has said more of.
QUEUE_RULE = QueueRule("")


def why_no_rule(name: str, weight: int, cores: int, priority: int) -> str:
    """Why there can be no such queue; empty if there can."""
    if not _NAME.fullmatch(name):
        return f"queue {name[:64]!r}: a name is 1 to 63 of the letters a to z, digits, dots, dashes and underscores"
    if not 1 <= weight <= WEIGHT_MAX:
        return f"queue {name}: a weight of {weight}: give 1 to {WEIGHT_MAX}"
    if not 0 <= cores <= CORES_MAX:
        return f"queue {name}: a quota of {cores} cores: give 1 to {CORES_MAX:,}, or 0 for none"
    return why_no_priority(f"queue {name}", priority)


def why_no_priority(what: str, priority: int) -> str:
    """Why something cannot have this priority; empty if it can."""
    if -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        return ""
    return f"{what}: a priority of {priority}: give -{PRIORITY_MAX} to {PRIORITY_MAX}"


def why_no_claim(name: str, rule: QueueRule, cores: int, priority: int) -> str:
    """Why a pipeline cannot ask a queue for so many cores; empty if it can. 0: all that there are."""
    if not 0 <= cores <= CORES_MAX:
        return f"pipeline {name!r} asks for {cores} cores: give 1 to {CORES_MAX:,}, or 0 for all"
    if rule.cores and cores > rule.cores:
        return f"pipeline {name!r} asks for {cores} cores, and queue {rule.name} has a quota of {rule.cores}"
    return why_no_priority(f"pipeline {name!r}", priority)
