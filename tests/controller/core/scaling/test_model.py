"""The model of a run: what it measures, what it predicts, and the replicas that are best."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from headrace.chaos.sim.flow import Flow, FlowStage, FlowWorker
from headrace.controller.core.scaling.model import (
    TASK_BYTES,
    TASKS_A_CORE_MAX,
    Cost,
    ThroughputModel,
    WhatIf,
    model_of,
    what_if,
)
from headrace.controller.core.scaling.readings import (
    NUMBER_MAX,
    Edge,
    MeasuredWindow,
    ReadingError,
    ScalingLimits,
    StageCounters,
    TaskGroup,
    bytes_left,
    window_of,
)


def measured(flow: Flow, seconds: float = 30.0) -> ThroughputModel:
    before = flow.reading()
    flow.pass_time(seconds)
    after = flow.reading()
    return model_of(after, window_of(before, after))


def sleeping(*replicas: int, cores: int = 2) -> Flow:
    """A source, two stages that wait, and a sink."""
    chains = ((FlowStage("read", 0.001),), (FlowStage("a", wait_s=0.017, kept=0.5),), (FlowStage("b", wait_s=0.021),))
    return Flow([FlowWorker(cores)], chains, list(replicas))


def working(*replicas: int, cores: int = 4) -> Flow:
    """Stages that want more of the cores than there is."""
    chains = ((FlowStage("read", 0.001),), (FlowStage("work", 0.004),), (FlowStage("mix", 0.002, 0.001),))
    return Flow([FlowWorker(cores)], chains, list(replicas))


def counts(model: ThroughputModel) -> list[int]:
    return [group.replicas for group in model.groups]


def test_a_cost_is_what_a_record_of_input_takes_at_a_stage() -> None:
    model = measured(sleeping(1, 2, 1))
    assert model.costs["a"].busy_s == pytest.approx(0.017)
    assert model.costs["b"].busy_s == pytest.approx(0.0105)  # half of the records come to it
    assert model.costs["read"].cpu_s == pytest.approx(0.001)


def test_the_slowest_group_is_the_bottleneck() -> None:
    prediction = measured(sleeping(1, 2, 1)).predict()
    assert prediction.bottleneck == "tasks of b"
    assert prediction.records_s == pytest.approx(1 / 0.0105)


def test_a_model_without_waiting_predicts_more_cores_where_tasks_waited_for_them() -> None:
    model = measured(working(3, 8, 5))
    assert model.predict().bottleneck == "cores"
    more = replace(model, limits=replace(model.limits, cores=8)).solved()
    flow = working(*counts(more), cores=8)
    assert more.predict().records_s == pytest.approx(flow.rate(), rel=0.05)
    assert flow.rate() == pytest.approx(flow.best(), rel=0.05)


def test_what_was_measured_corrects_what_is_said() -> None:
    flow = sleeping(1, 2, 1)
    flow.skew = 0.3
    model = measured(flow)
    assert model.fit == pytest.approx(0.7)
    assert model.predict().records_s == pytest.approx(flow.rate())


def test_records_that_sources_read_ahead_have_not_gone_through() -> None:
    flow = sleeping(1, 2, 1)
    flow.pass_time(10.0)
    before = flow.reading()
    flow.pass_time(30.0)
    after = flow.reading()
    first, *others = after.stages
    ahead = replace(after, stages=(replace(first, records=first.records * 3, busy_s=first.busy_s * 3), *others))
    window = window_of(before, ahead)
    assert window.records_s == pytest.approx(flow.rate())
    assert window.costs["b"][0] == pytest.approx(0.0105)


def test_a_stage_that_no_record_has_reached_cannot_be_judged() -> None:
    flow = sleeping(1, 2, 1)
    flow.pass_time(10.0)
    late = flow.reading()
    late = replace(late, stages=(*late.stages[:2], StageCounters("b")))
    with pytest.raises(ReadingError, match="no record has come to stage 'b' yet"):
        window_of(sleeping(1, 2, 1).reading(), late)


def test_several_records_of_one_are_told_by_what_comes_behind() -> None:
    flow = sleeping(1, 2, 1)
    flow.pass_time(10.0)
    reading = flow.reading()
    read, split, last = reading.stages
    parts = replace(reading, stages=(read, replace(split, dropped=0), replace(last, records=split.records * 5)))
    assert window_of(sleeping(1, 2, 1).reading(), parts).costs["b"][0] == pytest.approx(0.0105)


def test_what_is_decided_on_the_way_is_told_by_what_came() -> None:
    flow = sleeping(1, 2, 1)
    flow.pass_time(10.0)
    reading = flow.reading()
    read, asks, last = reading.stages
    stages = (read, replace(asks, dropped=0.0), replace(last, records=asks.records / 4))
    past = replace(reading, stages=stages, edges=(reading.edges[0], replace(reading.edges[1], past=True)))
    assert window_of(sleeping(1, 2, 1).reading(), past).records_s == pytest.approx(flow.rate())


def test_edges_in_a_circle_end() -> None:
    flow = sleeping(1, 2, 1)
    flow.pass_time(10.0)
    reading = flow.reading()
    circle = replace(reading, edges=(*reading.edges, Edge("b", "a"), Edge("b", "none")))
    assert window_of(sleeping(1, 2, 1).reading(), circle).records_s > 0


def test_a_fit_that_cannot_be_is_bounded() -> None:
    flow = sleeping(1, 2, 1)
    flow.skew = 0.99
    assert measured(flow).fit == 0.25


def model(*busy: float, cores: float = 64, memory: float = 0, **more: object) -> ThroughputModel:
    """Groups of a stage each that take so many seconds a record; half of that on a core."""
    names = [f"s{index}" for index in range(len(busy))]
    made = ThroughputModel(
        costs={name: Cost(value, value / 2) for name, value in zip(names, busy, strict=True)},
        groups=tuple(TaskGroup((name,), 1) for name in names),
        limits=ScalingLimits(cores, memory, **more),  # type: ignore[arg-type]
        stored_bytes=100.0,
        store_bytes=150.0,
        network_bytes=1000.0,
        sources=("s0",),
    )
    return replace(made, measured=made.predict())


def test_replicas_are_those_that_the_cores_can_feed() -> None:
    solved = model(0.010, 0.030, cores=2).solved()
    assert solved.predict().bottleneck == "cores"
    assert solved.predict().records_s == pytest.approx(100.0, rel=0.03)
    assert counts(solved) == [2, 4]  # of which 1 and 3 are at work at once


@pytest.mark.parametrize(
    ("limits", "rate", "bottleneck"),
    [
        ({"store_bytes_s": 3000.0}, 20.0, "store"),
        ({"nic_bytes_s": 5000.0, "hosts": 3}, 15.0, "network"),
        ({"model_hosts": {"s1": 0.3}}, 10.0, "model of s1"),
    ],
)
def test_a_limit_that_tasks_share_bounds_the_rate(limits: dict[str, object], rate: float, bottleneck: str) -> None:
    solved = model(0.010, 0.030, **limits).solved()
    assert (solved.predict().records_s, solved.predict().bottleneck) == (pytest.approx(rate, rel=0.01), bottleneck)
    assert counts(solved) == [1, 1]


def test_near_two_bounds_the_rate_is_below_both() -> None:
    both = model(0.030, cores=2).with_replicas({"s0": 4})  # 133 a second by cores, and by tasks
    assert both.predict().records_s == pytest.approx(133.3 * 2 ** (-1 / 6), rel=0.001)
    assert both.with_replicas({"s0": 8}).predict().records_s == pytest.approx(133.3, rel=0.01)


def test_memory_bounds_the_tasks() -> None:
    solved = model(0.010, 0.030, memory=6 * TASK_BYTES).solved()
    assert sum(counts(solved)) <= 6
    assert solved.predict().records_s == pytest.approx(4 / 0.030)


def test_a_task_that_reserves_counts_for_what_it_reserves() -> None:
    bare = model(0.010, 0.030, cores=8)
    groups = (bare.groups[0], replace(bare.groups[1], cores=2.0))
    assert counts(replace(bare, groups=groups).solved()) == [2, 4]


def test_no_more_tasks_read_than_there_are_open_fragments() -> None:
    few = replace(model(0.010, 0.030), fragments_open=2).solved()
    assert few.predict().records_s == pytest.approx(200.0)
    assert counts(few) == [2, 6]
    crowded = replace(model(0.010, 0.030), fragments_open=2).with_replicas({"s0": 5, "s1": 60})
    assert crowded.predict().bottleneck == "open fragments for s0"


def test_tasks_of_a_core_are_bounded() -> None:
    idle = replace(model(0.010, 0.030), costs={"s0": Cost(0.01, 0.0), "s1": Cost(0.03, 1e-9)}, limits=ScalingLimits(1))
    assert sum(counts(idle.solved())) <= TASKS_A_CORE_MAX


def test_a_group_that_decides_alone_keeps_its_task_and_bounds_the_others() -> None:
    bare = model(0.010, 0.030)
    solved = replace(bare, groups=(bare.groups[0], replace(bare.groups[1], fixed=True))).solved()
    assert counts(solved) == [1, 1]
    assert solved.predict().records_s == pytest.approx(1 / 0.030)


def test_a_group_that_decides_alone_keeps_tasks_that_are_spare() -> None:
    bare = model(0.010, 0.030, cores=2)
    solved = replace(bare, groups=(bare.groups[0], replace(bare.groups[1], replicas=5, fixed=True))).solved()
    assert counts(solved)[1] == 5


def test_each_of_many_hosts_has_as_many_tasks() -> None:
    solved = counts(model(0.010, 0.030, hosts=10).solved())
    assert [count % 10 for count in solved] == [0, 0]
    assert counts(model(0.010, 0.030, cores=2, hosts=10).solved()) == [2, 4]


def test_groups_that_equal_numbers_would_fuse_get_different_ones() -> None:
    assert counts(model(0.030, 0.030, cores=3).solved()) == [4, 4]
    assert counts(model(0.030, 0.030, cores=3).solved(apart=((0, 1),))) == [4, 5]


def test_of_groups_that_no_room_is_left_for_one_gets_less() -> None:
    tight = model(0.030, 0.030, cores=3, memory=6 * TASK_BYTES)
    assert counts(tight.solved(apart=((0, 1),))) == [3, 2]
    least = model(0.030, 0.030, cores=3, memory=2 * TASK_BYTES)
    assert counts(least.solved(apart=((0, 1),))) == [1, 1], "each keeps a task"


def test_groups_keep_their_tasks_where_there_is_room_for_them() -> None:
    many = model(0.010, 0.030, cores=2).with_replicas({"s0": 9})
    assert counts(many.solved(keeps=True)) == [9, 4]
    assert counts(many.solved()) == [2, 4]
    assert counts(replace(many, limits=ScalingLimits(2, 6 * TASK_BYTES)).solved(keeps=True)) == [2, 4]


def test_a_model_without_room_for_one_task_each_stays_as_it_is() -> None:
    tight = model(0.030, 0.030, memory=TASK_BYTES)
    assert tight.solved() == tight


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(3, 12),
)
def test_no_other_replicas_are_better(busy: list[int], cores: int, room: int) -> None:
    solved = model(*(value / 1000 for value in busy), cores=cores, memory=room * TASK_BYTES).solved()
    best = max(
        solved.with_replicas({f"s{index}": count for index, count in enumerate(tried)}).predict().records_s
        for tried in itertools.product(range(1, room + 1), repeat=len(busy))
        if sum(tried) <= room
    )
    # A part of a task is left out: SPARE of the smallest count.
    assert solved.predict().records_s >= best * 0.95
    assert sum(counts(solved)) <= room


# -- what if --


def test_more_cores_get_their_best_replicas_and_other_questions_keep_them() -> None:
    answer = what_if(model(0.010, 0.030, cores=2), WhatIf(cores=4), left_bytes=2000.0)
    assert answer.now.replicas == {"s0": 1, "s1": 1}
    assert answer.then == answer.best
    assert answer.then.replicas == {"s0": 3, "s1": 8}
    kept = what_if(model(0.010, 0.030, cores=2), WhatIf(without=("s1",)), left_bytes=2000.0)
    assert kept.then.replicas == kept.now.replicas
    assert kept.then.prediction.bottleneck == "tasks of s0"


def test_time_and_core_seconds_left_are_of_unread_bytes() -> None:
    now = what_if(model(0.010, 0.020, cores=2), WhatIf(), left_bytes=5000.0).now
    assert now.left_s == pytest.approx(1.0, rel=0.01)
    assert now.left_core_s == pytest.approx(2.0, rel=0.01)


def test_a_run_that_knows_no_bytes_has_no_time_left_to_tell() -> None:
    unknown = replace(model(0.010, 0.020, cores=2), stored_bytes=0.0)
    assert what_if(unknown, WhatIf(), left_bytes=5000.0).now.left_s is None


def test_memory_comes_with_cores() -> None:
    answer = what_if(model(0.010, 0.030, cores=2, memory=4 * TASK_BYTES), WhatIf(cores=4), left_bytes=0)
    assert sum(answer.then.replicas.values()) == 8


@pytest.mark.parametrize("asked", [WhatIf(without=("s9",)), WhatIf(replicas={"s9": 1}), WhatIf(without=("s0",))])
def test_a_question_about_no_stage_or_without_the_source_is_refused(asked: WhatIf) -> None:
    with pytest.raises(ValueError, match=r"stage|source"):
        what_if(model(0.010, 0.030), asked, left_bytes=1.0)


def test_the_tasks_of_a_stage_that_decides_alone_are_not_asked_for() -> None:
    bare = model(0.010, 0.030)
    fixed = replace(bare, groups=(bare.groups[0], replace(bare.groups[1], fixed=True)))
    with pytest.raises(ValueError, match="decides alone"):
        what_if(fixed, WhatIf(replicas={"s1": 2}), left_bytes=1.0)


def test_fused_stages_are_not_asked_about_with_two_numbers() -> None:
    bare = model(0.010, 0.030)
    fused = replace(bare, groups=(replace(bare.groups[0], stages=("s0", "s1")),))
    with pytest.raises(ValueError, match="s0, s1 are fused and have the same tasks"):
        what_if(fused, WhatIf(replicas={"s0": 2, "s1": 3}), left_bytes=1.0)
    assert what_if(fused, WhatIf(replicas={"s0": 2, "s1": 2}), left_bytes=1.0).then.replicas == {"s0+s1": 2}


# -- readings --


def test_a_window_in_which_little_was_read_says_nothing() -> None:
    flow = sleeping(1, 2, 1)
    before = flow.reading()
    flow.pass_time(0.1)
    with pytest.raises(ReadingError, match="too few"):
        window_of(before, flow.reading())


def test_sums_that_fell_are_of_another_run() -> None:
    flow = sleeping(1, 2, 1)
    flow.pass_time(10.0)
    with pytest.raises(ReadingError, match="began anew"):
        window_of(flow.reading(), sleeping(1, 2, 1).reading())


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), 2.0**61])
def test_a_number_that_no_run_has_is_refused(wrong: float) -> None:
    flow = sleeping(1, 2, 1)
    flow.pass_time(10.0)
    good = flow.reading()
    good.check()
    first, *others = good.stages
    for bad in (
        replace(good, cores=wrong),
        replace(good, stages=(replace(first, busy_s=wrong), *others)),
        replace(good, stages=(replace(first, stored_bytes=wrong), *others)),
        replace(good, groups=(replace(good.groups[0], memory_bytes=wrong), *good.groups[1:])),
        replace(good, limits=replace(good.limits, memory_bytes=wrong)),
        replace(good, limits=replace(good.limits, model_hosts={"b": wrong})),
    ):
        with pytest.raises(ReadingError, match="negative, too large"):
            bad.check()


def test_a_stage_with_two_groups_and_a_missing_source_are_refused() -> None:
    good = sleeping(1, 2, 1).reading()
    with pytest.raises(ReadingError, match="two groups"):
        replace(good, groups=(*good.groups, good.groups[0])).check()
    with pytest.raises(ReadingError, match="sources"):
        replace(good, sources=("other",)).check()


def test_bytes_left_are_those_that_no_source_has_read() -> None:
    flow = sleeping(1, 2, 1)
    flow.records_left = 10_000
    flow.pass_time(10.0)
    assert bytes_left(flow.reading()) == pytest.approx(flow.records_left)


def test_a_stage_so_many_times_as_fast_costs_so_much_less() -> None:
    model = measured(sleeping(1, 2, 1))
    assert what_if(model, WhatIf(speed={"b": 2.0}), 0.0).then.prediction.records_s == pytest.approx(2 / 0.017)
    assert what_if(model, WhatIf(speed={"b": 0.5}), 0.0).then.prediction.records_s == pytest.approx(0.5 / 0.0105)


def test_a_stage_that_the_graph_has_lost_is_not_waited_for() -> None:
    before = sleeping(1, 2, 1).reading()
    flow = sleeping(1, 2, 1)
    flow.pass_time(30.0)
    after = flow.reading()
    lost = StageCounters("lost", 500, 3.0)
    window = window_of(replace(before, at=0.0), replace(after, stages=(*after.stages, lost)))
    assert window.records_s == pytest.approx(1 / 0.0105)
    assert "lost" not in window.costs


# -- where nothing is known --


def test_cores_that_nobody_knows_are_not_short() -> None:
    flow = working(3, 8, 5)
    before = flow.reading()
    flow.pass_time(30.0)
    window = window_of(before, flow.reading())
    unknown = model_of(replace(flow.reading(), cores=0.0), window)
    assert {name: cost.busy_s for name, cost in unknown.costs.items()} == {
        name: busy for name, (busy, _) in window.costs.items()
    }
    assert unknown.costs != measured(working(3, 8, 5)).costs, "where they are known and short, who waits is told"


def test_stages_that_took_no_time_promise_nothing() -> None:
    flow = sleeping(1, 2, 1)
    before = flow.reading()
    flow.pass_time(30.0)
    window = window_of(before, flow.reading())
    model = model_of(flow.reading(), replace(window, costs=dict.fromkeys(window.costs, (0.0, 0.0))))
    assert (model.predict().records_s, model.fit) == (0.0, 1.0)


def test_a_source_that_took_no_time_is_no_bound_by_its_fragments() -> None:
    model = replace(measured(sleeping(2, 2, 1)), fragments_open=1).without("read")
    assert model.predict().bottleneck == "tasks of b"
    assert model.solved().predict().records_s >= model.predict().records_s


def test_a_reading_may_say_the_largest_number_and_no_more() -> None:
    reading = sleeping(1, 2, 1).reading()
    replace(reading, input_bytes=NUMBER_MAX).check()
    with pytest.raises(ReadingError):
        replace(reading, input_bytes=2 * NUMBER_MAX).check()


def windowed(*, read: StageCounters, a: StageCounters, b: StageCounters) -> MeasuredWindow:
    """A window in which the source alone reads, and the stages behind it have these counters all the time."""
    flow = sleeping(1, 2, 1)
    flow.pass_time(30.0)
    after = flow.reading()
    before = replace(after, at=after.at - 30.0, stages=(StageCounters("read"), a, b))
    return window_of(before, replace(after, stages=(read, a, b)))


def test_what_came_before_the_window_tells_of_a_rare_stage() -> None:
    read = StageCounters("read", 1000, 1.0, 1.0, dropped=1000)
    window = windowed(read=read, a=StageCounters("a", 2, 1.0), b=StageCounters("b", 1, 0.5))
    assert window.costs["a"][0] == pytest.approx(1.0 * 2 / 1000 / 2)
    assert window.costs["b"][0] == pytest.approx(0.5 * 2 / 1000), "as many come to it as the stage before lets through"


def test_a_stage_that_nothing_has_come_to_is_named() -> None:
    read = StageCounters("read", 1000, 1.0, 1.0)
    with pytest.raises(ReadingError, match="no record has come to stage 'a'"):
        windowed(read=read, a=StageCounters("a"), b=StageCounters("b"))
