"""What scaling measures by, and what it believes of it: one limit, one test."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.chaos.sim.flow import Flow, FlowStage, FlowWorker
from headrace.controller.core.scaling import autoscaler
from headrace.controller.core.scaling.autoscaler import (
    LEARN,
    SETTLE_S,
    WINDOW_S_MAX,
    WINDOW_S_MIN,
    Autoscaler,
    Measured,
    Rescale,
    ScalingCommand,
    ScalingDecision,
    ScalingMode,
    ScalingState,
)
from headrace.controller.core.scaling.model import SPARE, Cost, ThroughputModel, model_of
from headrace.controller.core.scaling.readings import Reading, ScalingLimits, TaskGroup, window_of


def flow(wait_s: float = 0.04, replicas: Sequence[int] = (1, 1)) -> Flow:
    stages = ((FlowStage("read", 0.001),), (FlowStage("wait", 0.0, wait_s),))
    return Flow([FlowWorker(4)], stages, list(replicas))


def readings(of: Flow, seconds: float, every: float = 1.0) -> list[Reading]:
    found = [of.reading()]
    while of.now < seconds:
        of.pass_time(every)
        found.append(of.reading())
    return found


def model(wait_s: float) -> ThroughputModel:
    made = readings(flow(wait_s), 30.0)
    return model_of(made[-1], window_of(made[1], made[-1]))


def decided(whole: ThroughputModel, late: ThroughputModel, trust: float = 1.0) -> list[ScalingCommand]:
    """What is decided where the whole window and its later half say this."""
    scaler = Autoscaler(ScalingMode.ON)
    scaler.trust = trust
    scaler._window.extend(readings(flow(), 30.0))
    scaler._models = lambda: (whole, late)  # type: ignore[method-assign]
    return scaler._decide(Measured(scaler._window[-1]), 30.0, WINDOW_S_MIN)


def test_a_gain_of_one_half_of_the_window_is_none() -> None:
    gains = model(0.04)
    store = replace(gains.limits, store_bytes_s=gains.measured.records_s)
    gains_nothing = replace(gains, store_bytes=1.0, limits=store)
    assert [type(one) for one in decided(gains, gains)][1:] == [Rescale]
    assert decided(gains_nothing, gains) == []


def test_a_gain_that_is_not_trusted_is_none() -> None:
    assert decided(model(0.04), model(0.04), trust=0.001) == []


def test_what_flows_while_tasks_settle_is_not_measured() -> None:
    scaler, slow = Autoscaler(ScalingMode.ON), flow(replicas=(1, 4))
    slow.capped = 1.0
    slow.changed()
    made = readings(slow, SETTLE_S)
    slow.capped = 1e9
    slow.changed()
    scaler._window.extend(made + readings(slow, SETTLE_S + 20.0)[1:])
    models = scaler._models()
    assert models is not None
    assert models[0].measured.records_s == pytest.approx(100.0, rel=0.02)


def test_the_later_half_is_measured_from_the_middle() -> None:
    scaler, first = Autoscaler(ScalingMode.ON), flow(replicas=(1, 4))
    made = readings(first, SETTLE_S + 10.0)
    first.capped = 40.0
    first.changed()
    scaler._window.extend(made + readings(first, SETTLE_S + 20.0)[1:])
    models = scaler._models()
    assert models is not None
    assert models[1].measured.records_s == pytest.approx(40.0, rel=0.02)
    assert models[0].measured.records_s == pytest.approx(70.0, rel=0.05)


def test_tasks_that_are_spare_are_kept_where_others_get_more() -> None:
    made = readings(flow(0.004, replicas=(12, 1)), 30.0)
    late = model_of(made[-1], window_of(made[1], made[-1]))
    _, asked = decided(late, late)
    assert isinstance(asked, Rescale)
    assert "read" not in asked.replicas
    assert asked.replicas["wait"] > 1


def fed(every: float, count: int) -> list[float]:
    """The times of a window that got so many readings."""
    scaler, of = Autoscaler(ScalingMode.ADVISE), flow()
    for _ in range(count):
        of.pass_time(every)
        scaler.handle(Measured(of.reading()), of.now)
    return [reading.at for reading in scaler._window]


def test_a_window_is_no_longer_than_its_limit() -> None:
    times = fed(1.0, 200)
    assert times[-1] - times[0] == pytest.approx(WINDOW_S_MAX)
    assert len(fed(3 * WINDOW_S_MAX, 9)) == 2


@pytest.mark.parametrize(("got", "share"), [(200.0, 1.0), (150.0, 0.5), (115.0, 0.2), (300.0, 1.0)])
def test_predictions_are_trusted_by_what_they_brought(got: float, share: float) -> None:
    scaler = Autoscaler(ScalingMode.ON)
    scaler.state = ScalingState.JUDGING
    scaler.decisions.append(ScalingDecision(1, "scale", "", {"wait": 1}, {"wait": 2}, 100.0, 200.0))
    reached = model(0.04)
    reached = replace(reached, measured=replace(reached.measured, records_s=got))
    scaler._models = lambda: (reached, reached)  # type: ignore[method-assign]
    scaler._judge(flow().reading(), 100.0)
    assert scaler.decisions[-1].outcome == "helped"
    assert scaler.trust == pytest.approx(1.0 + LEARN * (share - 1.0))


@pytest.mark.parametrize(("over", "tasks"), [(SPARE - 0.01, 2), (SPARE + 0.01, 3)])
def test_a_part_of_a_task_is_not_worth_another(over: float, tasks: int) -> None:
    group = TaskGroup(("wait",), 1)
    one = ThroughputModel({"wait": Cost(1.0, 0.0)}, (group,), ScalingLimits(8.0), 1.0, 0.0, 0.0)
    assert one._least(2.0 + over) == {0: tasks}


def test_a_reading_that_comes_just_when_all_has_settled_counts() -> None:
    scaler = Autoscaler(ScalingMode.ON)
    scaler._window.extend(readings(flow(), 2 * SETTLE_S, every=SETTLE_S))
    assert scaler._models() is not None


def test_a_run_that_may_use_no_cores_is_not_over_its_own() -> None:
    made = model(0.04)
    assert autoscaler._over(replace(made, limits=replace(made.limits, cores=0.0))) == 0.0


def test_a_change_that_promised_nothing_is_not_judged_by_what_came() -> None:
    made = model(0.04)
    scaler = Autoscaler(ScalingMode.ON)
    scaler._window.extend(readings(flow(), 30.0))
    scaler._models = lambda: (made, made)  # type: ignore[method-assign]
    now, rate = scaler._window[-1].at, made.measured.records_s
    scaler._act("scale", "tasks are spare", made, {"wait": 2}, rate / 2, now)
    scaler.decisions[-1] = replace(scaler.decisions[-1], records_s=rate / 2, predicted_s=rate / 2)
    scaler._turn(autoscaler.ScalingTurn.ACCEPTED)
    scaler._turn(autoscaler.ScalingTurn.MADE)
    trust = scaler.trust
    scaler._judge(scaler._window[-1], now)
    assert (scaler.decisions[-1].outcome, scaler.trust) == ("done", trust)


def test_a_change_is_judged_when_just_enough_was_measured() -> None:
    scaler, made = Autoscaler(ScalingMode.ON), flow()
    scaler.state = ScalingState.JUDGING
    scaler.decisions.append(ScalingDecision(1, "scale", "", {"wait": 1}, {"wait": 2}, 100.0, 200.0))
    states = list[ScalingState]()
    for reading in readings(made, SETTLE_S + WINDOW_S_MIN):
        states.append(scaler.state)
        scaler.handle(Measured(reading), reading.at)
    assert states == [ScalingState.JUDGING] * len(states)
    assert scaler.state is not ScalingState.JUDGING
