"""What a new plan keeps of the one that stands.

A task whose stages stay on its worker keeps its number, and so its name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from headrace.controller.core.plan.plans import Plan, TaskPlan

Chain = tuple[str, ...]


class Standing:
    """The tasks of the plan that stands, by stages and worker."""

    def __init__(self, current: Plan | None) -> None:
        self._numbers: dict[tuple[Chain, str], deque[int]] = {}
        self._solitary: list[TaskPlan] = []
        #: The numbers of each first stage: a name stands for the same stages until its task is gone.
        self._taken: dict[str, set[int]] = {}
        for task in current.tasks if current else ():
            if task.alone:
                self._solitary.append(task)
            else:
                self._taken.setdefault(task.stages[0], set()).add(task.replica)
                self._numbers.setdefault((task.stages, task.worker), deque()).append(task.replica)

    def numbered(self, chain: Chain, shares: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """A worker and a number for each replica of a chain: those that stand first, then the lowest free ones."""
        kept: dict[str, list[int]] = {}
        for worker, count in shares:
            numbers = self._numbers.get((chain, worker), deque[int]())
            kept[worker] = [numbers.popleft() for _ in range(min(count, len(numbers)))]
        fresh = _free(self._taken.get(chain[0], set()))
        return [
            (worker, kept[worker][index] if index < len(kept[worker]) else next(fresh))
            for worker, count in shares
            for index in range(count)
        ]

    def solitary(self, tasks: Sequence[TaskPlan], workers: Collection[str]) -> list[TaskPlan]:
        """The solitary tasks; one whose worker is not there goes where its source's first task is."""
        found: list[TaskPlan] = []
        for task in self._solitary:
            if task.worker not in workers:
                beside = next(other for other in tasks if task.stages[0] in other.stages)
                task = replace(task, worker=beside.worker, place=beside.place)
            found.append(task)
        return found


def _free(taken: Collection[int]) -> Iterator[int]:
    number = 0
    while True:
        if number not in taken:
            yield number
        number += 1
