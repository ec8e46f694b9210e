"""Every command of the core ends as an event, whatever carrying it out raised; and nothing stands for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import msgpack
import pytest

from headrace.controller.core.cluster.controller import Controller
from headrace.controller.core.log import leader
from headrace.controller.core.log.leader import LeaderState
from headrace.controller.core.messages import messages as core
from headrace.controller.core.messages.log import LogEvent
from headrace.controller.effects.outcomes import in_words, outcome
from headrace.controller.logs import Logs, identity
from headrace.controller.offline_writer import OfflineWriter
from headrace.controller.shell import Shell
from headrace.store.contract.errors import StoreRefused, StoreStalled
from headrace.store.ledger.core.entries import ENTRY_FORMAT, Beat, Entry, EntryError, PipelineApplied
from headrace.store.ledger.core.fold import FoldError, LedgerState
from headrace.store.ledger.log import Log
from headrace.store.open import open_store

DEADLINE_S = 300.0
#: What a later release may write, and what another program may.
NEWER = msgpack.packb([ENTRY_FORMAT, 1, [["Sung", []]]])
FOREIGN = b"another program's file"
COMMANDS: list[tuple[core.Command, type[object]]] = [
    (core.ReadLog("log", -1), core.LogUnreadable),
    (core.WriteEntry("log", 0, Entry(1, (Beat(1),))), core.EntryFailed),
    (core.WriteSnapshot("log", 0, LedgerState()), core.SnapshotWritten),
    (core.WriteManifest("log", 1), core.ManifestWritten),
]


@pytest.fixture(autouse=True)
def _short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else leads: a leader that lost its term need not wait long for another one."""
    monkeypatch.setattr(leader, "TAKEOVER_S", 0.1)


class Cluster:
    """A controller with a log of its own in a folder, without workers."""

    def __init__(self, folder: Path) -> None:
        self.uri = open_store(str(folder)).uri
        self.log = Log(open_store(self.uri))
        self.shell = Shell(Controller(identity(), log=self.uri), bytes(32))

    @property
    def state(self) -> LeaderState:
        assert self.shell.core.log is not None
        return self.shell.core.log.state

    async def until(self, what: Callable[[], bool]) -> None:
        while not what():
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.005)

    async def leads(self) -> None:
        await self.until(lambda: self.state is LeaderState.LEADING)


def play(folder: Path, scene: Callable[[Cluster], Awaitable[None]]) -> list[dict[str, Any]]:
    """Play a scene with a controller; what reached nobody but the loop."""
    lost: list[dict[str, Any]] = []

    async def act() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: lost.append(context))
        cluster = Cluster(folder)
        async with asyncio.timeout(DEADLINE_S):
            cluster.shell.begin("127.0.0.1:1")
            await cluster.leads()
            await scene(cluster)
        await cluster.shell.close()

    asyncio.run(act())
    return lost


@pytest.mark.parametrize(("command", "event"), COMMANDS)
def test_whatever_a_command_raises_it_ends_as_its_event(command: core.Command, event: type[object]) -> None:
    found = outcome(command, RuntimeError("nobody thought of this"))
    assert isinstance(found, event)
    assert "nobody thought of this" in str(getattr(found, "error", ""))


def test_every_event_of_a_log_is_known_to_who_hears_it() -> None:
    assert {event for _, event in COMMANDS if event is not core.ManifestWritten} <= set(get_args(LogEvent))


def test_a_store_that_refuses_an_entry_leaves_it_in_doubt() -> None:
    found = outcome(core.WriteEntry("log", 3, Entry(1, ())), StoreRefused("no such bucket"))
    assert found == core.EntryUnresolved("log", 3, "no such bucket", refused=True)


def test_a_manifest_that_waits_for_room_is_not_given_up() -> None:
    assert outcome(core.WriteManifest("log", 1), StoreStalled("full")) == core.ManifestWritten("log", 1, "full", True)


def test_words_of_an_error_name_what_to_do() -> None:
    assert in_words(EntryError("upgrade this one")) == "upgrade this one"
    assert "dataset verify" in in_words(FoldError("entry 3"))
    assert "KeyError: 'x'" in in_words(KeyError("x"))


@pytest.mark.parametrize("planted", [NEWER, FOREIGN])
def test_a_leader_that_cannot_read_its_number_steps_down_loudly(tmp_path: Path, planted: bytes) -> None:
    async def scene(cluster: Cluster) -> None:
        assert cluster.shell.core.log is not None
        number = cluster.shell.core.log.ledger.number + 1
        cluster.log.append(number, planted)
        cluster.shell.core.log.submit(Beat(cluster.shell.core.log.term))
        cluster.shell.post(core.TimePassed())
        await cluster.until(lambda: cluster.state is LeaderState.READING)
        await cluster.until(lambda: bool(cluster.shell.core.log and cluster.shell.core.log.trouble(0.0)[1]))
        words = cluster.shell.core.log.trouble(0.0)[1]
        assert words.startswith(f"entry {number} of {cluster.uri}")
        assert ("a newer Headrace wrote it" in words) == (planted == NEWER)
        open_store(cluster.uri).delete(cluster.log.key(number))
        await cluster.leads()

    assert play(tmp_path, scene) == []


def test_an_entry_without_bytes_ends_the_term_only(tmp_path: Path) -> None:
    async def scene(cluster: Cluster) -> None:
        assert cluster.shell.core.log is not None
        term = cluster.shell.core.log.term
        cluster.shell.core.log.submit(PipelineApplied("v", {"input": "\udce9"}))
        cluster.shell.post(core.TimePassed())
        await cluster.until(lambda: cluster.state is not LeaderState.LEADING)
        await cluster.leads()
        assert cluster.shell.core.log.term == term + 1

    assert play(tmp_path, scene) == []


def test_a_write_that_raises_what_nobody_thought_of_ends_the_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("nobody thought of this")

    async def scene(cluster: Cluster) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Logs, "_write", fails)
            assert cluster.shell.core.log is not None
            cluster.shell.core.log.submit(Beat(cluster.shell.core.log.term))
            cluster.shell.post(core.TimePassed())
            await cluster.until(lambda: cluster.state is not LeaderState.LEADING)
        await cluster.leads()

    assert play(tmp_path, scene) == []


def test_an_event_that_the_core_refuses_reaches_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(cluster: Cluster) -> None:
        def fails(*_: object) -> None:
            raise KeyError("nobody thought of this")

        with monkeypatch.context() as patched:
            patched.setattr(cluster.shell.core, "handle", fails)
            cluster.shell.post(core.TimePassed())

    (lost,) = play(tmp_path, scene)
    assert isinstance(lost["exception"], KeyError)


def test_who_asks_what_the_core_cannot_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(cluster: Cluster) -> None:
        def fails(*_: object) -> None:
            raise KeyError("nobody thought of this")

        number, answered = cluster.shell.expect_answer()
        with monkeypatch.context() as patched:
            patched.setattr(cluster.shell.core, "handle", fails)
            cluster.shell.post(core.PipelineRequested(number, {"name": "run"}))
        answer = await answered
        assert not answer.accepted
        assert "nobody thought of this" in answer.reason

    assert play(tmp_path, scene) == []


def test_a_pen_that_cannot_write_an_entry_says_why_at_once(tmp_path: Path) -> None:
    async def act() -> None:
        writer = OfflineWriter(str(tmp_path))
        await writer.lead()
        with pytest.raises(StoreRefused, match="is not UTF-8"):
            await writer.commit(PipelineApplied("v", {"input": "\udce9"}))
        await writer.resign()

    asyncio.run(act())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (core.WriteSnapshot("the log", 7, LedgerState()), "snapshot 7 of the log could not be written: "),
        (core.TruncateLog("the log", 7, frozenset()), "the log could not be truncated up to entry 7: "),
    ],
)
def test_what_no_run_waits_for_is_said_in_the_log(
    command: core.Command, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    outcome(command, StoreRefused("file:///x: no room"))
    assert said + "file:///x: no room" in caplog.text
