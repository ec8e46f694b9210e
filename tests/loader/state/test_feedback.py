"""Weights by schedule and by feedback: the same journal on each rank, and the same samples after a resume."""

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from headrace.loader import Loader, LoaderError, MoreOfTheHarder, WeightSchedule, feed_back, trace_step
from headrace.loader.dataset import Source
from headrace.loader.order import Reweighted
from headrace.loader.state import state


class Wants:
    """Proposes what it is told to, and remembers what it was asked."""

    def __init__(self, proposal: Sequence[float] | None) -> None:
        self.proposal = proposal
        self.asked: list[tuple[int, tuple[float, ...], tuple[float, ...]]] = []

    def propose(self, position: int, weights: tuple[float, ...], losses: tuple[float, ...]) -> Sequence[float] | None:
        self.asked.append((position, weights, losses))
        return self.proposal


@pytest.fixture
def mixed(tiny_dataset: str, make_dataset: Callable[..., str]) -> Callable[..., Loader]:
    other = make_dataset(sequences=(30, 20), seed=3)

    def make(**arguments: object) -> Loader:
        options: dict[str, object] = {"batch_size": 5, "alone": True, "pass_samples": 100, "prefetch": 0, **arguments}
        return Loader([Source(tiny_dataset, 0.5, "web"), Source(other, 0.5, "code")], **options)  # type: ignore[arg-type]

    return make


def sources(loaders: Sequence[Loader], steps: int = 1000) -> list[int]:
    """Which source each position came from, over all ranks."""
    found: list[int] = []
    for number, batches in enumerate(zip(*loaders, strict=True), 1):
        found += [int(one) for batch in batches for one in batch["sources"]]
        if number == steps:
            break
    return found


def test_a_schedule_gives_each_stretch_its_shares(mixed: Callable[..., Loader]) -> None:
    loader = mixed()
    loader.reweight(WeightSchedule(((0, (1.0, 0.0)), (40, (0.0, 1.0)), (60, (1.0, 1.0)))))
    read = sources([loader])
    assert (set(read[:40]), set(read[40:60]), read[60:].count(0)) == ({0}, {1}, 20)


def test_a_schedule_is_resumed_at_another_world_size(mixed: Callable[..., Loader]) -> None:
    schedule = WeightSchedule(((0, (1.0, 0.0)), (80, (0.0, 1.0))), ramp=True)
    whole = mixed()
    whole.reweight(schedule)
    expected = sources([whole])
    loader = mixed()
    loader.reweight(schedule)
    got = sources([loader], steps=6)
    ranks = [mixed(rank=rank, world_size=2, alone=False) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert got + sources(ranks) == expected


def test_shares_tell_the_weights_that_hold_and_not_later_ones(mixed: Callable[..., Loader]) -> None:
    loader = mixed()
    loader.reweight(WeightSchedule(((0, (0.9, 0.1)), (50, (0.0, 1.0)))))
    sources([loader], steps=4)
    assert [share.asked for share in loader.statistics().shares] == [0.9, 0.1]


def test_a_proposal_holds_from_the_first_position_not_read(mixed: Callable[..., Loader]) -> None:
    ranks = [mixed(rank=rank, world_size=2, alone=False) for rank in range(2)]
    before = sources(ranks, steps=3)
    policies = [Wants([0.0, 1.0]) for _ in ranks]
    assert [feed_back(rank, policy, [2.0, 3.0]) for rank, policy in zip(ranks, policies, strict=True)] == [True, True]
    assert policies[0].asked == policies[1].asked == [(30, (0.5, 0.5), (2.0, 3.0))]
    states = [rank.state_dict() for rank in ranks]
    assert states[0] == states[1]
    assert before.count(0) == 15
    assert set(sources(ranks)) == {1}


def test_a_trace_says_what_a_step_saw_under_feedback(mixed: Callable[..., Loader]) -> None:
    loader = mixed()
    sources([loader], steps=4)
    feed_back(loader, Wants([0.0, 1.0]), [1.0, 1.0])
    state = loader.state_dict()
    assert {row.source for row in trace_step(state, 3).rows} == {"web", "code"}
    assert {row.source for row in trace_step(state, 4).rows} == {"code"}


@pytest.mark.parametrize("proposal", [None, [0.5, 0.5], [7.0, 7.0]])
def test_a_proposal_of_no_change_leaves_the_journal(mixed: Callable[..., Loader], proposal: list[float] | None) -> None:
    loader = mixed()
    assert feed_back(loader, Wants(proposal), [1.0, 1.0]) is False
    assert loader.state_dict() == mixed().state_dict()


@pytest.mark.parametrize(
    ("losses", "proposal"),
    [
        ([1.0], [0.5, 0.5]),
        ([1.0, float("nan")], [0.5, 0.5]),
        ([1.0, 1.0], [0.5]),
        ([1.0, 1.0], [0.0, 0.0]),
        ([1.0, 1.0], [float("inf"), 1.0]),
    ],
)
def test_what_makes_no_sense_changes_nothing(
    mixed: Callable[..., Loader], losses: list[float], proposal: list[float]
) -> None:
    loader = mixed()
    with pytest.raises(ValueError, match=r"loss|weight"):
        feed_back(loader, Wants(proposal), losses)
    assert loader.state_dict() == mixed().state_dict()


def test_the_harder_source_gets_more_and_none_is_lost() -> None:
    proposed = MoreOfTheHarder(rate=1.0, share_min=0.05).propose(0, (0.5, 0.5, 0.0), (4.0, 2.0, 9.0))
    assert proposed is not None
    assert proposed[0] > 0.8 > proposed[1] > 0.05
    assert proposed[2] == 0.0
    far = MoreOfTheHarder(rate=9.0, share_min=0.05).propose(0, (0.5, 0.5), (400.0, 2.0))
    assert far is not None
    assert far[1] == 0.05


def test_a_schedule_that_is_replaced_is_heard_of_no_more(mixed: Callable[..., Loader]) -> None:
    loader = mixed()
    loader.reweight(WeightSchedule(((0, (1.0, 0.0)), (50, (0.0, 1.0)))))
    sources([loader], steps=2)
    loader.reweight([1.0, 1.0])
    assert loader.journal[-2:] == (Reweighted(0, (1.0, 0.0)), Reweighted(10, (1.0, 1.0)))


@pytest.mark.parametrize("asked", [np.array([0.9, 0.1]), list(np.array([0.9, 0.1], dtype=np.float32))])
@pytest.mark.parametrize("kind", ["weights", "schedule"])
def test_weights_in_numbers_of_numpy_are_plain_in_the_state(
    mixed: Callable[..., Loader], asked: Sequence[float], kind: str
) -> None:
    loader = mixed()
    loader.reweight(asked if kind == "weights" else WeightSchedule(((0, tuple(asked)), (50, (1, 2)))))
    again = mixed()
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert again.state_dict() == loader.state_dict()


@pytest.mark.parametrize("asked", [[1e301, 1.0], [float("nan"), 1.0], [float("inf"), 1.0], [np.float64(1e308), 1e308]])
def test_weights_that_no_state_could_hold_are_refused(mixed: Callable[..., Loader], asked: Sequence[float]) -> None:
    loader = mixed()
    for wanted in (lambda: asked, lambda: WeightSchedule(((0, tuple(asked)),))):
        with pytest.raises(ValueError, match="weights are from 0 to"):
            loader.reweight(wanted())
    with pytest.raises(ValueError, match="at the latest"):
        WeightSchedule(((0, (1.0, 1.0)), (1 << 63, (1.0, 2.0))))


def test_no_more_events_are_journalled_than_a_resume_takes(
    mixed: Callable[..., Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "EVENTS_MAX", 1010)
    loader = mixed()
    for weight in range(1, 8):
        loader.reweight([1.0, float(weight)])
        loader.skip(99, 0)
        if len(loader.journal) >= 10:
            break
    for change in (lambda: loader.reweight([1.0, 1.0]), lambda: loader.skip(99, 1)):
        with pytest.raises(LoaderError, match="holds up to 1010"):
            change()
    mixed().load_state_dict(loader.state_dict())
