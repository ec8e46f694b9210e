"""Mixtures, skips and changes of weights through the loader, and what a state says of them afterwards."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.loader.loader import Loader, Source
from headrace.loader.order.errors import LoaderError, StateMismatch
from headrace.loader.trace import Trace


def positions(loader: Loader, steps: int | None = None) -> list[int]:
    found: list[int] = []
    for number, batch in enumerate(loader, 1):
        found += [p for p in batch["positions"].tolist() if p >= 0]
        if number == steps:
            break
    loader.close()
    return found


@pytest.fixture
def mixed(make_dataset: Callable[..., str]) -> Callable[..., Loader]:
    """Makes loaders over the same two datasets of 70 and 30 samples."""
    uris = make_dataset(sequences=(40, 30), seq_len=8, seed=1), make_dataset(sequences=(30,), seq_len=8, seed=2)

    def make(weights: tuple[float, float] = (0.5, 0.5), **arguments: Any) -> Loader:
        names = ("web", "code")
        sources = [Source(*one) for one in zip(uris, weights, names, strict=True)]
        return Loader(sources, **{"batch_size": 5, "last": "pad", "block_rows": 8, "window_blocks": 2, **arguments})

    return make


def rows(loaders: list[Loader], steps: int | None = None) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for number, batches in enumerate(zip(*loaders, strict=True), 1):
        for batch in batches:
            real = batch["positions"] >= 0
            found += zip(batch["sources"][real].tolist(), map(bytes, batch["tokens"][real]), strict=True)
        if number == steps:
            break
    for loader in loaders:
        loader.close()
    return found


def test_a_state_of_a_mixture_by_another_schedule_is_refused(mixed: Callable[..., Loader]):
    loader = mixed()
    positions(loader, 2)
    state = loader.state_dict()
    del state["schedule"]
    with pytest.raises(StateMismatch, match="schedule: the state has None, this loader has 2"):
        loader.load_state_dict(state)
    with pytest.raises(StateMismatch, match="schedule: the state has None, this loader has 2"):
        Trace(state)


def test_a_mixture_is_resumed_at_any_world_size(mixed: Callable[..., Loader]):
    whole = rows([mixed()])
    assert len(whole) == 100
    first = [mixed(rank=rank, world_size=4, batch_size=3) for rank in range(4)]
    got = rows(first, steps=4)
    second = [mixed(rank=rank, world_size=3, batch_size=2) for rank in range(3)]
    for loader in second:
        loader.load_state_dict(json.loads(json.dumps(first[2].state_dict())))
    assert got + rows(second) == whole


def test_shares_are_reported_with_how_often_a_source_was_read(mixed: Callable[..., Loader]):
    loader = mixed((0.4, 0.6))
    rows([loader])
    web, code = loader.statistics().shares
    assert (web.name, web.samples, code.samples) == ("web", 40, 60)
    assert (code.asked, code.reached, code.passes) == (0.6, 0.6, 2.0)


def test_reached_means_read_and_not_asked_for(mixed: Callable[..., Loader]):
    loader = mixed((0.4, 0.6))
    before = rows([loader], steps=8)
    loader.reweight([0.9, 0.1])
    after = rows([loader], steps=4)
    read = [source for source, _ in before + after]
    web, code = loader.statistics().shares
    assert (web.asked, code.asked) == (0.9, 0.1)
    assert (web.samples, code.samples) == (read.count(0), read.count(1))
    assert (web.reached, code.reached) == (read.count(0) / len(read), read.count(1) / len(read))
    assert 0.5 < web.reached < 0.7


def test_weights_changed_from_a_position_on_leave_what_was_read(mixed: Callable[..., Loader]):
    loader = mixed()
    before = rows([loader], steps=6)
    loader.reweight([0.0, 1.0])
    state = json.loads(json.dumps(loader.state_dict()))
    after = rows([loader])
    assert before == rows([mixed()])[:30]
    assert {source for source, _ in after} == {1}
    other = mixed(batch_size=9)
    other.load_state_dict(state)
    assert rows([other]) == after


def test_a_mixture_of_other_weights_or_datasets_is_refused(mixed: Callable[..., Loader], tiny_dataset: str):
    state = mixed().state_dict()
    with pytest.raises(StateMismatch, match=r"weights: the state has \[0\.5, 0\.5\]"):
        mixed((0.4, 0.6)).load_state_dict(state)
    state["sources"][1]["layout_root"] = "00"
    with pytest.raises(StateMismatch, match=r"sources\[1\]\.layout_root"):
        mixed().load_state_dict(state)


def test_datasets_of_another_seq_len_cannot_be_mixed(mixed: Callable[..., Loader], tiny_dataset: str):
    with pytest.raises(LoaderError, match="seq_len is 8 and 16"):
        Loader([*mixed().sources.plain(), Source(tiny_dataset)], batch_size=1)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_skipped_samples_are_left_out_and_the_rest_comes_once(thousand_dataset: str, prefetch: int):
    loader = Loader(thousand_dataset, batch_size=10, last="pad", prefetch=prefetch)
    before = positions(loader, 5)
    loader.skip(80, 33)
    loader.skip(500, 10)
    middle = positions(loader, 4)
    state = json.loads(json.dumps(loader.state_dict()))
    after = Loader(thousand_dataset, batch_size=7, rank=0, world_size=1, last="pad")
    after.load_state_dict(state)
    expected = [p for p in range(1003) if not 80 <= p < 113 and not 500 <= p < 510]
    assert before + middle + positions(after) == expected


def test_what_was_read_cannot_be_skipped(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=10)
    positions(loader, 5)
    with pytest.raises(ValueError, match="load an earlier state"):
        loader.skip(49, 5)


def test_a_change_of_world_or_batch_size_is_journalled_once(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=10)
    positions(loader, 3)
    other = Loader(thousand_dataset, batch_size=4, rank=0, world_size=2)
    other.load_state_dict(loader.state_dict())
    again = Loader(thousand_dataset, batch_size=4, rank=0, world_size=2)
    again.load_state_dict(other.state_dict())
    assert [
        (event["step"], event["batch_size"]) for event in again.state_dict()["journal"] if event["event"] == "cut"
    ] == [(0, 10), (3, 4)]


def test_a_skip_of_all_that_is_left_ends_the_pass(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=10)
    positions(loader, 1)
    loader.skip(10, 993)
    assert loader.steps_left == 0
    assert positions(loader) == []
    assert np.array_equal(positions(loader, 1), np.arange(10))
    assert loader.pass_ == 1
