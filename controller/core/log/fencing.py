"""Fencing: the terms by which a worker judges whether to obey a command (worker/core/supervisor.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.controller.core.log.leader import Leadership
from headrace.controller.core.messages import Command, KillTask


@dataclass(frozen=True, slots=True)
class Fence:
    """The term of the cluster's log (0 without one), and the log of a run with its term (empty where none is led)."""

    term: int = 0
    log: str = ""
    log_term: int = 0


def fence_of(cluster: Leadership[Any] | None, run: Leadership[Any] | None, command: Command) -> Fence:
    """The fence of a command about the run that leads the log `run`.

    A cluster's leader kills what other leaders left by the cluster's term alone: the worker may have obeyed a later
    term of the run's log, of a leader of the cluster that woke late. A run that leads no log has no term to compare.
    """
    term = cluster.term if cluster is not None else 0
    if run is None or not run.term or (term and isinstance(command, KillTask)):
        return Fence(term)
    return Fence(term, run.log, run.term)
