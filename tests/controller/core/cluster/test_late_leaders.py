"""Two who both believe that they lead, a leader that wakes late, and writes whose answer is lost: on real stores.

The cores and the log's I/O are the real ones; the store is a folder or a real S3 server, with a fault before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.controller.core.log.leader import RETRY_S_MAX, TAKEOVER_S, WATCH_S, Leadership, LeaderState, LogLimits
from headrace.controller.core.messages.log import ReadLog, SnapshotWritten, TruncateLog, WriteEntry, WriteSnapshot
from headrace.controller.core.messages.messages import TimePassed
from headrace.controller.logs import Logs
from headrace.store.contract.errors import StoreUnavailable
from headrace.store.contract.objects import Buffer, ObjectStore
from headrace.store.ledger.core.cluster_changes import WorkerJoined
from headrace.store.ledger.core.cluster_fold import ClusterState
from headrace.store.ledger.core.entries import Led, decode_entry
from headrace.store.ledger.log import Log, fold_log
from headrace.store.open import open_store
from tests.kits.store.s3_server import shared_server


class Faulty:
    """A store before which requests or answers get lost: `lose` says which of the two befalls the next creations."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.lose: list[str] = []

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        fault = self.lose.pop(0) if self.lose and key.endswith(".msgpack") else ""
        if fault == "request":
            raise StoreUnavailable("the request was lost")
        made = self._store.create(key, parts)
        if fault == "answer":
            raise StoreUnavailable("the answer was lost")
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Writer:
    """One would-be leader: the core, and the I/O of its log, a step at a time."""

    def __init__(self, uri: str, name: str, *, snapshot_entries: int = 10_000) -> None:
        self.store = Faulty(open_store(uri))
        self.logs = Logs(lambda _uri: self.store)  # type: ignore[arg-type, return-value]
        self.core = Leadership(uri, {"name": name}, ClusterState(), standby=True, limits=LogLimits(snapshot_entries))
        self.now = 0.0
        self.held: list[Any] = []
        #: Whether commands wait, as in a process that is frozen before it sends them.
        self.frozen = self.stops_before_writing = False

    def tell(self, event: object) -> None:
        self.do(self.core.handle(event, self.now))

    def do(self, commands: Sequence[Any]) -> None:
        queue = [*self.held, *commands]
        self.held = []
        while queue:
            self.frozen = self.frozen or (self.stops_before_writing and isinstance(queue[0], WriteEntry))
            if self.frozen:
                self.held = queue
                return
            answer = asyncio.run(self._done(queue.pop(0)))
            if answer is not None:
                queue += self.core.handle(answer, self.now)

    async def _done(self, command: Any) -> object:
        match command:
            case ReadLog():
                return await self.logs.read(command)
            case WriteEntry():
                return await self.logs.write(command)
            case WriteSnapshot():
                return await self.logs.snapshot(command)
            case TruncateLog():
                await self.logs.truncate(command)
                return None
            case _:
                raise AssertionError(f"unexpected: {command}")

    def thaw(self) -> None:
        self.frozen = self.stops_before_writing = False
        self.do(())

    def wait(self, seconds: float) -> None:
        """Let time pass, in steps as a timer would."""
        until = self.now + seconds
        while (wake_at := self.core.wake_at()) is not None and wake_at <= until:
            self.now = max(self.now, wake_at)
            self.tell(TimePassed())
        self.now = until

    def say(self, worker: str) -> None:
        self.core.submit(WorkerJoined(worker, "here", 1))
        self.do(self.core.flush(self.now))

    @property
    def leads(self) -> bool:
        return self.core.state is LeaderState.LEADING


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return str(tmp_path / "log")
    return shared_server().uri()


@pytest.fixture
def writer(place: str) -> Iterator[Callable[..., Writer]]:
    made: list[Writer] = []

    def make(name: str, **options: Any) -> Writer:
        made.append(Writer(place, name, **options))
        made[-1].do(made[-1].core.open())
        return made[-1]

    yield make
    for item in made:
        item.logs.close()


def folded(place: str) -> ClusterState:
    return fold_log(Log(open_store(place)), ClusterState())


Make = Callable[..., Writer]


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_write_whose_fate_is_unknown_is_tried_again_and_counts_once(writer: Make, place: str, lost: str) -> None:
    leader = writer("a")
    leader.store.lose = [lost, lost]
    leader.say("w1")
    leader.say("w2")
    leader.wait(2 * RETRY_S_MAX)
    assert leader.leads
    state = folded(place)
    assert list(state.workers) == ["w1", "w2"]
    assert state.number == leader.core.ledger.number


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_leader_in_doubt_that_was_succeeded_steps_down(writer: Make, place: str, lost: str) -> None:
    first, second = writer("a"), writer("b")
    first.store.lose = [lost]
    first.say("w1")
    second.wait(TAKEOVER_S + 2 * WATCH_S)
    assert second.leads
    first.wait(2 * RETRY_S_MAX)
    assert first.core.state is LeaderState.DEPOSED
    second.say("w2")
    state = folded(place)
    assert state.leader == {"name": "b"}
    assert list(state.workers) == (["w1", "w2"] if lost == "answer" else ["w2"]), "it is there for all or for none"


def test_of_two_that_both_believe_they_lead_only_one_can_say_anything(writer: Make, place: str) -> None:
    first, second = writer("a"), writer("b")
    second.wait(TAKEOVER_S + 2 * WATCH_S)
    assert first.leads
    assert second.leads
    first.say("by-a")
    second.say("by-b")
    assert first.core.state is LeaderState.DEPOSED
    assert second.leads
    assert list(folded(place).workers) == ["by-b"]


def grown(leader: Writer, entries: int) -> None:
    for number in range(entries):
        leader.say(f"{leader.core.identity['name']}{number}")


def truncated(place: str) -> list[int]:
    keys = [info.key for info in open_store(place).list("ledger/") if info.key.endswith(".msgpack")]
    return [int(key.split("/")[1].split(".")[0]) for key in keys]


def test_a_leader_that_wakes_after_truncation_and_successors_changes_nothing(writer: Make, place: str) -> None:
    frozen = writer("a", snapshot_entries=4)
    frozen.say("w1")
    frozen.frozen = True
    frozen.say("lost")
    for name in ("b", "c"):
        leader = writer(name, snapshot_entries=4)
        leader.wait(TAKEOVER_S + 2 * WATCH_S)
        grown(leader, 12)
    left = truncated(place)
    assert len(left) < folded(place).number, "entries are gone"
    before = folded(place)
    frozen.thaw()
    assert frozen.core.state is LeaderState.DEPOSED
    assert folded(place) == before
    assert truncated(place) == left


def test_a_candidate_that_wakes_below_a_snapshot_leads_nothing_and_begins_again(writer: Make, place: str) -> None:
    leader = writer("a", snapshot_entries=4)
    leader.say("w1")
    late = writer("z", snapshot_entries=4)
    late.stops_before_writing = True
    late.wait(TAKEOVER_S + 2 * WATCH_S)
    assert late.frozen, "its Led is on its way"
    number = next(command.number for command in late.held if isinstance(command, WriteEntry))
    grown(leader, 20)
    assert number not in truncated(place), "the place that it is to write to is free again"
    before = folded(place)
    late.thaw()
    assert late.core.state is LeaderState.WATCHING
    assert late.core.ledger == before
    assert folded(place) == before
    assert number not in truncated(place), "what was written there is gone"
    late.wait(TAKEOVER_S + 2 * WATCH_S)
    assert late.leads
    assert folded(place).leader == {"name": "z"}


def test_a_term_that_others_followed_stays_when_its_answer_comes_late(writer: Make, place: str) -> None:
    writer("a").say("w1")
    late = writer("z")
    late.stops_before_writing = True
    late.wait(TAKEOVER_S + 2 * WATCH_S)
    number = next(command.number for command in late.held if isinstance(command, WriteEntry))
    late.store.lose = ["answer"]
    late.thaw()
    leader = writer("b", snapshot_entries=4)
    leader.wait(TAKEOVER_S + 2 * WATCH_S)
    grown(leader, 12)
    before = folded(place)
    assert number in before.led_at
    late.wait(RETRY_S_MAX)
    assert late.core.state is LeaderState.WATCHING
    assert number in truncated(place), "an older leader could write in its place"
    assert folded(place) == late.core.ledger == before


def test_a_term_that_was_led_cannot_be_led_again(writer: Make, place: str) -> None:
    for name in "abc":
        leader = writer(name, snapshot_entries=3)
        leader.wait(TAKEOVER_S + 2 * WATCH_S)
        grown(leader, 7)
    state = folded(place)
    assert state.term == 3
    stand = dict(_leds(place))
    assert sorted(stand) == state.led_at, "a truncation keeps every entry that begins a term"


def _leds(place: str) -> Iterator[tuple[int, Led]]:
    store = open_store(place)
    for number in truncated(place):
        for change in decode_entry(store.get(Log(store).key(number))).changes:
            if isinstance(change, Led):
                yield number, change


def test_a_snapshot_that_cannot_be_written_is_no_reason_to_truncate(writer: Make, place: str) -> None:
    leader = writer("a", snapshot_entries=4)
    grown(leader, 3)
    number = leader.core.ledger.number
    leader.tell(SnapshotWritten(place, number, "the store is full"))
    assert truncated(place) == list(range(number + 1))
