"""A worker that lies: about other workers' tasks it is not believed, about its own its task has failed.

Every kind of message that a worker can say has its cases here; one that is added to the protocol without any fails.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import get_args

import pytest

from headrace.controller.convert import task_event
from headrace.controller.core.cluster import event_checks
from headrace.controller.core.cluster.event_checks import (
    BROUGHT_MAX,
    CORES_MAX,
    KEYS_BYTES_MAX,
    NAME_MAX,
    OBJECTS_MAX,
    STAGES_MAX,
    TEXT_MAX,
    WORDS_MAX,
    registration_fault,
)
from headrace.controller.core.messages import messages as m
from headrace.controller.core.plan import LinkPlan
from headrace.controller.core.run.states import RunState
from headrace.controller.core.run.tasks.task_table import AttemptFacts
from headrace.protos import control_pb2 as pb
from headrace.protos.codec import fragment_to
from headrace.store.ledger.core.intervals import UNBOUNDED
from tests.kits.controller.core import Stand, fragment, of

OURS, THEIRS = fragment(1), fragment(2)
OTHER_SOURCE = event_checks.Fragment.named("other", "file:///o", "v1", start=0, end=-1, reader="lines", size=1)
KEY = f"shards/1/{'0' * 32}.tokens"


def record_range(first: int = 0, count: int = 2, *, of_fragment: bytes = OURS.id, bits: bytes = b"\x03") -> pb.Range:
    return pb.Range(fragment=of_fragment, first=first, count=count, offset=-1, length=-1, kept=bits, verdicts=b"\0")


def shard(
    *ranges: pb.Range,
    sink: str = "write",
    kept: int = 2,
    filtered: int = 0,
    keys: Sequence[str] = (KEY,),
    size: int = 1,
    released: Sequence[pb.Records] = (),
    needs: Sequence[pb.Records] = (),
) -> pb.TaskEvent:
    proposed = pb.Proposed(sink=sink, version="v", epoch=1, ranges=ranges or (record_range(),), needs=needs)
    proposed.counts.kept, proposed.counts.filtered = kept, filtered
    proposed.released.extend(released)
    for key in keys:
        proposed.objects.add(role="tokens", key=key, checksum="xxh3-128:" + "0" * 32, size=size)
    return pb.TaskEvent(proposed=proposed)


def listing(stage: str = "read", *fragments: pb.Fragment, error: str = "") -> pb.TaskEvent:
    return pb.TaskEvent(listed=pb.FragmentsListed(stage=stage, fragments=fragments, error=error))


def named_otherwise() -> pb.Fragment:
    message = fragment_to(OURS)
    message.id = b"\7" * 16
    return message


def changed(**facts: object) -> pb.Fragment:
    message = fragment_to(OURS)
    for name, value in facts.items():
        setattr(message, name, value)
    return message


def read(fragment_id: bytes = OURS.id, count: int = 5) -> pb.TaskEvent:
    return pb.TaskEvent(reads=pb.FragmentsRead(reads=[pb.FragmentRead(fragment=fragment_id, count=count)]))


def swept(
    *held: pb.Range, sink: str = "write", pending: bytes = OURS.id, gap: tuple[int, int] = (0, 5)
) -> pb.TaskEvent:
    answer = pb.Swept(sweep=1, held=[pb.HeldRanges(sink=sink, ranges=held)])
    answer.pending.add(fragment=pending, gaps=[pb.Gap(first=gap[0], end=gap[1], offset=-1)])
    return pb.TaskEvent(swept=answer)


def exited(stage: str = "keep", item: pb.Range | None = None) -> pb.TaskEvent:
    in_hand = pb.InHand(stage=stage, range=item or record_range())
    return pb.TaskEvent(exited=pb.TaskExited(code=-9, in_hand=[in_hand]))


def ready(facts: int = 1, length: int = 1) -> pb.TaskEvent:
    return pb.TaskEvent(ready=pb.TaskReady(facts={f"{number}": "x" * length for number in range(facts)}))


#: Where no datagram can be sent without more ado: the tasks of others are told of it, and send to it.
NO_ADDRESSES = ("", "x", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:-1", "10.0.0.1:x", "10.0.0.1: 7")
NO_ADDRESSES += (
    "some.name:7",
    "010.0.0.1:7",
    "fd00::1:7",
    "[fd00::01]:7",
    "[10.0.0.1]:7",
    "10.0.0.1:\u0667",
    "10.0.0.1:07",
)


def at(address: str) -> pb.TaskEvent:
    return pb.TaskEvent(ready=pb.TaskReady(addresses=["127.0.0.1:7", "[fd00::1]:65535", address]))


def asked(keys: int = 16, row: int = 0, stage: str = "read") -> pb.TaskEvent:
    return pb.TaskEvent(asked=pb.DecisionAsked(number=1, fragment=OURS.id, row=row, keys=b"k" * keys, stage=stage))


def decided(row: int = 0) -> pb.TaskEvent:
    made = pb.DecisionMade(asking_task="run/read.1", asking_attempt=1)
    made.decision.duplicate, made.decision.row, made.decision.fragment = True, row, OURS.id
    return pb.TaskEvent(decided=made)


@dataclass(frozen=True)
class Case:
    """One kind of message: what an honest task says, and what it cannot."""

    honest: pb.TaskEvent
    lies: Sequence[pb.TaskEvent] = field(default_factory=tuple)
    #: Only a solitary task says it.
    alone: bool = False


#: By the name of the field in TaskEvent.
CASES: dict[str, Case] = {
    "ready": Case(ready(), (ready(facts=WORDS_MAX + 1), ready(length=NAME_MAX + 1), *map(at, NO_ADDRESSES))),
    "listed": Case(
        listing("read", fragment_to(OURS)),
        (
            listing("other"),
            listing("keep"),
            listing("read", fragment_to(OTHER_SOURCE)),
            listing("read", named_otherwise()),
            listing("read", changed(size=-1)),
            listing("read", changed(start=-1)),
            listing("read", changed(end=UNBOUNDED)),
            listing("read", changed(uri="x" * (TEXT_MAX + 1))),
        ),
    ),
    "proposed": Case(
        shard(released=[pb.Records(fragment=OURS.id, rows=[1])]),
        (
            shard(sink="another"),
            shard(record_range(count=1 << 40), kept=1 << 40),
            shard(record_range(count=9), kept=9),
            shard(record_range(count=0), kept=0),
            shard(record_range(count=-1), kept=-1),
            shard(record_range(first=-1)),
            shard(record_range(first=UNBOUNDED)),
            shard(record_range(of_fragment=b"\7" * 16)),
            shard(kept=1),
            shard(kept=3, filtered=-1),
            shard(filtered=10**12),
            shard(keys=("manifest.json",)),
            shard(keys=("shards/1/../../ledger/0",)),
            shard(keys=("/etc/passwd",)),
            shard(keys=(KEY,) * (OBJECTS_MAX + 1)),
            shard(size=-1),
            shard(released=[pb.Records(fragment=OURS.id, rows=[2])]),
            shard(released=[pb.Records(fragment=THEIRS.id, rows=[0])]),
            shard(released=[pb.Records(fragment=OURS.id, rows=[-1])]),
            shard(needs=[pb.Records(fragment=OURS.id, rows=[-1])]),
        ),
    ),
    "swept": Case(
        swept(record_range()),
        (
            swept(sink="another"),
            swept(record_range(count=0)),
            swept(record_range(first=-5)),
            swept(record_range(of_fragment=b"\7" * 16)),
            swept(pending=b"\7" * 16),
            swept(pending=OTHER_SOURCE.id),
            swept(gap=(5, 4)),
            swept(gap=(-1, 4)),
        ),
    ),
    "progress": Case(pb.TaskEvent(progress=pb.Progress(held_bytes=1))),
    "failed": Case(pb.TaskEvent(failed=pb.TaskFailed(error="x" * (2 * TEXT_MAX)))),
    "exited": Case(exited()),
    "lost": Case(
        pb.TaskEvent(lost=pb.LinkLost(link="unknown", generation=1)),
        (
            pb.TaskEvent(lost=pb.LinkLost(link="run/of.others", generation=1)),
            pb.TaskEvent(lost=pb.LinkLost(link="x" * (TEXT_MAX + 1))),
        ),
    ),
    "needs": Case(
        pb.TaskEvent(needs=pb.NeedsAsked(sink="write", records=[pb.Records(fragment=OURS.id, rows=[1])])),
        (
            pb.TaskEvent(needs=pb.NeedsAsked(sink="another")),
            pb.TaskEvent(needs=pb.NeedsAsked(sink="write", records=[pb.Records(fragment=OURS.id, rows=[-1])])),
            pb.TaskEvent(needs=pb.NeedsAsked(sink="write", records=[pb.Records(rows=[UNBOUNDED])])),
        ),
    ),
    "let_go": Case(pb.TaskEvent(let_go=pb.VerdictsLetGo())),
    "asked": Case(asked(), (asked(keys=KEYS_BYTES_MAX + 1), asked(row=-1), asked(stage="none")), alone=True),
    "decided": Case(decided(), (decided(row=-1),)),
    "reads": Case(
        read(),
        (read(b"\7" * 16), read(OTHER_SOURCE.id), read(count=-2), read(count=UNBOUNDED + 1)),
    ),
}
each_kind = pytest.mark.parametrize("kind", sorted(CASES))
each_lie = pytest.mark.parametrize(
    ("kind", "number"), [(kind, number) for kind, case in sorted(CASES.items()) for number in range(len(case.lies))]
)


class House:
    """A run whose tasks are on workers `one` and `two`; what is said is held against what is known."""

    def __init__(self, kind: str = "") -> None:
        self.stand = Stand()
        self.stand.join("one", "two")
        started = of(m.StartTask, self.stand.apply())
        self.place = {item.worker: (item.task, item.attempt) for item in started}
        assert set(self.place) == {"one", "two"}
        lister = next(item for item in of(m.ListSource, self._all_ready()))
        told = m.SourceListed(lister.task, lister.attempt, "read", (OURS, THEIRS), True, listing=lister.listing)
        self.stand.tell(told)
        run = self.stand.run
        run.ledger.fragments[OTHER_SOURCE.id] = type(run.ledger.fragments[OURS.id])(OTHER_SOURCE, 3)
        assert run.tasks is not None
        self.tasks = run.tasks
        if kind and CASES[kind].alone:
            task, attempt = self.place["one"]
            born = self.tasks._attempts[task][attempt]
            self.tasks._attempts[task][attempt] = AttemptFacts(born.worker, born.stages, alone=True)

    def _all_ready(self) -> list[m.Command]:
        return self.stand.tell(*(m.TaskReady(*place) for place in self.place.values()))

    def hear(self, worker: str, of_worker: str, message: pb.TaskEvent) -> tuple[object | None, str]:
        """What is believed when `worker` says this of the task of `of_worker`."""
        event = self.stamped(of_worker, message)
        said = task_event(event)
        if said is None:
            why = self.stand.core.witness.stranger(worker, event.task, event.attempt)
            return (None if why else event), why
        return self.stand.core.witness.hear(worker, said)

    def stamped(self, of_worker: str, message: pb.TaskEvent) -> pb.TaskEvent:
        event = pb.TaskEvent()
        event.CopyFrom(message)
        event.task, event.attempt = self.place[of_worker]
        return event


def test_every_kind_of_message_has_a_case() -> None:
    said = {field.name for field in pb.TaskEvent.DESCRIPTOR.oneofs_by_name["event"].fields}
    assert said == CASES.keys()
    by_worker = {field.name for field in pb.FromWorker.DESCRIPTOR.oneofs_by_name["message"].fields}
    # `logs` are attacked in test_log_search, `fault` in test_fault_desk, `register` below; a heartbeat says nothing.
    # Who is `leaving` says nothing besides, and is drained as if a person had asked for it.
    assert by_worker == {"register", "task", "heartbeat", "logs", "fault", "leaving"}
    assert set(get_args(m.TaskEvent)) == set(event_checks._CHECKS), "every event that a message becomes is looked at"


@each_kind
def test_what_an_honest_task_says_is_believed(kind: str) -> None:
    said, why = House(kind).hear("one", "one", CASES[kind].honest)
    assert (said is not None, why) == (True, "")


@each_kind
def test_nothing_is_believed_of_another_workers_task(kind: str) -> None:
    house = House(kind)
    said, why = house.hear("two", "one", CASES[kind].honest)
    assert said is None
    assert "which is worker one's, and" in why or why.endswith("which is worker one's")


@each_kind
@pytest.mark.parametrize("attempt", [0, 2, -1, 1 << 62])
def test_nothing_is_believed_of_an_attempt_that_nobody_was_given(kind: str, attempt: int) -> None:
    house = House(kind)
    house.place["one"] = house.place["one"][0], attempt
    said, why = house.hear("one", "one", CASES[kind].honest)
    assert said is None
    assert "which is not known here" in why


@pytest.mark.parametrize("task", ["", "run", "run/", "run/read.9", "other/read.0", "../x", "run/read.0\0"])
def test_nothing_is_believed_of_a_task_that_is_none(task: str) -> None:
    house = House()
    house.place["one"] = task, 1
    said, why = house.hear("one", "one", CASES["ready"].honest)
    assert said is None
    assert "which is not known here" in why


@each_lie
def test_a_task_that_says_what_cannot_be_has_failed(kind: str, number: int) -> None:
    house = House(kind)
    plan = house.tasks.plan
    house.tasks.plan = type(plan)(plan.tasks, (*plan.links, foreign_link()))
    said, why = house.hear("one", "one", CASES[kind].lies[number])
    house.tasks.plan = plan
    assert isinstance(said, m.TaskFailed)
    assert "of worker one says what cannot be" in why
    assert len(why) < 4 * NAME_MAX
    killed = of(m.KillTask, house.stand.tell(said))
    assert [(item.worker, item.task) for item in killed] == [("one", house.place["one"][0])]
    assert house.stand.run.state.value == "running", "one lie ends an attempt and no run"


def foreign_link() -> LinkPlan:
    """A link of the plan between two tasks of others."""
    return LinkPlan("run/of.others", "run/a.0", "a", "run/b.0", "b")


@pytest.mark.parametrize(
    "message",
    [exited(stage="another"), exited(item=record_range(of_fragment=b"\7" * 16)), exited(item=record_range(count=-1))],
    ids=["a stage of others", "an unknown fragment", "less than nothing"],
)
def test_the_end_of_a_task_is_believed_and_its_impossible_hand_not(message: pb.TaskEvent) -> None:
    house = House()
    said, why = house.hear("one", "one", message)
    assert isinstance(said, m.TaskExited)
    assert said.in_hand == ()
    assert why
    house.stand.tell(said)
    assert house.stand.run.intake.suspicion.fragments() == []


def test_a_worker_halts_no_fragment_that_another_reads() -> None:
    house = House()
    reader = house.stand.run.intake._assigned[THEIRS.id]
    liar = next(worker for worker, (task, _) in house.place.items() if task != reader)
    message = read(THEIRS.id, -1)
    message.reads.reads[0].error, message.reads.reads[0].changed = "it changed", True
    said, why = house.hear(liar, liar, message)
    assert (said is not None, why) == (True, "")
    house.stand.tell(said)
    assert house.stand.run._changed.open == {}


def test_a_dead_attempt_has_last_words_by_its_own_worker_alone() -> None:
    house = House()
    task, attempt = house.place["one"]
    house.stand.tell(m.TaskExited(task, attempt, -9))
    assert house.hear("one", "one", CASES["proposed"].honest)[1] == ""
    assert house.hear("two", "one", CASES["proposed"].honest)[0] is None


def test_what_the_tasks_of_an_ended_run_say_is_held_against_nothing() -> None:
    house, lie = House("proposed"), CASES["proposed"].lies[0]
    assert house.hear("one", "one", lie)[1]
    house.stand.run._machine.state = RunState.FAILED
    assert house.hear("one", "one", lie)[1] == ""


def test_what_a_worker_brought_is_spoken_of_by_that_worker_alone() -> None:
    stand = Stand()
    stand.join("one", "two", tasks=(("gone/read.0", 7),))
    stand.core._reported.drop("two")
    said = m.TaskExited("gone/read.0", 7, -9)
    assert stand.core.witness.hear("two", said)[0] is None
    assert stand.core.witness.hear("one", said) == (said, "")
    stand.core.handle(said, 0.0, "two")
    assert stand.core._reported.holds("one", "gone/read.0", 7), "another's word changes nothing"
    stand.core.handle(said, 0.0, "one")
    assert not stand.core._reported.holds("one", "gone/read.0", 7)


def test_an_attempt_of_a_later_leader_than_this_one_is_not_adopted() -> None:
    stand = Stand()
    stand.join("one", tasks=(("run/read.0", 1 << 52),))
    stand.apply()
    assert stand.run.tasks is not None
    assert all(task.attempt < 1 << 40 for task in stand.run.tasks)


def worker(**facts: object) -> m.WorkerRegistered:
    given: dict[str, object] = {"worker": "w", "host": "h", "cores": 1, "memory_bytes": 1, **facts}
    return m.WorkerRegistered(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "made",
    [
        lambda: worker(worker=""),
        lambda: worker(worker="x" * 256),
        lambda: worker(worker="a\nb"),
        lambda: worker(worker="\x1b[2J"),
        lambda: worker(cores=-1),
        lambda: worker(cores=CORES_MAX + 1),
        lambda: worker(memory_bytes=-1),
        lambda: worker(memory_bytes=UNBOUNDED),
        lambda: worker(labels=("x",) * (WORDS_MAX + 1)),
        lambda: worker(door="x" * (NAME_MAX + 1)),
        lambda: worker(tasks=(m.RunningTask("t", 1),) * (BROUGHT_MAX + 1)),
        lambda: worker(tasks=(m.RunningTask("t", -1),)),
        lambda: worker(tasks=(m.RunningTask("t", 1 << 62),)),
        lambda: worker(tasks=(m.RunningTask("t", 1, epoch=1 << 62),)),
        lambda: worker(tasks=(m.RunningTask("t" * (NAME_MAX + 1), 1),)),
        lambda: worker(tasks=(m.RunningTask("t", 1, addresses=("x",) * (WORDS_MAX + 1)),)),
        lambda: worker(links=(m.RunningLink("l", 1, 1, 1 << 62),)),
        lambda: worker(links=(m.RunningLink("l", -1, 1, 1),)),
    ],
)
def test_a_registration_beyond_its_bounds_is_refused(made: Callable[[], m.WorkerRegistered]) -> None:
    assert registration_fault(made())


def test_an_honest_registration_is_taken() -> None:
    brought = {"tasks": (m.RunningTask("run/read.0", 1 << 40),), "links": (m.RunningLink("l", 1, 1, 1),)}
    assert registration_fault(worker(labels=("disk=ssd",), **brought)) == ""


@pytest.mark.parametrize("over", [0, 1])
def test_a_task_may_bring_so_many_stages_with_so_long_names(over: int) -> None:
    for stages in (("s" * (NAME_MAX + over),), ("s",) * (STAGES_MAX + over)):
        why = registration_fault(worker(tasks=(m.RunningTask("t", 1, stages=stages),)))
        assert ("stages, or one with too long a name" in why) is bool(over)
