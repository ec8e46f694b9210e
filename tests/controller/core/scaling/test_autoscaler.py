"""Scaling by itself: what the machine decides, driven by runs as flows in virtual time."""

import math
import random
from dataclasses import replace

import pytest

from headrace.chaos.sim.flow import Flow, FlowStage, FlowWorker, ScaledFlow
from headrace.controller.core.scaling.autoscaler import (
    BAND,
    BAND_GROWTH,
    BLOCK_S,
    CALM_S,
    LEARN,
    MADE_S_MAX,
    OVER_SHARE,
    PAYS,
    PERSON_S,
    QUICK_S,
    RESTART_S,
    SETTLE_S,
    SPARE_S,
    WINDOW_S_MIN,
    Answered,
    Autoscaler,
    Measured,
    Note,
    Rescale,
    ScalingCommand,
    ScalingDecision,
    ScalingMode,
    ScalingState,
)
from headrace.controller.core.scaling.readings import Reading

HALF_AN_HOUR = 1800.0


def chains(*stages: FlowStage) -> tuple[tuple[FlowStage, ...], ...]:
    return tuple((stage,) for stage in stages)


def usual(work: float = 0.004) -> tuple[tuple[FlowStage, ...], ...]:
    return chains(
        FlowStage("read", 0.001),
        FlowStage("work", work),
        FlowStage("mix", 0.002, 0.001, kept=0.5),
        FlowStage("write", 0.001, 0.004),
    )


def driven(flow: Flow, seconds: float = HALF_AN_HOUR, mode: ScalingMode = ScalingMode.ON, **more: object) -> ScaledFlow:
    scaled = ScaledFlow(flow, Autoscaler(mode), **more)  # type: ignore[arg-type]
    scaled.run(seconds)
    return scaled


def good(scaled: ScaledFlow, first: list[int]) -> None:
    assert 0 <= scaled.decisions_until_best() <= 3
    assert scaled.oscillations(first) == 0
    assert scaled.flow.rate() >= 0.9 * scaled.flow.best()


# -- the figures that are asked for --


@pytest.mark.parametrize("seed", range(6))
def test_a_run_is_near_its_best_within_three_decisions_and_stays(seed: int) -> None:
    rng = random.Random(seed)
    stages = [FlowStage("read", 0.0005, 0.001)]
    drawn = ((rng.uniform(0, 0.01), rng.choice((0, 0, 0.02)), rng.choice((1, 0.5))) for _ in "abc")
    stages += [FlowStage(name, *costs) for name, costs in zip("abc", drawn, strict=True)]
    workers = [FlowWorker(rng.randint(2, 8), rng.choice((1, 1, 0.5)))] * rng.randint(1, 8)
    first = [rng.randint(1, 6) for _ in stages]
    good(driven(Flow(workers, chains(*stages), list(first), noise=0.1, seed=seed)), first)


def test_two_thousand_workers_with_stragglers_are_scaled_at_once() -> None:
    rng = random.Random(7)
    workers = [FlowWorker(4, rng.choice((1.0, 1.0, 1.0, 0.3, 0.7))) for _ in range(2000)]
    good(driven(Flow(workers, usual(), [2000] * 4, noise=0.05), seconds=300.0), [2000] * 4)


def test_costs_that_change_are_followed() -> None:
    scaled = driven(Flow([FlowWorker(8)] * 4, usual(), [1] * 4, noise=0.1), seconds=600.0)
    before, scaled.changes = list(scaled.flow.replicas), []
    scaled.flow.chains = usual(work=0.016)
    scaled.flow.changed()
    scaled.run(HALF_AN_HOUR)
    good(scaled, before)


def test_skewed_work_is_scaled_by_what_it_reaches() -> None:
    good(driven(Flow([FlowWorker(8)] * 4, usual(), [1] * 4, noise=0.1, skew=0.4)), [1] * 4)


def test_nothing_is_changed_where_nothing_is_to_be_gained() -> None:
    first = [6, 23, 18, 14]
    assert driven(Flow([FlowWorker(8)] * 4, usual(), list(first), noise=0.2)).changes == []


def test_workers_that_join_are_used() -> None:
    scaled = driven(Flow([FlowWorker(8)] * 2, usual(), [1] * 4), seconds=600.0)
    scaled.flow.workers = [FlowWorker(8)] * 6
    scaled.flow.changed()
    many = len(scaled.changes)
    scaled.run(300.0)
    assert len(scaled.changes) == many + 1
    assert scaled.flow.rate() >= 0.9 * scaled.flow.best()


# -- one decision --


def test_a_decision_says_its_reason_its_promise_and_its_outcome() -> None:
    stages = chains(FlowStage("read", 0.001), FlowStage("wait", 0.0, 0.02))
    made = driven(Flow([FlowWorker(2)], stages, [1, 1]), 120.0).scaler.decisions[0]
    assert made.reason == "bound by tasks of wait"
    assert (made.before["wait"], made.outcome) == (1, "helped")
    assert made.got_s == pytest.approx(made.predicted_s, rel=0.1)
    assert "wait 1 -> " in made.words()
    assert made.words().endswith("reached: helped")


def test_a_stage_that_decides_alone_keeps_its_task() -> None:
    flow = Flow([FlowWorker(8)], chains(FlowStage("read", 0.01), FlowStage("dedup", 0.002)), [1, 1], fixed=(1,))
    scaled = driven(flow, 120.0)
    assert flow.replicas[1] == 1
    assert scaled.changes


def test_groups_that_would_fuse_get_different_numbers() -> None:
    same = chains(FlowStage("read", 0.001), FlowStage("a", 0.0, 0.01), FlowStage("b", 0.0, 0.01))
    flow = Flow([FlowWorker(2)], same, [1, 2, 3])
    driven(flow, 120.0, apart=((0, 1), (1, 2)))
    assert len(set(flow.replicas[:2])) == len(set(flow.replicas[1:])) == 2


@pytest.mark.parametrize(("mode", "decisions"), [(ScalingMode.OFF, 0), (ScalingMode.ADVISE, 1)])
def test_a_run_that_is_not_to_be_scaled_is_left_alone(mode: ScalingMode, decisions: int) -> None:
    scaled = driven(Flow([FlowWorker(8)] * 4, usual(), [1] * 4), mode=mode)
    assert scaled.changes == []
    assert [decision.kind for decision in scaled.scaler.decisions] == ["advise"] * decisions


def test_a_change_that_cannot_pay_for_its_restart_is_not_made() -> None:
    flow = Flow([FlowWorker(8)] * 4, usual(), [1] * 4, records_left=5_000)
    assert driven(flow, seconds=60.0).changes == []


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(("seconds_left", "changes"), [(PAYS * RESTART_S / 2, 0), (PAYS * RESTART_S * 2, 1)])
def test_a_change_pays_by_the_seconds_left_however_large_records_are(
    size: int, seconds_left: float, changes: int
) -> None:
    machine = Machine(0.0)
    for _ in range(math.floor(SETTLE_S + QUICK_S + 1)):
        machine.flow.pass_time(1.0)
        reading = machine.flow.reading()
        stages = tuple(replace(stage, stored_bytes=size * stage.stored_bytes) for stage in reading.stages)
        read = sum(stage.stored_bytes for stage in stages)
        left = size * machine.flow.rate() * seconds_left
        queued = sum(group.queued_bytes for group in reading.groups)
        machine.give(replace(reading, stages=stages, input_bytes=read - queued + left))
    assert len(machine.asked) == changes


def test_the_cost_of_a_restart_is_learned() -> None:
    scaled = driven(Flow([FlowWorker(8)] * 4, usual(), [1] * 4), 300.0, pause_s=60.0)
    assert scaled.scaler.restart_s > 30.0
    scaled = driven(Flow([FlowWorker(8)] * 4, usual(), [1] * 4), 300.0, pause_s=0.0)
    assert scaled.scaler.restart_s < 3.0, "a change that nothing waits for costs nothing"


def test_what_did_not_help_is_not_tried_again_until_workers_are_others() -> None:
    scaled = driven(Flow([FlowWorker(8)] * 4, usual(), [1] * 4, capped=260.0), 600.0)
    assert len(scaled.changes) == 1
    assert scaled.scaler.decisions[0].outcome == "did not help: not tried again for now"
    scaled.flow.workers, scaled.flow.capped = [FlowWorker(8)] * 8, 1e9
    scaled.flow.changed()
    scaled.run(120.0)
    assert len(scaled.changes) == 2


def test_what_did_harm_is_undone() -> None:
    flow = Flow([FlowWorker(8)] * 4, usual(), [1] * 4)
    scaled = ScaledFlow(flow, Autoscaler(ScalingMode.ON))
    while not scaled.changes:
        scaled.run(2.0)
    flow.capped = 100.0
    flow.changed()
    scaled.run(120.0)
    assert flow.replicas == [1] * 4
    assert [decision.kind for decision in scaled.scaler.decisions] == ["scale", "undo"]
    assert scaled.scaler.decisions[0].outcome == "did harm: undone"


def test_a_change_is_not_undone_for_costs_that_changed_meanwhile() -> None:
    scaled = ScaledFlow(Flow([FlowWorker(8)] * 4, usual(), [1] * 4), Autoscaler(ScalingMode.ON))
    while not scaled.changes:
        scaled.run(2.0)
    scaled.flow.chains = usual(work=0.08)
    scaled.flow.changed()
    scaled.run(200.0)
    assert scaled.scaler.decisions[0].outcome == "not judged: costs changed meanwhile"
    assert all(decision.kind == "scale" for decision in scaled.scaler.decisions)
    assert scaled.flow.rate() >= 0.9 * scaled.flow.best()


def test_spare_tasks_go_behind_a_long_delay_and_not_all_at_once() -> None:
    flow = Flow([FlowWorker(8)], chains(FlowStage("read", 0.008), FlowStage("wait", 0.0, 0.001)), [10, 100])
    scaled = driven(flow, seconds=SPARE_S - 30.0)
    assert scaled.changes == []
    scaled.run(60.0)
    assert flow.replicas == [10, 40]
    scaled.run(SPARE_S - 60.0)
    assert flow.replicas == [10, 40], "the delay begins anew with each step"
    scaled.run(120.0)
    assert flow.replicas == [10, 16]


def test_the_delay_of_spare_tasks_begins_anew_when_they_were_needed() -> None:
    spare, needed = (chains(FlowStage("read", 0.008), FlowStage("wait", 0.0, wait)) for wait in (0.001, 0.07))
    scaled = driven(Flow([FlowWorker(8)], spare, [10, 100]), seconds=SPARE_S - 100.0)
    scaled.flow.chains = needed
    scaled.run(80.0)
    scaled.flow.chains = spare
    scaled.run(SPARE_S - 100.0)
    assert scaled.changes == []
    scaled.run(200.0)
    assert len(scaled.changes) == 1


def test_what_did_not_help_is_not_tried_again_after_a_persons_change() -> None:
    scaled = driven(Flow([FlowWorker(8)] * 4, usual(), [1] * 4, capped=260.0), 100.0)
    assert scaled.scaler.decisions[0].outcome == "did not help: not tried again for now"
    scaled.flow.rescale({"mix": 1}, 0.0)
    scaled.flow.capped = 1e9
    scaled.run(PERSON_S + 60.0)
    assert len(scaled.changes) == 1, "the cores are the same"
    scaled.run(BLOCK_S)
    assert len(scaled.changes) == 2


# -- the machine --


class Machine:
    """A machine, and readings of a flow by hand."""

    def __init__(self, seconds: float = 40.0, *, tasks: int = 1) -> None:
        self.flow = Flow([FlowWorker(2)], chains(FlowStage("read", 0.001), FlowStage("wait", 0.0, 0.04)), [1, tasks])
        self.scaler = Autoscaler(ScalingMode.ON)
        self.given: list[ScalingCommand] = []
        self.look(seconds)

    def look(self, seconds: float, *, flows: bool = True) -> None:
        until = self.flow.now + seconds
        while self.flow.now < until:
            self.flow.pass_time(min(10.0, max(1.0, seconds / 20)))
            self.give(self.flow.reading(), flows=flows)

    def give(self, reading: Reading, *, flows: bool = True) -> None:
        self.given += self.scaler.handle(Measured(reading, flows), self.flow.now)

    def answer(self, *, accepted: bool) -> None:
        self.given += self.scaler.handle(Answered(accepted, "" if accepted else "no room"), self.flow.now)

    @property
    def asked(self) -> list[Rescale]:
        return [command for command in self.given if isinstance(command, Rescale)]

    @property
    def newest(self) -> ScalingDecision:
        notes = [command.decision for command in self.given if isinstance(command, Note)]
        assert notes[-1] == self.scaler.decisions[-1]
        return notes[-1]


def test_a_gain_that_no_noise_makes_is_acted_on_at_once() -> None:
    assert Machine(SETTLE_S + QUICK_S).asked == []
    assert len(Machine(SETTLE_S + QUICK_S + 1).asked) == 1
    small = Machine(SETTLE_S + WINDOW_S_MIN - 1, tasks=20)
    assert small.asked == []
    small.look(3.0)
    assert len(small.asked) == 1
    reached = small.flow.rate_with([small.newest.after[stage] for stage in ("read", "wait")])
    assert small.newest.predicted_s == pytest.approx(reached, rel=0.05)


def test_the_band_widens_with_each_decision_and_narrows_in_calm() -> None:
    machine = Machine()
    assert machine.scaler.band(machine.flow.now) == pytest.approx(BAND * BAND_GROWTH)
    assert machine.scaler.band(machine.flow.now + CALM_S) == BAND


def test_nothing_is_decided_before_the_answer() -> None:
    machine = Machine()
    machine.look(400.0)
    assert len(machine.asked) == 1
    assert machine.scaler.state is ScalingState.ASKING


def test_a_refusal_is_noted_and_not_asked_again_soon() -> None:
    machine = Machine()
    machine.answer(accepted=False)
    assert machine.newest.outcome == "refused: no room"
    machine.look(BLOCK_S - 60.0)
    assert len(machine.asked) == 1
    machine.look(120.0)
    assert len(machine.asked) == 2


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    machine = Machine(2.0)
    machine.answer(accepted=True)
    assert machine.scaler.state is ScalingState.MEASURING


def test_a_change_that_is_not_made_is_given_up() -> None:
    machine = Machine()
    machine.answer(accepted=True)
    machine.look(MADE_S_MAX - 60.0)
    assert machine.newest.outcome == ""
    machine.look(120.0)
    assert machine.newest.outcome == f"not made within {MADE_S_MAX:.0f} s"
    assert machine.scaler.state is ScalingState.MEASURING


def test_a_change_is_judged_by_what_flows_behind_it() -> None:
    machine = Machine()
    machine.answer(accepted=True)
    machine.flow.rescale(machine.asked[0].replicas, 5.0)
    machine.look(5.0, flows=False)
    machine.look(SETTLE_S + WINDOW_S_MIN + 2.0)
    assert machine.newest.outcome == "helped"


def test_a_change_costs_what_its_sources_read_less_meanwhile() -> None:
    machine = Machine()
    machine.answer(accepted=True)
    machine.flow.capped = machine.newest.records_s / 2
    machine.flow.changed()
    machine.look(20.0)
    machine.flow.rescale(machine.asked[0].replicas, 0.0)
    machine.look(1.0)
    assert machine.scaler.restart_s == pytest.approx(RESTART_S + LEARN * (10.0 - RESTART_S), abs=0.5)


def test_a_run_that_knows_no_bytes_is_scaled() -> None:
    machine = Machine(0.0)
    while machine.flow.now < 40.0:
        machine.flow.pass_time(2.0)
        reading = machine.flow.reading()
        machine.give(replace(reading, stages=tuple(replace(stage, stored_bytes=0) for stage in reading.stages)))
    assert len(machine.asked) == 1


def test_a_change_with_others_meanwhile_is_not_judged() -> None:
    machine = Machine()
    machine.answer(accepted=True)
    machine.flow.rescale(machine.asked[0].replicas, 0.0)
    machine.look(2.0)
    machine.flow.workers = [FlowWorker(4)]
    machine.flow.changed()
    machine.look(2.0)
    assert machine.newest.outcome == "not judged: workers or tasks changed meanwhile"


def test_a_persons_own_change_is_left_alone_for_a_while() -> None:
    machine = Machine(4.0)
    machine.flow.rescale({"wait": 2}, 0.0)
    machine.look(PERSON_S - 2.0)
    assert machine.asked == []
    machine.look(30.0)
    assert len(machine.asked) == 1


def test_a_run_that_stands_still_is_not_measured() -> None:
    machine = Machine(2.0)
    machine.look(100.0, flows=False)
    machine.look(SETTLE_S + QUICK_S - 1)
    assert machine.asked == []


def test_readings_that_say_nothing_decide_nothing() -> None:
    machine = Machine(1.0)
    stands = machine.flow.reading()
    for second in range(2, 100):
        machine.give(replace(stands, at=float(second)))
    assert machine.given == []


# -- a share of the cores --


@pytest.mark.parametrize("workers", [1, 4])
def test_a_run_follows_what_its_queue_gives_it(workers: int) -> None:
    flow = Flow([FlowWorker(8)] * workers, usual(), [4] * 4, noise=0.05, granted=6)
    scaled = ScaledFlow(flow, Autoscaler(ScalingMode.ON))
    used: list[float] = []
    for granted in (6, 16, 4, 16, 4):
        flow.granted, changes = granted, len(scaled.changes)
        flow.changed()
        scaled.run(900.0)
        assert len(scaled.changes) - changes <= 1, "one change, and then it rests"
        assert flow.cores_used() <= (1 + OVER_SHARE) * min(granted, 8 * workers)
        used.append(flow.cores_used())
    assert min(used[1], used[3]) > 1.2 * max(used[2], used[4]), "more cores are used, and given back"


def test_a_reading_within_a_share_says_that_cores_are_others() -> None:
    reading = Flow([FlowWorker(8)], usual(), [4] * 4).reading()
    assert reading.within(None) == reading.within(9) == reading
    limits = reading.within(3).limits
    assert (limits.cores, limits.shared) == (3, True)
