"""In whose name a command is given: the terms by which a worker judges whether to obey (worker/core/fencing.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.controller.core.cluster.leader import Leadership
from headrace.controller.core.messages import Command, KillTask
from headrace.controller.core.run import Run


@dataclass(frozen=True, slots=True)
class Authority:
    """The term of the cluster's log (0 without one), and the log of a run with its term (empty where none is led)."""

    term: int = 0
    log: str = ""
    log_term: int = 0


def authority(cluster: Leadership[Any] | None, run: Run | None, command: Command) -> Authority:
    """The authority of a command about `run`.

    A cluster's leader kills what other leaders left by the cluster's term alone: the worker may have obeyed a later
    term of the run's log, of a leader of the cluster that woke late. A run that leads no log has no term to compare.
    """
    term = cluster.term if cluster is not None else 0
    if run is None or not run.leadership.term or (term and isinstance(command, KillTask)):
        return Authority(term)
    return Authority(term, run.leadership.log, run.leadership.term)
