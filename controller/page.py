"""What the controller's page shows: a reading of its core and of the tasks' progress, a part at each look.

A look has a budget: of many tasks and links it takes up as many as fit, and the next look goes on from there. So the
page costs a share of a core that does not grow with the plan; its numbers grow older instead. Reports of tasks go
through as they came, and the browser adds them up.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from headrace.controller.core.cluster import Controller
from headrace.controller.core.run import Run
from headrace.controller.core.run.tasks import RunTasks
from headrace.controller.effects import ReportedProgress
from headrace.controller.status import cluster_status, earlier_runs, pipeline_status, queue_waits, queued_runs
from headrace.daemon import Effects, parse
from headrace.page import PageServer, QuestionRefused, serve_page
from headrace.page.core import Board, Loaders, ReportRefused, Timeline, written
from headrace.protos import codec, control_pb2 as pb
from headrace.store import release
from headrace.store.ledger import balance_of

if TYPE_CHECKING:
    from headrace.controller.servicer import Servicer
    from headrace.controller.shell import Shell

logger = logging.getLogger("headrace.controller")

#: Seconds of a look for tasks and their reports, and for links, which change seldom; items between two looks at the
#: clock.
TASKS_S, LINKS_S, ITEMS = 0.0025, 0.0005, 16
#: Seconds of a look until all was seen once: who comes first waits for it.
FIRST_S = 0.1
#: Rounds after which all was seen: one of tasks, one of links.
ALL_ROUNDS = 2
#: The share of a core that readings of runs as a whole may take; one that takes long is made less often.
HEAD_SHARE = 0.008
#: Seconds between two points on the time line.
POINT_S = 1.0
#: Log lines of one question, and characters of a name in it.
LINES_MAX, NAME_MAX = 500, 512
#: Characters of how a task died.
STORY_MAX = 1000
#: Tasks of a stage that the page may ask for.
TASKS_MAX = 65_536
#: Seconds and bytes for samples of a dataset, which a process of their own reads, one at a time.
SAMPLES_S, SAMPLES_BYTES_MAX = 60.0, 8 << 20
_VERDICTS = ("kept", "filtered", "duplicate", "quarantined")


class RunPage:
    """The page's source in a controller."""

    def __init__(self, shell: Shell, servicer: Servicer, clock: Callable[[], float] = time.perf_counter) -> None:
        self._shell, self._servicer, self._clock = shell, servicer, clock
        self._board = Board()
        self._timeline, self._loaders = Timeline(self._board), Loaders(self._board)
        self._effects = Effects()
        self._server: PageServer | None = None
        self._tasks_going, self._links_going = self._tasks_round(), self._links_round()
        #: Rounds that have come to their ends.
        self._rounds = 0
        self._head_at = 0.0
        #: What each row was made of, by table and key.
        self._made_of: dict[str, dict[str, object]] = {"tasks": {}, "links": {}, "progress": {}}
        self._before = _Noted()
        self._sampling = False
        self._board.put("about", "page", {"kind": "run", "version": release(), "schema": schema()})

    async def serve(self, where: str, file: str = "") -> None:
        """Serve it at HOST:PORT of loopback, and keep the time line from now on. Raises AddressError, OSError."""
        self._server = await serve_page(self, where, Path(file) if file else None)
        self._effects.start("the page's time line", self._keep_time())
        logger.info("page on %s; its whole address, with the key, is in %s", self._server.place, self._server.file)

    async def close(self) -> None:
        """Show how it ended, and serve it no more."""
        self.note(time.time())
        self._head_at = 0.0
        self._effects.cancel()
        if self._server is not None:
            await self._server.close()

    def whole(self) -> bytes:
        """The state up to the last change."""
        return self._board.whole()

    def change(self) -> bytes:
        """Look, and say what changed."""
        now = self._clock()
        if now >= self._head_at:
            self._heads()
            self._head_at = self._clock() + (self._clock() - now) / HEAD_SHARE
        first = FIRST_S if self._rounds < ALL_ROUNDS else 0.0
        self._tasks_going = self._go_on(self._tasks_going, first or TASKS_S, self._tasks_round)
        self._links_going = self._go_on(self._links_going, first or LINKS_S, self._links_round)
        return self._board.change()

    def _go_on(self, going: Iterator[bool], budget_s: float, anew: Callable[[], Iterator[bool]]) -> Iterator[bool]:
        """Go on with a round for so long; the round to go on with at the next look."""
        until = self._clock() + budget_s
        while self._clock() < until:
            if next(going, None) is None:
                self._rounds += 1
                return anew()
        return going

    # ---- looks ----

    def _heads(self) -> None:
        """The cluster, its workers, and each run as a whole."""
        status = codec.plain(cluster_status(self._shell, release()))
        workers = status.pop("workers")
        status.pop("pipelines")
        commits = self._shell.commits
        status["commits"] = {"total_s": commits.total_s, "buckets": commits.buckets()}
        status["left_out"] = self._board.left_out
        self._board.put("about", "cluster", status)
        for worker in workers:
            self._board.put("workers", worker["worker"], worker)
        self._board.keep("workers", [worker["worker"] for worker in workers])
        names: list[str] = []
        for name, run in self._shell.core.runs.items():
            names.append(name)
            self._board.put("pipelines", name, self._head(run))
        for earlier in [*queued_runs(self._shell), *earlier_runs(self._shell)]:
            names.append(earlier.pipeline)
            self._board.put("pipelines", earlier.pipeline, codec.plain(earlier))
        self._board.keep("pipelines", names)

    def _head(self, run: Run) -> dict[str, Any]:
        progress = self._shell.progress.get(run.pipeline.name) or ReportedProgress()
        living = {(task.plan.name, task.attempt) for one in run.task_sets for task in one}
        status = pipeline_status(run, progress, living)
        status.waits.extend(queue_waits(self._shell, run.pipeline.name))
        found = codec.plain(status)
        found["graph"] = [
            {"name": stage.name, "kind": stage.kind.value, "after": list(run.pipeline.flows_from(stage.name))}
            for stage in run.pipeline.stages
        ]
        found["elapsed_s"] = round(time.monotonic() - progress.started_at)
        return found

    def _tasks_round(self) -> Iterator[bool]:
        """Look at each task and each report once, and let go of those that are no more."""
        tasks, reports = set[str](), set[str]()
        for name, run in list(self._shell.core.runs.items()):
            yield from _in_parts(self._tasks(run, tasks))
            progress = self._shell.progress.get(name)
            if progress is not None:
                yield from _in_parts(self._reports(progress, reports))
        self._drop("tasks", tasks)
        self._drop("progress", reports)

    def _links_round(self) -> Iterator[bool]:
        """The same of links."""
        links = set[str]()
        for run in list(self._shell.core.runs.values()):
            for one in run.task_sets:
                yield from _in_parts(self._links(run.pipeline.name, one, links))
        self._drop("links", links)

    def _drop(self, table: str, but: set[str]) -> None:
        """Let go of the rows of those that a round has not seen."""
        for gone in self._made_of[table].keys() - but:
            del self._made_of[table][gone]
            self._board.drop(table, gone)

    def _tasks(self, run: Run, seen: set[str]) -> Iterator[None]:
        made = self._made_of["tasks"]
        for task in [task for one in run.task_sets for task in one]:
            plan = task.plan
            of = (task.state, task.attempt, task.restarts, plan, task.story)
            seen.add(plan.name)
            if made.get(plan.name) != of:
                made[plan.name] = of
                row = [run.pipeline.name, plan.stages, plan.worker, task.state.value, task.attempt, task.restarts]
                self._board.put("tasks", plan.name, written([*row, task.story[-STORY_MAX:]]))
            yield

    def _reports(self, progress: ReportedProgress, seen: set[str]) -> Iterator[None]:
        made = self._made_of["progress"]
        for (task, attempt), report in list(progress.latest.items()):
            key = f"{task}@{attempt}"
            seen.add(key)
            if made.get(key) is not report:
                made[key] = report
                self._board.put("progress", key, b'"' + base64.b64encode(report.SerializeToString()) + b'"')
            yield

    def _links(self, pipeline: str, tasks: RunTasks, seen: set[str]) -> Iterator[None]:
        made = self._made_of["links"]
        for link in tasks.plan.links:
            name = link.name
            with contextlib.suppress(KeyError):  # another plan has come in the middle of a round
                of = (link, tasks.links.transport(link), tasks.links.generation(name), tasks.links.trouble(name))
                seen.add(name)
                if made.get(name) != of:
                    made[name] = of
                    row = [link.sender, link.receiver, *of[1:], pipeline]
                    self._board.put("links", name, written(row))
            yield

    # ---- the time line ----

    async def _keep_time(self) -> None:
        while True:
            try:
                self.note(time.time())
            except Exception:
                logger.exception("the page's time line has a gap; nothing but the page is concerned")
            await asyncio.sleep(POINT_S)

    def note(self, at: float) -> None:
        """Put what holds now on the time line, and marks for what happened since the last note."""
        self._loaders.expire(time.monotonic())
        now = _Noted.of(self._shell)
        for kind, words, pipeline in now.since(self._before):
            self._timeline.mark(at, kind, words, pipeline)
        before, self._before = self._before, now
        for name in before.states.keys() - now.states.keys():
            self._timeline.forget(name)
        for name, run in self._shell.core.runs.items():
            if not run.ended or now.states.get(name) != before.states.get(name):
                progress = self._shell.progress.get(name) or ReportedProgress()
                balance = balance_of(progress.shown(run.ledger, ended=run.ended))
                values = {verdict: getattr(balance.counts, verdict) for verdict in _VERDICTS}
                self._timeline.point(name, at, values | {"open": balance.records_open, "shards": balance.shards})

    # ---- questions ----

    async def answer(self, question: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Answer, or do what an operator's command of the same name does. Raises QuestionRefused."""
        match question:
            case "pause" | "resume" | "scale" | "drain" | "undrain":
                return await self._steer(question, given)
            case "loader":
                return self._loader(given)
            case "logs":
                return await self._logs(given)
            case "samples":
                return await self._samples(given)
            case _:
                raise QuestionRefused("that is not answered here")

    def _loader(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A rank of a training job reports (`headrace.loader.report`)."""
        try:
            self._loaders.take(given, time.monotonic())
        except ReportRefused as error:
            raise QuestionRefused(str(error)) from error
        return {}

    async def _steer(self, question: str, given: Mapping[str, Any]) -> dict[str, Any]:
        request = request_of(question, given)
        reply = await self._servicer.Steer(request, None)
        if not reply.accepted:
            raise QuestionRefused(reply.reason)
        what = request.pipeline or request.worker
        words = ", ".join(reply.changes)
        logger.info("from the page: %s %s%s", question, what, f": {words}" if words else "")
        self._timeline.mark(time.time(), "asked", f"{question} {what} {words}".strip(), request.pipeline)
        return {"changes": list(reply.changes)}

    async def _logs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        wanted = pb.LogSearch(lines_max=LINES_MAX)
        for name in ("pipeline", "stage", "task", "cause", "level"):
            setattr(wanted, name, _name(given, name, optional=True))
        if wanted.level not in ("", "debug", "info", "warning", "error"):
            raise QuestionRefused("a level is debug, info, warning or error")
        lines: list[bytes] = []
        missing: list[str] = []
        async for page in self._servicer.Logs(wanted, None):
            lines += page.lines
            missing += page.missing
        lines.sort(key=lambda line: line[:40])
        return {"lines": [line for line in map(parse, lines[-LINES_MAX:]) if line is not None], "missing": missing}

    async def _samples(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Samples of verdicts, read by a process of their own: the controller decodes no table."""
        run = self._shell.core.runs.get(_name(given, "pipeline"))
        if run is None:
            raise QuestionRefused("no such pipeline runs here")
        if self._sampling:
            raise QuestionRefused("samples are being read; ask again")
        self._sampling = True
        try:
            return await read_samples(run.pipeline.dataset)
        finally:
            self._sampling = False


async def read_samples(dataset: str) -> dict[str, Any]:
    """What `headrace dataset page` shows of a dataset, bounded in time and bytes. Raises QuestionRefused."""
    command = (sys.executable, "-P", "-m", "headrace.cli", "dataset", "page", "--json", "--", dataset)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SAMPLES_S):
            data = b""
            while part := await process.stdout.read(1 << 16):
                data += part
                if len(data) > SAMPLES_BYTES_MAX:
                    raise QuestionRefused(f"the samples have more than {SAMPLES_BYTES_MAX >> 20} MiB")
            await process.wait()
        found = orjson.loads(data) if process.returncode == 0 else None
    except (TimeoutError, orjson.JSONDecodeError):
        found = None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if not isinstance(found, dict):
        raise QuestionRefused("the dataset could not be read: `headrace dataset show --samples` says why")
    return found


class _Noted:
    """What marks are made of: how it was when it was looked at."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.deaths: Counter[tuple[str, str, str, str]] = Counter()
        self.workers: set[str] = set()
        self.changes: dict[str, tuple[str, ...]] = {}
        self.faults: tuple[str, ...] = ()

    @staticmethod
    def of(shell: Shell) -> _Noted:
        """How it is."""
        core: Controller = shell.core
        noted = _Noted()
        for name, run in core.runs.items():
            noted.states[name] = run.state.value
            noted.changes[name] = tuple(change.words() for change in run.reconfiguration.waiting)
            for death, count in run.deaths.counts.items():
                if death.what == "task":
                    noted.deaths[name, death.what, death.name, death.cause] = count
        for death, count in core.lost.counts.items():
            noted.deaths["", death.what, death.name, death.cause] = count
        noted.workers = set(core.workers)
        noted.faults = tuple(shell.fault_words)
        return noted

    def since(self, before: _Noted) -> Iterator[tuple[str, str, str]]:
        """What happened: its kind, words, and pipeline."""
        for name, state in self.states.items():
            if before.states.get(name) != state:
                yield "state", f"{name} is {state}", name
        for (name, what, who, cause), count in (self.deaths - before.deaths).items():
            times = f" ({count} times)" if count > 1 else ""
            yield "death", f"{what} {who} died{times}: {cause}", name
        for worker in sorted(self.workers - before.workers):
            yield "worker", f"worker {worker} registered", ""
        for worker in sorted(before.workers - self.workers):
            yield "worker", f"worker {worker} is gone", ""
        for name, changes in self.changes.items():
            for words in changes:
                if words not in before.changes.get(name, ()):
                    yield "change", f"to change: {words}", name
        for words in (Counter(self.faults) - Counter(before.faults)).elements():
            yield "fault", words, ""


def request_of(question: str, given: Mapping[str, Any]) -> pb.SteerRequest:
    """The request of a command. Raises QuestionRefused."""
    if question in ("drain", "undrain"):
        return pb.SteerRequest(worker=_name(given, "worker"), back=question == "undrain")
    pipeline = _name(given, "pipeline")
    if question in ("pause", "resume"):
        return pb.SteerRequest(pipeline=pipeline, pause=question == "pause")
    tasks = given.get("tasks")
    if type(tasks) is not int or not 0 < tasks <= TASKS_MAX:
        raise QuestionRefused(f"a stage has from 1 to {TASKS_MAX:,} tasks")
    return pb.SteerRequest(pipeline=pipeline, replicas={_name(given, "stage"): tasks})


def _name(given: Mapping[str, Any], key: str, *, optional: bool = False) -> str:
    value = given.get(key, "")
    if not isinstance(value, str) or len(value) > NAME_MAX or not (value or optional):
        raise QuestionRefused(f"{key} is a text of at most {NAME_MAX} characters")
    return value


def _in_parts(items: Iterator[None]) -> Iterator[bool]:
    """After each so many items a moment to look at the clock."""
    for number, _ in enumerate(items, 1):
        if number % ITEMS == 0:
            yield True


def schema() -> dict[str, Any]:
    """The fields of a report by message and number, so that the browser reads what tasks say today."""
    found: dict[str, Any] = {}
    for message in (pb.Progress, pb.StageProgress, pb.LinkProgress):
        fields = message.DESCRIPTOR.fields
        found[message.DESCRIPTOR.name] = {
            str(field.number): [
                field.name,
                field.message_type.name if field.message_type is not None else _KINDS.get(field.type, "number"),
            ]
            for field in fields
        }
    return found


_STRING = 9
_KINDS = {_STRING: "text"}
