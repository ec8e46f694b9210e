"""A controller with a run of many tasks and links, whose reports change as a test says."""

from __future__ import annotations

import asyncio
import os
from itertools import islice, pairwise
from random import Random
from typing import cast

from headrace.controller.core.plan.plans import LinkPlan, Plan, TaskPlan
from headrace.controller.core.run.tasks.run_tasks import RunTasks
from headrace.controller.core.run.tasks.task_table import TaskTurn
from headrace.controller.effects.progress import ReportedProgress
from headrace.controller.page import RunPage
from headrace.controller.servicer import Servicer
from headrace.controller.shell import Shell
from headrace.pipeline.graph import Pipeline
from headrace.protos import control_pb2 as pb
from tests.kits.controller.core import Stand, make_pipeline

STAGES = ("read", "keep", "write")


class LargeRun:
    """A page of `tasks` tasks in three stages, with `links` links between them, on `workers` workers."""

    def __init__(self, tasks: int, links: int, *, names: tuple[str, ...] = ("one", "two")) -> None:
        self.stand = Stand()
        self.stand.join(*names)
        pipeline: Pipeline = make_pipeline()
        self.stand.apply(pipeline)
        each = tasks // len(STAGES)
        made = {
            stage: [TaskPlan(f"run/{stage}.{n}", (stage,), names[n % len(names)], n) for n in range(each)]
            for stage in STAGES
        }
        made["read"] += [TaskPlan(f"run/read.{n}", ("read",), names[0], n) for n in range(each, each + tasks % 3)]
        pairs = (
            (sender.name, before, made[after][(number + step) % each].name, after)
            for step in range(each)
            for before, after in pairwise(STAGES)
            for number, sender in enumerate(made[before])
        )
        plans = [LinkPlan(f"{one}->{other}", one, a, other, b) for one, a, other, b in islice(pairs, links)]
        plan = Plan(tuple(task for stage in STAGES for task in made[stage]), tuple(plans))
        run = self.stand.run
        assert run.works is not None
        run.works.in_force.tasks = large = RunTasks(plan, pipeline, run.version, 0)
        for task in large.table.due(0.0, names):
            task.turn(TaskTurn.BECAME_READY)
        self.shell = Shell(self.stand.core, os.urandom(32))
        self.progress = self.shell.progress["run"] = ReportedProgress()
        self.page = RunPage(self.shell, cast("Servicer", None))
        self._names = [task.name for task in plan.tasks]
        self._links: dict[str, list[str]] = {}
        for link in plan.links:
            self._links.setdefault(link.sender, []).append(link.name)
        self._random, self._turn = Random(1), 0

    def report(self, tasks: int) -> None:
        """So many tasks, in turn, have done more."""
        for _ in range(tasks):
            name = self._names[self._turn % len(self._names)]
            done = self._turn // len(self._names) + 1
            self._turn += 1
            stage = pb.StageProgress(stage=name.split("/")[1].split(".")[0], records=done * 50, bytes=done << 14)
            stage.busy_s = stage.cpu_s = done * self._random.random() * 0.2
            report = pb.Progress(stages=[stage], held_bytes=self._random.randrange(1 << 20), busy_s=stage.busy_s)
            for link in self._links.get(name, ()):
                flying = self._random.randrange(1 << 18)
                report.links.add(link=link, frames=done, bytes=done << 12, in_flight_bytes=flying, blocked=done // 4)
            self.progress.take(pb.TaskEvent(task=name, attempt=1, progress=report))

    async def keep_reporting(self, a_second: int) -> None:
        """So many reports a second, until this is cancelled."""
        while True:
            self.report(a_second // 20)
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.05)
