"""Places: which worker runs which stage, and what joins two tasks, as tables."""

from dataclasses import replace

import pytest
from msgspec import structs

from headrace.controller.core.messages import messages as m
from headrace.controller.core.plan.locality import WorkerFacts
from headrace.controller.core.plan.planner import move, plan
from headrace.controller.core.plan.plans import Change, Plan
from headrace.controller.core.run.tasks.run_links import CUT_S_MAX, HEALED_S, REMAKE_S_MAX
from headrace.pipeline.errors import PipelineError
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from tests.kits.controller.core import Stand, fragment, make_pipeline, of

A = WorkerFacts("a", 2, "host1", ("disk=ssd", "rack=1"), ("10.0.0.1",))
B = WorkerFacts("b", 1, "host2", ("disk=ssd", "rack=2"), ("10.0.0.2",))
C = WorkerFacts("c", 1, "host3", (), ("10.0.0.3",))
PLAIN = WorkerFacts("d", 1, "host1")
#: Two workers of one host, of a cluster and of none.
BESIDE = [WorkerFacts(name, 1, "host9", (), ("10.0.0.9",), door=True) for name in ("e", "f")]
BARE = [WorkerFacts(name, 1, "host9", door=True) for name in ("g", "h")]


def shape(made: Plan) -> list[tuple[str, str]]:
    return [("+".join(task.stages), task.worker) for task in made.tasks]


def edges(made: Plan) -> list[tuple[str, str, str]]:
    return [(made.task(link.sender).worker, link.transport, made.task(link.receiver).worker) for link in made.links]


@pytest.mark.parametrize(
    ("places", "tasks", "links"),
    [
        ({}, [("read+keep+write", "a"), ("read+keep+write", "a"), ("read+keep+write", "b")], []),
        ({"read": "b"}, [("read+keep+write", "b")], []),
        ({"write": "b"}, [("read+keep", "a"), ("read+keep", "a"), ("read+keep", "b"), ("write", "b")],
         [("a", "quic", "b"), ("a", "quic", "b"), ("b", "ring", "b")]),
        ({"read": "a", "write": "b"}, [("read+keep", "a"), ("read+keep", "a"), ("write", "b")],
         [("a", "quic", "b"), ("a", "quic", "b")]),
        ({"read": "b", "keep": "rack=1", "write": "b"},
         [("read", "b"), ("keep", "a"), ("keep", "a"), ("write", "b")],
         [("b", "quic", "a"), ("b", "quic", "a"), ("a", "quic", "b"), ("a", "quic", "b")]),
        ({"read": "disk=ssd"}, [("read+keep+write", "a"), ("read+keep+write", "a"), ("read+keep+write", "b")], []),
    ],
    ids=["no place", "all follow the first", "one sink", "apart", "there and back", "a label of two"],
)  # fmt: skip
def test_stages_run_where_they_are_placed_and_the_others_follow(
    places: dict[str, str], tasks: list[tuple[str, str]], links: list[tuple[str, str, str]]
) -> None:
    made = plan(make_pipeline(), [B, A], places=places)
    assert (shape(made), edges(made)) == (tasks, links)


def test_unfused_columns_of_a_label_have_rings_inside_and_no_links_between() -> None:
    made = plan(make_pipeline(), [A, B, C], fuse=False, replicas=2, places={"read": "disk=ssd"})
    assert set(edges(made)) == {("a", "ring", "a"), ("b", "ring", "b")}


@pytest.mark.parametrize(
    ("workers", "places", "transports", "reason"),
    [
        ([A, B], {"write": "gpu=1"}, {}, ("stage 'write' is placed on 'gpu=1': no worker has that name or label; "
         "there are: a disk=ssd rack=1; b disk=ssd rack=2")),
        ([A, B], {"wirte": "a"}, {}, "stage 'wirte', and there is none: the pipeline has read, keep, write"),
        ([A, B], {"write": "b"}, {"write": "ring"}, "cannot be joined by a ring: .* they are on different hosts"),
        ([A, PLAIN], {"write": "d"}, {"write": "ring"}, "cannot be joined by a ring: .* worker 'a' has no door"),
        ([A, PLAIN], {"write": "d"}, {}, "worker 'd' has no certificate: make a cluster with `headrace cluster init`"),
        ([A, B], {"write": "b"}, {"write": "inline"}, "cannot be joined by inline: it is a call inside one task"),
        ([A, B], {"write": "b"}, {"write": "pipe"}, "cannot be joined by a pipe: .* they are on different hosts"),
        (BARE, {"read": "g", "write": "h"}, {"write": "quic"}, "can only be joined by QUIC, .* 'g' has no certificate"),
        ([A, B], {"write": "b"}, {"write": "tcp"}, "there is no transport .tcp.; a link can be made"),
        ([A, B], {}, {"read": "quic"}, "stage 'read' reads from no other"),
        ([A, B], {}, {"rade": "quic"}, "a transport is asked for stage 'rade', and there is none"),
    ],
    ids=["no such place", "place of no stage", "a ring between hosts", "a ring between workers", "no certificate",
         "inline", "a pipe between hosts", "QUIC in plain text", "no such transport", "of a source", "of no stage"],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_reason(
    workers: list[WorkerFacts], places: dict[str, str], transports: dict[str, str], reason: str
) -> None:
    with pytest.raises(PipelineError, match=reason):
        plan(make_pipeline(), workers, places=places, transports=transports)


@pytest.mark.parametrize(
    ("workers", "forced", "transport", "listens"),
    [(BESIDE, "", "ring", True), (BARE, "", "ring", False), (BESIDE, "ring", "ring", False),
     (BARE, "pipe", "pipe", False), (BESIDE, "quic", "quic", True)],
    ids=["members", "plain", "a ring asked for", "a pipe asked for", "QUIC asked for"],
)  # fmt: skip
def test_workers_of_one_host_are_joined_by_rings_or_as_asked(
    workers: list[WorkerFacts], forced: str, transport: str, listens: bool
) -> None:
    one, two = (worker.name for worker in workers)
    transports = {"write": forced} if forced else {}
    made = plan(make_pipeline(), workers, places={"read": one, "write": two}, transports=transports)
    assert edges(made) == [(one, transport, two)]
    # Where memory cannot be passed after all QUIC takes its place, and its ends are made ready for that.
    assert made.listens(made.tasks[0].name) is listens


def test_stages_between_which_a_link_is_asked_for_are_not_fused() -> None:
    made = plan(make_pipeline(), [B], transports={"write": "pipe"})
    assert (shape(made), edges(made)) == ([("read+keep", "b"), ("write", "b")], [("b", "pipe", "b")])
    fused = plan(make_pipeline(), [B], transports={"write": "inline"})
    assert edges(fused) == [], "a call inside one task is no link"


def test_quic_inside_a_worker_is_used_where_it_is_asked_for() -> None:
    made = plan(make_pipeline(), [B], fuse=False, transports={"keep": "quic"})
    assert edges(made) == [("b", "quic", "b"), ("b", "ring", "b")]
    assert [made.listens(task.name) for task in made.tasks] == [True, True, False]


def test_tasks_of_a_lost_worker_move_as_allowed_with_their_links() -> None:
    made = plan(make_pipeline(), [A, B, C], places={"read": "disk=ssd", "write": "c"}, replicas=2)
    moved = move(made, "a", [B, C])
    assert [task.worker for task in moved.tasks] == ["b", "b", "c", "c"]
    assert set(edges(moved)) == {("b", "quic", "c")}
    assert [task.worker for task in move(made, "c", [A, B]).tasks] == ["a", "b", "c", "c"], "nobody else is that place"


class Apart:
    """A run whose source is on one worker and whose sink is on another, all tasks ready."""

    def __init__(self, one: WorkerFacts = A, two: WorkerFacts = B) -> None:
        self.stand = Stand()
        for worker in (one, two):
            door = "door" if worker.door else ""
            self.stand.tell(
                m.WorkerRegistered(
                    worker.name, worker.name, 1, 1 << 30, host_id=worker.host, addresses=worker.addresses, door=door
                )
            )
        places = {"read": one.name, "write": two.name}
        request = m.PipelineRequested(1, make_pipeline().to_dict(), places=places)
        starts = of(m.StartTask, self.stand.tell(request))
        assert [start.listens for start in starts] == [True, True]
        ready = [m.TaskReady(start.task, start.attempt, addresses=(f"{start.worker}:7",)) for start in starts]
        self.began = self.stand.tell(*ready)
        self.links = of(m.MakeLink, self.began)

    def lose(self, generation: int, *, apart: bool = False, unreachable: bool = False) -> list[m.MakeLink]:
        task, attempt = self.stand.task()
        lost = m.LinkLost(task, attempt, self.links[0].link, generation, "cut", apart, unreachable)
        return of(m.MakeLink, self.stand.tell(lost))

    def relays(self, *names: str) -> None:
        """More workers come, which relay."""
        for name in names:
            self.stand.tell(m.WorkerRegistered(name, name, 1, 1 << 30, host_id=name, relay_addresses=(f"{name}:9",)))


def test_both_workers_are_told_of_a_link_and_its_receivers_address() -> None:
    links = Apart().links
    assert [link.worker for link in links] == ["a", "b"]
    assert {(link.transport, link.addresses, link.generation) for link in links} == {("quic", ("b:7",), 1)}


def test_a_cut_link_is_made_again_once_with_a_higher_generation() -> None:
    apart = Apart()
    assert apart.lose(1) == []
    assert apart.lose(1) == [], "the other end says so too"
    again = of(m.MakeLink, apart.stand.later(REMAKE_S_MAX))
    assert [(link.worker, link.generation) for link in again] == [("a", 2), ("b", 2)]


def test_workers_of_one_host_that_cannot_pass_memory_take_quic_next() -> None:
    apart = Apart(*BESIDE)
    assert {link.transport for link in apart.links} == {"ring"}
    found = []
    for generation in (1, 2, 3):
        apart.lose(generation, apart=True)
        found.append({link.transport for link in of(m.MakeLink, apart.stand.later(REMAKE_S_MAX))})
    assert found == [{"ring"}, {"quic"}, {"quic"}]


def test_a_link_whose_receiver_is_not_found_is_relayed_in_turn() -> None:
    apart = Apart()
    apart.relays("r1", "r2", "r3", "r4", "r5")
    asked = []
    for generation in range(1, 6):
        apart.lose(generation, unreachable=True)
        commands = apart.stand.later(REMAKE_S_MAX)
        asked.append([relay.worker for relay in of(m.OpenRelay, commands)])
        links = of(m.MakeLink, commands)
        assert [link.worker for link in links] == ["a", "b"]
        assert {link.relays for link in links} == {tuple(asked[-1])}
        assert all(relay.link.generation == generation + 1 for relay in of(m.OpenRelay, commands))
    # Every other time the straight way is tried again.
    assert asked == [["r1", "r2", "r3"], [], ["r4", "r5", "r1"], [], ["r2", "r3", "r4"]]


def test_a_standing_link_that_was_cut_is_remade_directly() -> None:
    apart = Apart()
    apart.relays("r1")
    apart.lose(1)
    assert of(m.OpenRelay, apart.stand.later(REMAKE_S_MAX)) == []


def test_where_nobody_else_relays_the_straight_way_is_tried_again() -> None:
    apart = Apart()
    apart.lose(1, unreachable=True)
    assert {link.relays for link in of(m.MakeLink, apart.stand.later(REMAKE_S_MAX))} == {()}


def test_a_cut_link_makes_the_run_look_for_what_was_on_it() -> None:
    apart = Apart()
    apart.lose(1)
    assert of(m.SweepTask, apart.stand.tell(m.TimePassed())) == [], "not before the link stands"
    assert len(of(m.SweepTask, apart.stand.later(REMAKE_S_MAX))) == 2


def test_sinks_seal_for_good_only_after_the_last_sweep() -> None:
    apart, item = Apart(), fragment(0)
    apart.stand.listed(apart.began, item)
    apart.lose(1)
    while_reading = of(m.SweepTask, apart.stand.later(REMAKE_S_MAX))
    assert len(while_reading) == 2
    # The source sends all the rest behind the marker, and it is on its way when the marker has passed the sink.
    unsent = ((item.id, (Gap(0, UNBOUNDED, 0),)),)
    source, sink = (m.TaskSwept(sweep.task, sweep.attempt, sweep.sweep) for sweep in while_reading)
    apart.stand.tell(structs.replace(source, pending=unsent))
    apart.stand.read(item, 3)
    after = apart.stand.tell(sink)
    assert of(m.SealSink, after) == []
    assert len(of(m.SweepTask, after)) == 2


def test_a_link_remade_and_standing_tells_of_no_more_trouble() -> None:
    apart = Apart()
    apart.lose(1)
    apart.stand.later(REMAKE_S_MAX)
    assert apart.stand.run.tasks is not None
    joints, (link,) = apart.stand.run.tasks.links, apart.stand.run.tasks.plan.links
    assert joints.trouble(link.name) == "cut"
    apart.stand.later(HEALED_S)
    assert joints.trouble(link.name) == ""


def test_a_link_that_cannot_be_kept_ends_the_run_with_reason() -> None:
    apart = Apart()
    generation, until = 1, apart.stand.now + CUT_S_MAX + 2 * HEALED_S
    while apart.stand.now < until:
        apart.lose(generation)
        generation += bool(apart.stand.later(REMAKE_S_MAX))
    assert "could not be kept up for 600 s: cut" in apart.stand.run.reason


def test_a_workers_labels_of_one_kind_are_those_and_no_others() -> None:
    worker = replace(A, labels=("rack=r1", "racks", "zone=z1", "rack=r2", "gpu"))
    assert worker.of("rack") == ("rack=r1", "rack=r2")
    assert worker.of("gpu") == ("gpu",)
    assert worker.of("disk") == ()


def test_a_change_of_a_plan_is_told_in_words() -> None:
    change = Change({"read": 1, "keep": 2}, {"write": "b"}, {"write": "quic"}, leave="a")
    told = "read to 1 task, keep to 2 tasks, write to b, write joined by quic, worker a left"
    assert (change.words(), change.empty) == (told, False)
    assert (Change().words(), Change().empty) == ("", True)
