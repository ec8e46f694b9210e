"""Who has the cluster's cores: by priority, fair share, quota and arrival, and who gives way to whom."""

import pytest
from hypothesis import given, settings, strategies as st

from headrace.controller.core.cluster.scheduler import (
    Begin,
    Claim,
    ClaimState,
    ClaimTurn,
    GoOn,
    Hold,
    QueueDecision,
    QueueRule,
    Scheduler,
    why_no_claim,
    why_no_rule,
)


def anything(_name: str, _released: frozenset[str]) -> str:
    return ""


def a_cluster(*rules: QueueRule) -> Scheduler:
    made = Scheduler()
    made.rules = {rule.name: rule for rule in rules}
    return made


def claim(made: Scheduler, name: str, queue: str, cores: int, *, priority: int = 0, by: str = "") -> None:
    number = max((item.number for item in made.claims.values()), default=0) + 1
    made.claims[name] = Claim(name, queue, number, cores, priority, by)


def decided(made: Scheduler, cores: int, outside: int = 0) -> list[QueueDecision]:
    return made.decide(cores, outside, anything)


def states(made: Scheduler) -> dict[str, str]:
    return {name: item.state.value for name, item in made.claims.items()}


def test_who_came_first_has_the_cores_and_the_next_waits() -> None:
    made = a_cluster(QueueRule("a"))
    for name in ("one", "two", "three"):
        claim(made, name, "a", 4)
    assert decided(made, 4) == [Begin("one")]
    places = made.places(4)
    assert places["two"].words("a") == "queue a: place 1 of 2: asks for 4 cores, and 0 are free"
    assert places["three"].words("a") == "queue a: place 2 of 2: others are before it"
    made.note("one", ClaimTurn.ENDED)
    assert decided(made, 4) == [Begin("two")]


@pytest.mark.parametrize(
    ("named", "quota", "there", "cores"), [(0, 2, 4, 2), (0, 9, 4, 4), (0, 0, 4, 4), (0, 2, 0, 1), (3, 2, 4, 3)]
)
def test_who_names_no_cores_asks_for_what_its_queue_may_have(named: int, quota: int, there: int, cores: int) -> None:
    made = a_cluster(QueueRule("a", cores=quota))
    claim(made, "one", "a", named)
    assert made.cores_of(made.claims["one"], there) == cores


def test_nobody_overtakes_who_waits_for_cores() -> None:
    made = a_cluster(QueueRule("a"))
    claim(made, "small", "a", 2)
    decided(made, 4)
    claim(made, "large", "a", 4)
    claim(made, "tiny", "a", 1)
    assert decided(made, 4) == [], "tiny would fit, and large would never begin"


def test_who_asks_for_more_than_there_is_holds_up_nobody() -> None:
    made = a_cluster(QueueRule("a"))
    claim(made, "huge", "a", 99)
    claim(made, "tiny", "a", 1)
    assert decided(made, 4) == [Begin("tiny")]
    assert "asks for 99 cores, and the cluster has 4" in made.places(4)["huge"].words("a")


def test_a_higher_priority_takes_cores_and_they_come_back_later() -> None:
    made = a_cluster(QueueRule("low"), QueueRule("high", priority=5))
    claim(made, "back", "low", 4)
    assert decided(made, 4) == [Begin("back")]
    claim(made, "front", "high", 2)
    assert decided(made, 4) == [Hold("back", "pipeline front of queue high gets its cores")]
    assert decided(made, 4) == [], "its sinks are not empty yet"
    made.note("back", ClaimTurn.SEALED)
    assert decided(made, 4) == [Begin("front")]
    assert states(made) == {"back": "held", "front": "granted"}
    made.note("front", ClaimTurn.ENDED)
    assert decided(made, 4) == [GoOn("back")]


def test_no_more_give_way_than_must() -> None:
    made = a_cluster(QueueRule("low"), QueueRule("high", priority=1))
    for name, cores in (("one", 1), ("two", 2), ("three", 1)):
        claim(made, name, "low", cores)
    assert len(decided(made, 4)) == 3
    claim(made, "front", "high", 2)
    assert decided(made, 4) == [Hold("two", "pipeline front of queue high gets its cores")]


def test_a_queue_takes_its_fair_share_back_and_no_more() -> None:
    made = a_cluster(QueueRule("a", weight=3), QueueRule("b", weight=1))
    for index in range(4):
        claim(made, f"b{index}", "b", 2)
    assert len(decided(made, 8)) == 4, "nobody else wants the cores"
    for index in range(4):
        claim(made, f"a{index}", "a", 2)
    asked = decided(made, 8)
    while any(isinstance(item, Hold) for item in asked):
        for item in asked:
            made.note(item.name, ClaimTurn.SEALED)
        asked = decided(made, 8)
    uses = {use.rule.name: (use.cores, use.share) for use in made.uses(8, 0)}
    assert uses == {"a": (6, 6.0), "b": (2, 2.0)}


def test_a_queue_has_its_own_who_run_and_its_own_who_wait() -> None:
    made = a_cluster(QueueRule("a"), QueueRule("b"))
    for name, queue in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b")):
        claim(made, name, queue, 2)
    decided(made, 4)
    uses = {use.rule.name: (use.granted, use.waiting) for use in made.uses(4, 0)}
    assert uses == {"a": (("a1",), ("a2",)), "b": (("b1",), ("b2",))}


def test_a_quota_holds_its_queue_up_and_no_other() -> None:
    made = a_cluster(QueueRule("a", cores=2), QueueRule("b"))
    claim(made, "a1", "a", 2)
    claim(made, "a2", "a", 2)
    claim(made, "b1", "b", 2)
    assert decided(made, 8) == [Begin("a1"), Begin("b1")]
    assert "0 of the queue's quota are left" in made.places(8)["a2"].words("a")


def test_users_of_a_queue_take_turns() -> None:
    made = a_cluster(QueueRule("a"))
    for index in range(3):
        claim(made, f"ann{index}", "a", 1, by="user/ann")
    claim(made, "bob0", "a", 1, by="user/bob")
    assert decided(made, 2) == [Begin("ann0"), Begin("bob0")]


def test_tasks_that_cannot_all_be_placed_wait_alone() -> None:
    made = a_cluster(QueueRule("low"), QueueRule("high", priority=1))
    claim(made, "back", "low", 2)
    decided(made, 2)
    claim(made, "front", "high", 2)
    seen: list[frozenset[str]] = []

    def fits(_name: str, released: frozenset[str]) -> str:
        seen.append(released)
        return "no worker has 64 GiB left"

    assert made.decide(2, 0, fits) == []
    assert seen == [frozenset({"back"})]
    assert made.places(2)["front"].waits_for == "no worker has 64 GiB left"


def test_cores_used_outside_of_all_queues_are_not_given() -> None:
    made = a_cluster(QueueRule("a"))
    claim(made, "one", "a", 2)
    assert decided(made, 4, outside=3) == []
    assert "the cluster has 4, 3 of them used outside of all queues" in made.places(4)["one"].waits_for
    assert decided(made, 4, outside=2) == [Begin("one")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("", 1, 0, 0), "a name is 1 to 63"),
        (("Ä" * 90, 1, 0, 0), "a name is 1 to 63"),
        (("a", 0, 0, 0), "a weight of 0: give 1 to 1000"),
        (("a", 1, -1, 0), "a quota of -1 cores"),
        (("a", 1, 0, 101), "a priority of 101: give -100 to 100"),
    ],
)
def test_a_queue_that_cannot_be_is_refused(arguments: tuple[str, int, int, int], words: str) -> None:
    assert words in why_no_rule(*arguments)


def test_a_claim_above_its_quota_is_refused_at_once() -> None:
    rule = QueueRule("a", cores=4)
    assert "asks for 5 cores, and queue a has a quota of 4" in why_no_claim("p", rule, 5, 0)
    assert why_no_claim("p", rule, 0, 0) == ""
    assert "a priority of 101" in why_no_claim("p", rule, 1, 101)


_RULES = st.tuples(st.integers(1, 4), st.sampled_from((0, 0, 3, 6)), st.integers(0, 2))
_CLAIMS = st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 2), st.sampled_from(("", "ann", "bob")))
_STEPS = st.lists(st.one_of(_CLAIMS, st.integers(0, 9)), max_size=24)


@settings(max_examples=200, deadline=None)
@given(rules=st.tuples(_RULES, _RULES, _RULES), steps=_STEPS, cores=st.integers(1, 8), outside=st.integers(0, 2))
def test_whatever_is_asked_comes_to_rest_within_cores_and_quotas(
    rules: tuple[tuple[int, int, int], ...], steps: list[tuple[int, int, int, str] | int], cores: int, outside: int
) -> None:
    made = a_cluster(*(QueueRule(f"q{index}", *rule) for index, rule in enumerate(rules)))
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            queue, size, priority, by = step
            made.claims[f"p{number}"] = Claim(f"p{number}", f"q{queue}", number, size, priority, by)
        elif made.claims:
            made.note(sorted(made.claims)[step % len(made.claims)], ClaimTurn.ENDED)
        held = rest(made, cores, outside)
        assert held <= len(made.claims), "who was held is not held again before something else happens"
        for use in made.uses(cores, outside):
            assert not use.rule.cores or use.cores <= use.rule.cores
        assert sum(use.cores for use in made.uses(cores, outside)) <= max(0, cores - outside)


def rest(made: Scheduler, cores: int, outside: int) -> int:
    """Decide until nothing is decided; how many were held."""
    held = 0
    while asked := decided(made, cores, outside):
        for item in asked:
            if isinstance(item, Hold):
                held += 1
                made.note(item.name, ClaimTurn.SEALED)
        assert held <= len(made.claims)
    assert all(item.state is not ClaimState.SEALING for item in made.claims.values())
    return held


@settings(max_examples=100, deadline=None)
@given(claims=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=1, max_size=12))
def test_every_pipeline_that_fits_has_its_turn(claims: list[tuple[int, int]]) -> None:
    made = a_cluster(*(QueueRule(f"q{index}", 1 + index, 0, index) for index in range(3)))
    for number, (queue, size) in enumerate(claims):
        made.claims[f"p{number}"] = Claim(f"p{number}", f"q{queue}", number, size)
    ended = 0
    while made.claims:
        rest(made, 4, 0)
        done = [name for name, item in made.claims.items() if item.state is ClaimState.GRANTED]
        assert done, states(made)
        made.note(done[0], ClaimTurn.ENDED)
        ended += 1
    assert ended == len(claims)
