"""What the page of a controller is sent: rows of what is there, marks of what happened, and answers to questions."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Mapping
from typing import Any, cast

import pytest

from headrace.controller import page as module
from headrace.controller.core.messages import StopRequested
from headrace.controller.effects.progress import ReportedProgress
from headrace.controller.metrics import families
from headrace.controller.page import RunPage, request_of, schema
from headrace.controller.servicer import Servicer
from headrace.controller.shell import CommitTimes, Shell
from headrace.controller.status import reply
from headrace.page import QuestionRefused
from headrace.protos import control_pb2 as pb
from tests.kits.controller.core import Stand, fragment, rolled_back, stopped_and_completed

HOSTILE = "<img src=x onerror=alert(1)>\u202e"


class Commands:
    """The controller's service, which notes what it is asked."""

    def __init__(self, *, accepted: bool = True) -> None:
        self.accepted, self.asked = accepted, list[pb.SteerRequest]()

    async def Steer(self, request: pb.SteerRequest, context: object) -> pb.SteerReply:  # noqa: N802
        self.asked.append(request)
        return pb.SteerReply(accepted=self.accepted, reason="the store is full", changes=["keep to 3 tasks"])


class Ticks:
    """A clock that goes on by so much at each look."""

    def __init__(self, step: float) -> None:
        self.step, self.now = step, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def shown(stand: Stand, step: float = 0.0) -> tuple[RunPage, Shell, Commands]:
    shell = Shell(stand.core, os.urandom(32))
    for name in stand.core.runs:
        shell.progress[name] = ReportedProgress()
    commands = Commands()
    return RunPage(shell, cast("Servicer", commands), Ticks(step)), shell, commands


def running(*workers: str, cores: int = 1) -> Stand:
    stand = Stand()
    stand.join(*(workers or ("one",)), cores=cores)
    stand.apply()
    return stand


def take(seen: dict[str, dict[str, Any]], change: bytes) -> dict[str, dict[str, Any]]:
    for table, rows in json.loads(change or b"{}").items():
        seen.setdefault(table, {}).update(rows)
    return seen


def test_a_look_shows_runs_tasks_links_and_workers() -> None:
    async def scene() -> None:
        stand = running("one", HOSTILE)
        page, _, _ = shown(stand)
        seen = take({}, page.change())
        assert set(seen["workers"]) == {"one", HOSTILE}
        run = seen["pipelines"]["run"]
        assert [stage["name"] for stage in run["graph"]] == ["read", "keep", "write"]
        assert run["graph"][1]["after"] == ["read"]
        assert set(seen["tasks"]) == {task.plan.name for task in stand.run.tasks or ()}
        assert json.loads(page.whole()) == seen

    asyncio.run(scene())


def test_a_report_goes_through_as_the_task_wrote_it() -> None:
    async def scene() -> None:
        page, shell, _ = shown(running())
        page.change()
        report = pb.Progress(held_bytes=7, stages=[pb.StageProgress(stage=HOSTILE, records=1 << 40, busy_s=1.5)])
        shell.progress["run"].take(pb.TaskEvent(task="run/read.0", attempt=3, progress=report))
        seen = take({}, page.change())
        assert set(seen) <= {"progress", "pipelines"}
        assert pb.Progress.FromString(base64.b64decode(seen["progress"]["run/read.0@3"])) == report
        assert "progress" not in take({}, page.change())

    asyncio.run(scene())


def test_no_task_of_an_ended_run_holds_anything() -> None:
    async def scene() -> None:
        page, shell, _ = shown(running())
        held = pb.Progress(held_bytes=7, held_records=3, open_ranges=2, pending_fragments=1, trouble="full", busy_s=1.5)
        shell.progress["run"].take(pb.TaskEvent(task="run/read.0", attempt=3, progress=held))
        take({}, page.change())
        shell.post(StopRequested("run", cancel=True))
        late = pb.TaskEvent(task="run/read.0", attempt=4, progress=held)
        shell.progress["run"].take(late)
        seen = take({}, page.change())
        for attempt in (3, 4):
            report = pb.Progress.FromString(base64.b64decode(seen["progress"][f"run/read.0@{attempt}"]))
            assert report == pb.Progress(busy_s=1.5)

    asyncio.run(scene())


def test_what_the_dead_held_is_known_when_the_run_has_ended() -> None:
    progress = ReportedProgress()
    for attempt in (1, 2):
        progress.take(pb.TaskEvent(task="run/read.0", attempt=attempt, progress=pb.Progress(held_records=attempt)))
    progress.end()
    assert progress.held_by_dead({("run/read.0", 2)}) == 1


def test_the_browser_is_told_every_field_of_a_report() -> None:
    found = schema()
    for message in (pb.Progress, pb.StageProgress, pb.LinkProgress):
        fields = {str(field.number): field.name for field in message.DESCRIPTOR.fields}
        assert {number: name for number, (name, _) in found[message.DESCRIPTOR.name].items()} == fields
    assert found["Progress"]["1"] == ["stages", "StageProgress"]
    assert found["StageProgress"]["1"] == ["stage", "text"]
    assert found["StageProgress"]["4"] == ["busy_s", "number"]


def test_each_look_takes_a_part_of_many_tasks_and_rounds_take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        monkeypatch.setattr(module, "ITEMS", 4)
        monkeypatch.setattr(module, "FIRST_S", module.TASKS_S)
        stand = running(cores=40)
        tasks = {task.plan.name for task in stand.run.tasks or ()}
        assert len(tasks) >= 40
        page, _, _ = shown(stand, step=module.TASKS_S / 3)
        seen = take({}, page.change())
        assert 0 < len(seen["tasks"]) < len(tasks) / 2
        for _ in range(len(tasks)):
            take(seen, page.change())
        assert set(seen["tasks"]) == tasks

    asyncio.run(scene())


def test_rows_of_tasks_that_are_no_more_are_taken_away() -> None:
    async def scene() -> None:
        stand = running(cores=4)
        page, shell, _ = shown(stand)
        seen = take({}, page.change())
        assert len(seen["tasks"]) >= 4
        del shell.core.runs["run"]
        change = take({}, page.change())
        assert set(change["tasks"]) == set(seen["tasks"])
        assert set(change["tasks"].values()) == {None}
        assert change["pipelines"] == {"run": None}

    asyncio.run(scene())


def test_what_happens_becomes_a_mark_once() -> None:
    async def scene() -> None:
        stand = running()
        page, shell, _ = shown(stand)
        page.note(1.0)
        stand.run.deaths.note("task", "run/read.0", f"killed by signal 9 {HOSTILE}")
        stand.run.deaths.note("task", "run/read.0", f"killed by signal 9 {HOSTILE}")
        shell.core.lost.note("worker", "one", "its session ended")
        stand.run.deaths.note("worker", "one", "its session ended")
        shell.fault_words.append("kill run/read.0 (fault-1)")
        page.note(2.0)
        page.note(3.0)
        seen = take({}, page.change())
        marks = [(row["at"], row["kind"], row["words"]) for row in seen["marks"].values()]
        assert {mark for mark in marks if mark[0] == 1.0} == {
            (1.0, "state", f"run is {stand.run.state.value}"),
            (1.0, "worker", "worker one registered"),
        }
        assert (2.0, "death", f"task run/read.0 died (2 times): killed by signal 9 {HOSTILE}") in marks
        assert (2.0, "death", "worker one died: its session ended") in marks
        assert (2.0, "fault", "kill run/read.0 (fault-1)") in marks
        assert all(at < 3 for at, _, _ in marks)
        assert sorted(row["at"] for row in seen["points"].values()) == [1.0, 2.0, 3.0]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("question", "given", "wanted"),
    [
        ("pause", {"pipeline": "run"}, pb.SteerRequest(pipeline="run", pause=True)),
        ("resume", {"pipeline": "run"}, pb.SteerRequest(pipeline="run", pause=False)),
        (
            "scale",
            {"pipeline": "run", "stage": "keep", "tasks": 3},
            pb.SteerRequest(pipeline="run", replicas={"keep": 3}),
        ),
        ("drain", {"worker": HOSTILE}, pb.SteerRequest(worker=HOSTILE)),
        ("undrain", {"worker": "one"}, pb.SteerRequest(worker="one", back=True)),
    ],
)
def test_an_act_is_the_request_of_the_command_of_that_name(
    question: str, given: Mapping[str, Any], wanted: pb.SteerRequest
) -> None:
    async def scene() -> None:
        page, _, commands = shown(running())
        extra = {"expel": "worker/one", "clear": True, "question": question}
        assert await page.answer(question, {**given, **extra}) == {"changes": ["keep to 3 tasks"]}
        assert commands.asked == [wanted]
        assert [row["kind"] for row in take({}, page.change())["marks"].values()] == ["asked"]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("question", "given"),
    [
        ("expel", {"worker": "one"}),
        ("stop", {"pipeline": "run"}),
        ("pause", {}),
        ("pause", {"pipeline": 1}),
        ("pause", {"pipeline": "x" * 600}),
        ("drain", {"worker": ""}),
        ("scale", {"pipeline": "run", "stage": "keep", "tasks": 0}),
        ("scale", {"pipeline": "run", "stage": "keep", "tasks": True}),
        ("scale", {"pipeline": "run", "stage": "keep", "tasks": 1 << 40}),
        ("scale", {"pipeline": "run", "stage": "keep", "tasks": "3"}),
        ("scale", {"pipeline": "run", "tasks": 3}),
        ("logs", {"level": "loud"}),
        ("logs", {"cause": ["x"]}),
        ("samples", {"pipeline": "another"}),
    ],
)
def test_what_is_no_question_of_the_page_is_refused(question: str, given: Mapping[str, Any]) -> None:
    async def scene() -> None:
        page, _, commands = shown(running())
        with pytest.raises(QuestionRefused):
            await page.answer(question, given)
        assert commands.asked == []

    asyncio.run(scene())


def test_what_the_controller_refuses_is_said() -> None:
    async def scene() -> None:
        page, _, commands = shown(running())
        commands.accepted = False
        with pytest.raises(QuestionRefused, match="the store is full"):
            await page.answer("pause", {"pipeline": "run"})

    asyncio.run(scene())


def test_only_an_act_steers() -> None:
    with pytest.raises(QuestionRefused):
        request_of("expel", {"pipeline": "run", "worker": "one"})


def test_who_comes_first_is_shown_all_tasks() -> None:
    async def scene() -> None:
        stand = running(cores=40)
        page, _, _ = shown(stand, step=module.TASKS_S / 2)
        assert set(take({}, page.change())["tasks"]) == {task.plan.name for task in stand.run.tasks or ()}

    asyncio.run(scene())


def test_samples_are_read_by_one_process_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        begun, read = asyncio.Event(), asyncio.Event()

        async def reading(dataset: str) -> dict[str, Any]:
            assert dataset == "file:///data"
            begun.set()
            await read.wait()
            return {"samples": {}}

        monkeypatch.setattr(module, "read_samples", reading)
        page, _, _ = shown(running())
        first = asyncio.ensure_future(page.answer("samples", {"pipeline": "run"}))
        await begun.wait()
        with pytest.raises(QuestionRefused, match="are being read"):
            await page.answer("samples", {"pipeline": "run"})
        read.set()
        assert await first == {"samples": {}}
        assert await page.answer("samples", {"pipeline": "run"}) == {"samples": {}}

    asyncio.run(scene())


def test_a_loader_that_reports_is_shown_and_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        page, _, _ = shown(running())
        given = {"name": HOSTILE, "rank": 0, "tokens": 5, "position": 5, "batches": 1, "data_wait_s": 0, "elapsed_s": 1}
        assert await page.answer("loader", given) == {}
        seen = take({}, page.change())
        assert seen["loaders"][f"0 {HOSTILE}"]["position"] == 5
        with pytest.raises(QuestionRefused, match="a rank is"):
            await page.answer("loader", {**given, "rank": "first"})
        monkeypatch.setattr(module.time, "monotonic", lambda: 1e12)
        page.note(1.0)
        assert take({}, page.change())["loaders"] == {f"0 {HOSTILE}": None}

    asyncio.run(scene())


def test_status_page_and_metrics_count_nothing_that_a_rollback_hides() -> None:
    async def scene() -> None:
        stand, _ = rolled_back(stopped_and_completed(), "c", 1, fragment(0))
        page, shell, _ = shown(stand)
        page.note(1.0)
        seen = take({}, page.change())
        (point,) = seen["points"].values()
        assert (point["kept"], point["open"], point["shards"]) == (4, 6, 1)
        balance = seen["pipelines"]["run"]["balance"]
        assert (balance["kept"], balance["records_open"], balance["shards"], balance["complete"]) == (4, 6, 1, False)
        (status,) = reply(shell, "v").pipelines
        assert (status.shards, status.counts["write"].kept, status.records_resumed) == (1, 4, 4)
        told = {
            (sample.name, sample.labels.get("verdict")): sample.value
            for family in families(pb.StatusReply(pipelines=[status]), CommitTimes())
            for sample in family.samples
        }
        assert told["headrace_shards", None] == 1
        assert told["headrace_open_records", None] == 6
        assert (told["headrace_closed_records", "kept"], told["headrace_verdict_records", "kept"]) == (4, 4)

    asyncio.run(scene())
