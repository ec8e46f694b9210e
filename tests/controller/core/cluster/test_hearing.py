"""The bounds of what a task and a worker may say: what lies at one is believed, what lies beyond is not."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from msgspec import structs

from headrace.controller.core.cluster import event_checks
from headrace.controller.core.cluster.event_checks import (
    CORES_MAX,
    KEYS_BYTES_MAX,
    MEASURED_MAX,
    NAME_MAX,
    NUMBER_MAX,
    OBJECTS_MAX,
    TEXT_MAX,
    WORDS_MAX,
    WORKER_NAME_MAX,
    fault,
    registration_fault,
)
from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.dedup import Decision, DecisionAsked, DecisionMade, Question
from headrace.controller.core.messages.messages import TaskEvent
from headrace.controller.core.plan.plans import LinkPlan
from headrace.controller.core.run.tasks.task_table import AttemptFacts
from headrace.store.ledger.core.fold import FragmentState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range, StoredObject
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap

TASK = ("run/read.0", 1)
ADDRESS = "127.0.0.1:7"
KEY = f"shards/1/{'0' * 32}.tokens"


def a_fragment(stage: str = "read", uri: str = "file:///a", **facts: Any) -> Fragment:
    given = {"start": 0, "end": -1, "reader": "lines", "size": 9, **facts}
    return Fragment.named(stage, uri, given.pop("version", "v1"), **given)


OURS, OF_OTHERS, UNKNOWN = a_fragment(), a_fragment("other"), b"\7" * 16


@dataclass
class Run:
    """What is known of a run in which the task reads and writes."""

    fragments: Mapping[bytes, FragmentState] = field(
        default_factory=lambda: {item.id: FragmentState(item) for item in (OURS, OF_OTHERS)}
    )
    sources: Collection[str] = ("read", "other")

    def link(self, name: str) -> LinkPlan | None:
        ends = {"from": (TASK[0], "run/x.0"), "to": ("run/x.0", TASK[0]), "past": ("run/x.0", "run/y.0")}
        return LinkPlan(name, ends[name][0], "a", ends[name][1], "b") if name in ends else None


def heard(event: TaskEvent, *, alone: bool = True) -> str:
    return fault(event, AttemptFacts("one", ("read", "write"), alone), Run())


def ready(*addresses: str, **facts: str) -> TaskEvent:
    return m.TaskReady(*TASK, facts=facts, addresses=addresses)


def exited(first: int = 0, count: int = 2, stage: str = "read", **facts: Any) -> TaskEvent:
    return m.TaskExited(*TASK, -9, in_hand=(m.InHand(stage, Range(OURS.id, first, count)),), **facts)


def listed(*fragments: Fragment, stage: str = "read", **facts: Any) -> TaskEvent:
    return m.SourceListed(*TASK, stage, fragments, last=True, **facts)


def was_read(count: int = 5, of_fragment: bytes = OURS.id, **facts: Any) -> m.FragmentWasRead:
    return m.FragmentWasRead(*TASK, of_fragment, count, **facts)


HONEST = m.ShardProposed(
    *TASK, 0, "write", "v", 1, (Range(OURS.id, 5, 2),), (m.Coverage(b"\3", b"\0"),),
    (StoredObject("tokens", KEY, "xxh3-128:" + "0" * 32, 1),), Counts(kept=2),
)  # fmt: skip


def shard(**facts: Any) -> TaskEvent:
    return structs.replace(HONEST, **facts)


def of(first: int, count: int, kept: bytes, verdicts: bytes = b"") -> dict[str, Any]:
    """One range of a shard, its bits and its counts."""
    ranges, coverage = (Range(OURS.id, first, count),), (m.Coverage(kept, verdicts),)
    return {"ranges": ranges, "coverage": coverage, "counts": Counts(kept=count)}


def stored(role: str = "tokens", key: str = KEY, checksum: str = "x", size: int = 1) -> dict[str, Any]:
    return {"objects": (StoredObject(role, key, checksum, size),)}


def swept(*gaps: Gap, held: Range | None = None, sink: str = "write", pending: bytes = OURS.id) -> TaskEvent:
    mine = ((sink, (held or Range(OURS.id, 0, 1),)),)
    return m.TaskSwept(*TASK, 1, pending=((pending, gaps),), held=mine)


def needs(*rows: int, sink: str = "write") -> TaskEvent:
    return m.NeedsAsked(*TASK, 1, sink, ((OURS.id, rows),))


def asked(keys: int = 16, row: int = 0, of_fragment: bytes = OURS.id, stage: str = "read") -> TaskEvent:
    return DecisionAsked(*TASK, Question(1, of_fragment, row, b"k" * keys, stage))


def decided(row: int | None) -> TaskEvent:
    return DecisionMade(*TASK, "run/read.1", 1, Decision(1, None if row is None else (OURS.id, row)))


def lost(link: str = "from", reason: str = "") -> TaskEvent:
    return m.LinkLost(*TASK, link, 1, reason)


LONG, LONGER = "x" * TEXT_MAX, "x" * (TEXT_MAX + 1)
COUNTED = ("filtered_by", "quarantined_by", "edited", "counters")

CAN_BE: list[TaskEvent] = [
    ready(),
    ready(*[ADDRESS] * WORDS_MAX),
    ready(ADDRESS, **{f"{number}": "" for number in range(WORDS_MAX // 2 - 1)}),
    ready(word="x" * NAME_MAX),
    ready("127.0.0.1:1", "127.0.0.1:65535", "[fd00::1]:7"),
    exited(count=0, story=LONG, killed_for=LONG),
    m.TaskFailed(*TASK, LONG, final=True),
    listed(OURS, error=LONG, skipped=LONG),
    listed(a_fragment(start=0, end=UNBOUNDED - 1, size=UNBOUNDED - 1), a_fragment(size=0, end=0)),
    listed(a_fragment(uri=LONG), a_fragment(version=LONG), a_fragment(reader=LONG)),
    was_read(-1), was_read(0), was_read(UNBOUNDED, error=LONG, compared=LONG),
    was_read(1, prefix=1, checksum=b"c" * 16),
    m.FragmentsWereRead(*TASK, (was_read(), was_read())),
    shard(), shard(**of(0, 1, b"\1")), shard(**of(0, 16, b"\xff\xff")), shard(**of(0, 16, b"", b"\xff\xff")),
    shard(objects=HONEST.objects * OBJECTS_MAX),
    shard(**stored(size=0)), shard(**stored(size=UNBOUNDED - 1)),
    shard(**stored("x" * WORKER_NAME_MAX)), shard(**stored(checksum="x" * WORKER_NAME_MAX)),
    shard(counts=Counts(filtered=1, duplicate=1)),
    *(shard(counts=Counts(kept=2, **{name: {LONG: 1}})) for name in COUNTED),
    shard(released=((OURS.id, (5, 6)),)),
    needs(), needs(0, UNBOUNDED - 1),
    m.VerdictsLetGo(*TASK),
    asked(), asked(KEYS_BYTES_MAX, UNBOUNDED),
    decided(None), decided(0), decided(UNBOUNDED),
    swept(Gap(0, 0), Gap(5, 5, 0), Gap(0, UNBOUNDED, UNBOUNDED - 1)),
    swept(held=Range(OURS.id, 0, UNBOUNDED, UNBOUNDED - 1, UNBOUNDED - 1)),
    lost("from"), lost("to"), lost("nowhere", LONG), lost(LONG),
]  # fmt: skip

CANNOT_BE: list[tuple[TaskEvent, str]] = [
    (ready(*[ADDRESS] * (WORDS_MAX + 1)), "facts and addresses"),
    (ready(ADDRESS, **{f"{number}": "" for number in range(WORDS_MAX // 2)}), "facts and addresses"),
    (ready(word="x" * (NAME_MAX + 1)), "facts and addresses"),
    (ready(**{"x" * (NAME_MAX + 1): ""}), "facts and addresses"),
    *((ready(ADDRESS, f"127.0.0.1:{port}"), "no address") for port in ("0", "65536", "7" * 4000, "\u0667", "+7", "")),
    *((ready(f"[fe80::1%{scope}]:7"), "no address") for scope in ("1", "eth0", "a name to look up")),
    (exited(stage="another"), "the task has none of that name"),
    (exited(-1), "a range of"), (exited(count=-1), "a range of"), (exited(1, UNBOUNDED), "a range of"),
    (exited(story=LONGER), "a text"), (exited(killed_for=LONGER), "a text"),
    (m.TaskFailed(*TASK, LONGER, final=True), "a text"),
    (listed(stage="other"), "no source of the task"), (listed(stage="write"), "no source of the task"),
    (listed(error=LONGER), "a text"), (listed(skipped=LONGER), "a text"),
    (listed(OURS, OF_OTHERS), "in a listing of read"),
    *((listed(OURS, a_fragment(**facts)), "a fragment of") for facts in (
        {"start": -1}, {"end": -2}, {"end": UNBOUNDED}, {"size": -1}, {"size": UNBOUNDED},
    )),
    *((listed(OURS, a_fragment(**{name: LONGER})), "a name of more") for name in ("uri", "version", "reader")),
    (listed(replace(OURS, id=UNKNOWN)), "which its facts do not give"),
    (was_read(0, prefix=1, checksum=b"c" * 16), "bytes"), (was_read(1, prefix=-1, checksum=b"c" * 16), "bytes"),
    (was_read(1, prefix=1), "bytes"),
    (was_read(-2), "records"), (was_read(UNBOUNDED + 1), "records"),
    (was_read(of_fragment=UNKNOWN), "never listed"), (was_read(of_fragment=OF_OTHERS.id), "which the task has not"),
    (was_read(error=LONGER), "a text"), (was_read(compared=LONGER), "a text"),
    (m.FragmentsWereRead(*TASK, (was_read(), was_read(-2))), "records"),
    (shard(sink="another"), "no sink of the task"),
    (shard(coverage=()), "with 0 coverages"),
    (shard(**of(0, 17, b"\xff\xff")), "and bits for 16"),
    (shard(**of(0, 0, b"")), "a range of"),
    (shard(objects=HONEST.objects * (OBJECTS_MAX + 1)), "objects"),
    (shard(**stored(key="manifest.json")), "which no sink writes"),
    (shard(**stored(size=-1)), "without end"), (shard(**stored(size=UNBOUNDED)), "without end"),
    (shard(**stored("x" * (WORKER_NAME_MAX + 1))), "without end"),
    (shard(**stored(checksum="x" * (WORKER_NAME_MAX + 1))), "without end"),
    (shard(counts=Counts(kept=1)), "verdicts for 2 records"), (shard(counts=Counts(kept=3)), "verdicts for 2 records"),
    (shard(counts=Counts(kept=-1, filtered=3)), "below nothing"),
    *((shard(counts=Counts(kept=3, **{name: -1})), "below nothing") for name in (
        "filtered", "duplicate", "quarantined",
    )),
    *((shard(counts=Counts(kept=2, **{name: -1})), "below nothing") for name in ("tokens", "sequences", "padding")),
    *((shard(counts=Counts(kept=2, **{name: {LONGER: 1}})), "a count with a name") for name in COUNTED),
    (shard(needs=((OURS.id, (-1, 5)),)), "records -1 to 5"),
    *((shard(released=((OURS.id, (5, row)),)), f"releases record {row}") for row in (-1, 4, 7)),
    (shard(released=((OF_OTHERS.id, (5,)),)), "releases record 5"),
    (needs(5, sink="another"), "no sink of the task"),
    (needs(-1, 5), "records -1 to 5"), (needs(5, UNBOUNDED), "records 5 to"),
    (asked(KEYS_BYTES_MAX + 1), "bytes about record"), (asked(row=-1), "bytes about record"),
    (asked(row=UNBOUNDED + 1), "bytes about record"), (asked(of_fragment=UNKNOWN), "never listed"),
    (decided(-1), "a duplicate of record"), (decided(UNBOUNDED + 1), "a duplicate of record"),
    *((swept(Gap(0, 5), gap), "records") for gap in (
        Gap(-1, 5), Gap(5, 4), Gap(0, UNBOUNDED + 1), Gap(0, 5, -2), Gap(0, 5, UNBOUNDED),
    )),
    (swept(pending=UNKNOWN), "never listed"), (swept(pending=OF_OTHERS.id), "which the task has not"),
    (swept(sink="another"), "no sink of the task"),
    *((swept(held=Range(OURS.id, *place)), "a range of") for place in (
        (-1, 2), (0, 0), (1, UNBOUNDED), (0, 2, -2), (0, 2, UNBOUNDED), (0, 2, 0, -2), (0, 2, 0, UNBOUNDED),
    )),
    (swept(held=Range(UNKNOWN, 0, 1)), "never listed"),
    (lost("past"), "no end of it"), (lost(LONGER), "a text"), (lost(reason=LONGER), "a text"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CAN_BE)))
def test_what_a_task_can_know_is_believed(number: int) -> None:
    assert heard(CAN_BE[number]) == ""


@pytest.mark.parametrize("number", range(len(CANNOT_BE)))
def test_what_cannot_be_is_refused_with_what_it_is(number: int) -> None:
    event, words = CANNOT_BE[number]
    assert words in heard(event)


def test_a_task_beside_others_has_no_questions_for_the_decider() -> None:
    assert "no solitary one" in heard(asked(), alone=False)


def test_what_is_no_word_of_a_task_is_refused() -> None:
    assert "is no word of a task" in heard(worker())  # type: ignore[arg-type]


def worker(**facts: Any) -> m.WorkerRegistered:
    return m.WorkerRegistered(**{"worker": "w", "host": "h", "cores": 1, "memory_bytes": 1, **facts})


def with_task(name: str = "t", *numbers: int, addresses: tuple[str, ...] = ()) -> m.WorkerRegistered:
    attempt, epoch = numbers or (1, 1)
    task = m.RunningTask(name, attempt, epoch=epoch, addresses=addresses)
    return worker(tasks=(m.RunningTask("t", 1), task))


def with_link(name: str = "l", *numbers: int) -> m.WorkerRegistered:
    return worker(links=(m.RunningLink("l", 1, 1), m.RunningLink(name, *(numbers or (1, 1, 1)))))


MOST = NUMBER_MAX - 1
MAY_COME = [
    worker(),
    worker(worker="w" * WORKER_NAME_MAX),
    worker(cores=0, memory_bytes=0),
    worker(cores=CORES_MAX, memory_bytes=UNBOUNDED - 1),
    # beside the host, its id and the door
    worker(labels=("x" * NAME_MAX,) * (WORDS_MAX - 3)),
    worker(relay_addresses=(ADDRESS,)),
    worker(measured=(("n" * NAME_MAX, MEASURED_MAX),) * WORDS_MAX),
    with_task("t" * NAME_MAX, 0, MOST, addresses=(ADDRESS,) * WORDS_MAX),
    with_task("t", MOST, 0),
    with_link("l" * NAME_MAX, 0, MOST, 0),
    with_link("l", MOST, 0, MOST),
]
MAY_NOT_COME = [
    (worker(worker=""), "no name for a worker"),
    (worker(worker="w" * (WORKER_NAME_MAX + 1)), "no name for a worker"),
    (worker(worker="a\nb"), "no name for a worker"),
    *((worker(cores=cores), "cores and") for cores in (-1, CORES_MAX + 1)),
    *((worker(memory_bytes=size), "cores and") for size in (-1, UNBOUNDED)),
    (worker(labels=("x",) * (WORDS_MAX - 2)), "addresses and labels"),
    *((worker(**{name: "x" * (NAME_MAX + 1)}), "addresses and labels") for name in ("host", "host_id", "door")),
    *((worker(**{name: ("x" * (NAME_MAX + 1),)}), "addresses and labels") for name in (
        "addresses", "labels", "relay_addresses",
    )),
    (worker(relay_addresses=(ADDRESS, "name:7")), "no address"),
    (worker(measured=(("n", 1.0),) * (WORDS_MAX + 1)), f"more than {WORDS_MAX} measured facts"),
    (worker(measured=(("n" * (NAME_MAX + 1), 1.0),)), "measured facts"),
    *((worker(measured=(("n", value),)), "measured fact n is") for value in (
        0.0, -1.0, 2 * MEASURED_MAX, float("inf"), float("nan"),
    )),
    (with_task(addresses=(ADDRESS,) * (WORDS_MAX + 1)), f"more than {WORDS_MAX} addresses"),
    (with_task(addresses=("name:7",)), "no address"), (with_task(addresses=("1" * 9999,)), "no address"),
    (with_task(addresses=(f"127.0.0.1:{'1' * 9999}",)), "no address"),
    (with_task("t" * (NAME_MAX + 1)), "a task or link with a name of"),
    *((with_task("t", *numbers), "has numbers") for numbers in ((-1, 1), (1, -1), (NUMBER_MAX, 1), (1, NUMBER_MAX))),
    (with_link("l" * (NAME_MAX + 1)), "a task or link with a name of"),
    *((with_link("l", *numbers), "has numbers") for numbers in (
        (-1, 1, 1), (1, -1, 1), (1, 1, -1), (NUMBER_MAX, 1, 1), (1, NUMBER_MAX, 1), (1, 1, NUMBER_MAX),
    )),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MAY_COME)))
def test_a_worker_at_its_bounds_is_taken(number: int) -> None:
    assert registration_fault(MAY_COME[number]) == ""


@pytest.mark.parametrize("number", range(len(MAY_NOT_COME)))
def test_a_worker_beyond_its_bounds_is_refused_with_what_it_said(number: int) -> None:
    event, words = MAY_NOT_COME[number]
    assert words in registration_fault(event)


@pytest.mark.parametrize("kind", ["tasks", "links"])
def test_a_worker_brings_so_many_tasks_and_links(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    item = m.RunningTask("t", 1) if kind == "tasks" else m.RunningLink("l", 1, 1)
    monkeypatch.setattr(event_checks, "BROUGHT_MAX", 3)
    assert registration_fault(worker(**{kind: (item,) * 3})) == ""
    assert registration_fault(worker(**{kind: (item,) * 4})) == "more than 3 tasks or links"
