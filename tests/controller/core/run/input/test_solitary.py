"""What solitary tasks are to read, and where they stand when a plan changes."""

from headrace.controller.core.messages.messages import InHand
from headrace.controller.core.plan.planner import _Identities
from headrace.controller.core.plan.plans import Plan, Route, TaskPlan
from headrace.controller.core.run.input.suspicion import Solitary, Suspicion
from headrace.store.ledger.core.entries import Entry, EpochRaised, FragmentsListed, Led, PipelineApplied
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Range
from headrace.store.ledger.core.intervals import Gap
from tests.kits.controller.core import closed, fragment, proposal

A = fragment(0)
PATH = Route("read", "write")


def suspected(*, end: int = 4) -> tuple[LedgerState, Solitary]:
    """Of the ten records of A the first `end` are suspect."""
    ledger = LedgerState()
    begun = PipelineApplied("v", {}), EpochRaised("created"), FragmentsListed((A,))
    ledger.apply(0, Entry(1, (Led(1, {}),)))
    ledger.apply(1, Entry(1, begun))
    suspicion = Suspicion(["read"], ["write"])
    suspicion.died([InHand("keep", Range(A.id, 0, end))], certain=True)
    return ledger, Solitary(ledger, ("write",), suspicion)


def spans(given: list[tuple[object, tuple[Gap, ...]]]) -> list[list[tuple[int, int]]]:
    return [[(gap.first, gap.end) for gap in gaps] for _, gaps in given]


def test_a_suspect_is_queued_once_however_many_sweeps_pass() -> None:
    _, solitary = suspected()
    assert [solitary.requeue(A.id, {}, 10) for _ in range(3)] == [1, 0, 0]
    assert spans([*solitary.assign(PATH, "p/solitary.0")]) == [[(0, 4)]]
    assert solitary.requeue(A.id, {}, 10) == 0, "a task has it"
    assert not solitary.idle
    assert solitary.was_read("p/solitary.0", A.id)
    assert solitary.idle


def test_what_was_closed_meanwhile_is_not_given_out() -> None:
    ledger, solitary = suspected()
    solitary.requeue(A.id, {}, 10)
    ledger.apply(2, Entry(1, (closed(proposal([Range(A.id, 1, 2)])),)))
    assert spans([*solitary.assign(PATH, "p/solitary.0")]) == [[(0, 1), (3, 4)]]


def test_what_was_given_since_a_sweep_began_is_not_queued_behind_it() -> None:
    _, solitary = suspected()
    solitary.requeue(A.id, {}, 10)
    solitary.sweep_began()
    solitary.assign(PATH, "p/solitary.0")
    assert solitary.was_read("p/solitary.0", A.id)
    assert solitary.requeue(A.id, {}, 10) == 0, "the marker passed before it"
    solitary.sweep_began()
    assert solitary.requeue(A.id, {}, 10) == 1


def test_what_a_sink_holds_is_not_queued() -> None:
    _, solitary = suspected()
    assert solitary.requeue(A.id, {("write", A.id): [Range(A.id, 0, 4)]}, 10) == 0
    assert solitary.requeue(A.id, {("write", A.id): [Range(A.id, 0, 3)]}, 10) == 1
    assert spans([*solitary.assign(PATH, "p/solitary.0")]) == [[(3, 4)]]


def test_a_solitary_task_whose_worker_is_gone_goes_where_its_source_is() -> None:
    solitary = TaskPlan("p/solitary.0", ("read", "keep", "write"), "gone", 0, alone=True)
    keep, read = TaskPlan("p/keep.0", ("keep",), "b", 0, "gpu"), TaskPlan("p/read.0", ("read",), "a", 0, "disk=ssd")
    standing = _Identities(Plan((keep, read, solitary), ()))
    (moved,) = standing.solitary([keep, read], {"a", "b"})
    assert (moved.worker, moved.place) == ("a", "disk=ssd")
    assert standing.solitary([keep, read], {"a", "b", "gone"}) == [solitary]
