"""What people ask a controller for: no words or numbers of one end what others have, and none are kept for nothing."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster.certificates import Role, create_authority, create_node, utc_now
from headrace.controller import servicer as module
from headrace.controller.core.cluster.controller import Controller
from headrace.controller.core.log.leader import LeaderState
from headrace.controller.core.messages import messages as core
from headrace.controller.logs import Logs, identity
from headrace.controller.servicer import Servicer
from headrace.controller.shell import Shell
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.protos import control_pb2 as pb
from headrace.store.open import open_store

DEADLINE_S = 300.0


class Caller:
    """Who calls, by his certificate."""

    def __init__(self, name: str) -> None:
        now = utc_now()
        self._shown = create_node(create_authority("c", now), Role.USER, name, now).certificate_pem

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self._shown]}


class Asked:
    """A controller without workers, with a log of its own, and its service."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.shell = Shell(Controller(identity(), log=open_store(str(folder / "root")).uri), bytes(32))
        self.servicer = Servicer(self.shell)

    @property
    def leads(self) -> bool:
        assert self.shell.core.log is not None
        return self.shell.core.log.state is LeaderState.LEADING

    async def until(self, what: Callable[[], bool]) -> None:
        while not what():
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.005)

    def apply(self, caller: Caller | None = None, **more: Any) -> Awaitable[pb.ApplyReply]:
        options = {name: more.pop(name) for name in [*more] if name in pb.ApplyRequest.DESCRIPTOR.fields_by_name}
        pipeline = Pipeline.chain(
            "run",
            open_store(str(self._folder / "data")).uri,
            Stage("read", StageKind.SOURCE, "m:read", {"input": ["a"]}),
            Stage("write", StageKind.SINK, "m:write"),
        )
        text = json.dumps({**pipeline.to_dict(), **more})
        return self.servicer.Apply(pb.ApplyRequest(pipeline_json=text, **options), caller)


def play(folder: Path, scene: Callable[[Asked], Awaitable[None]]) -> None:
    async def act() -> None:
        asked = Asked(folder)
        async with asyncio.timeout(DEADLINE_S):
            asked.shell.begin("127.0.0.1:1")
            await asked.until(lambda: asked.leads)
            await scene(asked)
        await asked.shell.close()

    asyncio.run(act())


@pytest.mark.parametrize("value", [1 << 64, "\ud800", {"a": [-(1 << 64)]}])
def test_a_pipeline_that_no_log_can_hold_ends_no_leadership(tmp_path: Path, value: object) -> None:
    async def scene(asked: Asked) -> None:
        assert (await asked.servicer.Queue(pb.QueueRequest(queue="q", weight=1), None)).accepted
        reply = await asked.apply(queue="q", more=value)
        assert "not a pipeline" in reply.reason or reply.reason.startswith("the pipeline: ")
        assert (await asked.servicer.Queue(pb.QueueRequest(queue="r", weight=1), None)).accepted
        assert asked.leads

    play(tmp_path, scene)


def test_whose_a_pipeline_is_is_looked_at_when_it_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asks, may_tell = threading.Event(), threading.Event()

    def slow(_: str) -> str:
        asks.set()
        may_tell.wait(DEADLINE_S)
        return ""

    async def scene(asked: Asked) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(module, "one_name", slow)
            patched.setattr(module, "PLACE_S", DEADLINE_S)
            early = asyncio.ensure_future(asked.apply(Caller("bob")))
            await asked.until(asks.is_set)
        late = asyncio.ensure_future(asked.apply(Caller("eve")))
        await asked.until(lambda: asked.shell.core.owner("run") == "user/eve")
        may_tell.set()
        assert "is of user eve" in (await early).reason
        late.cancel()

    play(tmp_path, scene)


def test_a_place_that_tells_no_name_holds_up_no_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(module, "one_name", lambda _: str(told.wait(DEADLINE_S)))
    monkeypatch.setattr(module, "PLACE_S", 0.01)

    async def scene(asked: Asked) -> None:
        for _ in range(100):
            await asked.apply(dry_run=True)
        assert await asyncio.to_thread(lambda: True)
        assert sum(thread.name == "the name of a place" for thread in threading.enumerate()) <= 16
        told.set()

    play(tmp_path, scene)


def test_what_a_store_may_hold_up_runs_on_no_shared_thread(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        asked.shell.post(core.WorkerRegistered("w", "w", 1, 1 << 30))
        applied = asyncio.ensure_future(asked.apply())
        await asked.until(lambda: any(run.leadership.term for run in asked.shell.core.runs.values()))
        (run,) = asked.shell.core.runs.values()
        log, logs = run.leadership.log, asked.shell._logs
        await asyncio.get_running_loop().shutdown_default_executor()
        assert await asked.shell._audit(core.AuditDataset(log, {}, 1, False)) == core.DatasetAudited(log, 1, False)
        assert await asked.shell._manifest(core.WriteManifest(log, 1)) == core.ManifestWritten(log, 1)
        assert await logs.snapshot(core.WriteSnapshot(log, 0, run.ledger)) == core.SnapshotWritten(log, 0)
        await logs.truncate(core.TruncateLog(log, 0, frozenset({0})))
        applied.cancel()

    play(tmp_path, scene)


def log_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("log")}


def test_a_run_that_is_over_leaves_no_thread_and_no_log(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        of_the_cluster = log_threads()
        assert "no worker is registered" in (await asked.apply()).reason
        (run,) = asked.shell.core.runs.values()
        await asked.until(lambda: run.over)
        await asked.until(lambda: log_threads() <= of_the_cluster)
        assert list(asked.shell._logs._logs) == [asked.shell.core.log.log]  # type: ignore[union-attr]
        assert (await asked.servicer.Queue(pb.QueueRequest(queue="q", weight=1), None)).accepted

    play(tmp_path, scene)


def test_a_log_is_kept_while_it_is_read(tmp_path: Path) -> None:
    reads, may_read = threading.Event(), threading.Event()

    class Slow(Logs):
        def _read(self, *asked: Any) -> core.LogRead:
            reads.set()
            may_read.wait(DEADLINE_S)
            return super()._read(*asked)

    async def act() -> None:
        logs = Slow()
        reading = asyncio.ensure_future(logs.read(core.ReadLog(str(tmp_path), -1)))
        await asyncio.to_thread(reads.wait, DEADLINE_S)
        logs.keep(())
        assert logs._logs
        may_read.set()
        assert (await reading).entries == ()
        logs.keep(())
        assert not logs._logs

    asyncio.run(act())


def test_a_stop_is_answered_when_the_log_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, write = threading.Event(), Logs._write

    def slow(*asked: Any) -> Any:
        may_write.wait(DEADLINE_S)
        return write(*asked)

    async def scene(asked: Asked) -> None:
        assert (await asked.servicer.Queue(pb.QueueRequest(queue="q", weight=1), None)).accepted
        assert (await asked.apply(queue="q")).waits
        with monkeypatch.context() as patched:
            patched.setattr(Logs, "_write", slow)
            stopped = asyncio.ensure_future(asked.servicer.Stop(pb.StopRequest(pipeline="run"), None))
            await asked.until(lambda: bool(asked.shell.requests))
            assert not stopped.done()
            may_write.set()
            assert (await stopped).accepted
        assert (
            "no pipeline 'run'; there are: none"
            in (await asked.servicer.Stop(pb.StopRequest(pipeline="run"), None)).reason
        )

    play(tmp_path, scene)


def test_who_waits_for_no_answer_any_more_is_forgotten(tmp_path: Path) -> None:
    async def scene(asked: Asked) -> None:
        assert not (await asked.apply(dry_run=True)).accepted
        assert not asked.shell.requests
        _, answered = asked.shell.expect_answer()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(answered, 0.001)
        asked.shell.expect_answer()
        assert len(asked.shell.requests) == 1

    play(tmp_path, scene)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0])
def test_numbers_that_are_none_are_answered(tmp_path: Path, number: float) -> None:
    async def scene(asked: Asked) -> None:
        reply = await asked.servicer.Status(pb.StatusRequest(workers=1, within_s=min(number, 0.01)), None)
        assert reply.controller
        watched = asked.servicer.Watch(pb.WatchRequest(interval_s=number), None)
        assert (await anext(watched)).controller
        pages = [page async for page in asked.servicer.Logs(pb.LogSearch(since=number, lines_max=-5), None)]
        assert pages[-1].last

    play(tmp_path, scene)


ABSURD: dict[str, dict[str, Any]] = {
    "no seconds for a record": {"limits": pb.Limits(record_s=math.nan)},
    "endless seconds for a record": {"limits": pb.Limits(record_s=math.inf)},
    "no bytes of a task": {"limits": pb.Limits(task_bytes=-1)},
    "no age of a shard": {"seal": pb.SealPolicy(age_s=math.nan)},
    "less than no shard": {"seal": pb.SealPolicy(target_bytes=-1)},
    "all that a sink can hold": {"seal": pb.SealPolicy(held_bytes_max=(1 << 63) - 1)},
    "less than no quarantine": {"quarantined_max": -1},
    "no share": {"quarantined_share_max": math.nan},
    "more than all": {"quarantined_share_max": 1.5},
    "less than no core": {"cores": -1},
    "a long name": {"token": "x" * 257},
}


@pytest.mark.parametrize("what", ABSURD)
def test_numbers_that_nobody_can_mean_are_refused(tmp_path: Path, what: str) -> None:
    async def scene(asked: Asked) -> None:
        for dry_run in (True, False):
            reply = await asked.apply(dry_run=dry_run, **ABSURD[what])
            assert not reply.accepted
            assert "is asked for" in reply.reason or "are asked for" in reply.reason or "own name" in reply.reason
        assert not asked.shell.core.runs
        assert asked.leads

    play(tmp_path, scene)
