"""The index of a dedup stage is moved: an epoch begins with the one that takes its place."""

from headrace.controller.core.messages import messages as m
from headrace.controller.core.run.states import RunState
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.store.ledger.core.entries import Range
from tests.kits.controller.core import LOG, Stand, changes, close, fragment, make_pipeline, of

A, B = fragment(0), fragment(1)
OLD = make_pipeline()
DEDUP = Stage("dedup", StageKind.STATEFUL, "m:d", replicas=1)
DEDUPED = Pipeline.chain("run", LOG, *OLD.stages[:2], DEDUP, *OLD.stages[2:])


def running() -> tuple[Stand, list[m.Command]]:
    """A run that asks a decider on one of two workers, and has been given two fragments."""
    stand = Stand()
    stand.replicas = 1
    stand.tell(*(m.WorkerRegistered(name, "host", 1, 1 << 30, host_id="host", door="door") for name in ("w1", "w2")))
    return stand, stand.listed(stand.ready(stand.apply(DEDUPED)), A, B)


def other_place(stand: Stand) -> dict[str, str]:
    assert stand.run.tasks is not None
    (decider,) = (task for task in stand.run.tasks if task.plan.stages == ("dedup",))
    return {"dedup": "w1" if decider.plan.worker == "w2" else "w2"}


def test_an_index_that_is_moved_at_rest_raises_the_epoch_there() -> None:
    stand, _ = running()
    place = other_place(stand)
    commands = stand.tell(m.SteerRequested(7, "run", pause=True))
    stand.swept(commands, Range(A.id, 0, 4))
    task = next(name for name, _ in (stand.task(0), stand.task(1)) if "read" in name)
    close(stand, DEDUPED.version(), task, Range(A.id, 0, 4))
    assert stand.run.state is RunState.PAUSED
    epoch = stand.run.ledger.epoch
    commands = stand.tell(m.SteerRequested(8, "run", places=place))
    starts = of(m.StartTask, [*commands, *stand.later(0.1)])
    assert stand.run.ledger.epoch > epoch
    assert changes(stand).count("EpochRaised") == 2, "at the beginning, and for the move"
    assert {(start.epoch, start.fenced) for start in starts} == {(stand.run.ledger.epoch, False)}
    assert [start.worker for start in starts if start.stages == ("dedup",)] == [place["dedup"]]
    assert of(m.StartTask, stand.ready(starts)) == [], "nothing is started a second time"
