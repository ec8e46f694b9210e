"""A dataset that has more shards than a state knows: refused by name, or finished as it was and then read whole."""

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.loader.dataset.dataset import TokenDataset, open_dataset
from headrace.loader.dataset.sources import known_part
from headrace.loader.loader import Loader
from headrace.loader.order.errors import DatasetGrew, StateMismatch
from headrace.loader.state.state import DEPTH_MAX, packed
from headrace.loader.trace import trace_document, trace_step

SHAPE: dict[str, Any] = {"batch_size": 4, "block_rows": 8, "window_blocks": 2, "seed": 3}
ONE: dict[str, Any] = {"batch_size": 1}
OLD, NEW = (40, 0, 30), (40, 0, 30, 0, 26)


@pytest.fixture
def versions(make_dataset: Callable[..., str]) -> tuple[str, str]:
    """A dataset, and the same with two more shards."""
    return make_dataset(sequences=OLD, seq_len=8), make_dataset(sequences=NEW, seq_len=8)


def tokens(loader: Loader, steps: int | None = None) -> list[bytes]:
    found: list[bytes] = []
    for number, batch in enumerate(loader, 1):
        found.append(batch["tokens"].tobytes())
        if number == steps:
            break
    return found


def saved(uri: str | TokenDataset, steps: int = 5, **arguments: Any) -> dict[str, Any]:
    loader = Loader(uri, **{**SHAPE, **arguments})
    tokens(loader, steps)
    loader.close()
    return dict(json.loads(json.dumps(loader.state_dict())))


def test_a_grown_dataset_is_refused_with_sizes_and_remedy(versions: tuple[str, str]):
    state = saved(versions[0])
    with pytest.raises(DatasetGrew, match=r'5 shards of 96 samples.*first 3 of 70 samples.*grown="finish"') as caught:
        Loader(versions[1], **SHAPE).load_state_dict(state)
    assert [(one.field, one.theirs, one.ours) for one in caught.value.differences] == [
        ("shards", 3, 5),
        ("samples", 70, 96),
    ]
    assert str(copy.copy(caught.value)) == str(caught.value)


def test_finish_reads_the_old_pass_and_then_all_shards(versions: tuple[str, str]):
    state = saved(versions[0])
    whole = tokens(Loader(versions[0], **SHAPE))
    loader = Loader(versions[1], **SHAPE)
    loader.load_state_dict(state, grown="finish")
    assert tokens(loader) == whole[5:]
    assert (loader.pass_, loader.position, loader.step) == (0, 68, 17)
    assert tokens(loader) == tokens(Loader(versions[1], **SHAPE, pass_=1))
    assert (loader.pass_, loader.position, loader.step) == (1, 96, 17 + 24)
    assert tokens(loader) == tokens(Loader(versions[1], **SHAPE, pass_=2))


def test_a_state_from_either_side_resumes_at_any_world_size(versions: tuple[str, str]):
    loader = Loader(versions[1], **SHAPE)
    loader.load_state_dict(saved(versions[0]), grown="finish")
    tokens(loader, 2)
    finishing = loader.state_dict()
    tokens(loader)
    tokens(loader, 3)
    grown = json.loads(json.dumps(loader.state_dict()))
    for state, positions in ((finishing, range(28, 70)), (grown, range(12, 96))):
        ranks = [Loader(versions[1], **{**SHAPE, "batch_size": 3}, rank=rank, world_size=2) for rank in range(2)]
        for one in ranks:
            one.load_state_dict(state, grown="finish")
        found = [p for pair in zip(*ranks, strict=True) for batch in pair for p in batch["positions"].tolist()]
        assert found == list(positions)
    # once the boundary is behind it, a state needs no choice
    again = Loader(versions[1], **SHAPE)
    again.load_state_dict(grown)
    assert again.state_dict() == grown


def test_a_loader_finishing_a_pass_takes_its_own_states_back(versions: tuple[str, str]):
    loader = Loader(versions[1], **SHAPE)
    loader.load_state_dict(saved(versions[0]), grown="finish")
    tokens(loader, 2)
    finishing = loader.state_dict()
    rest = tokens(loader, 3)
    loader.load_state_dict(finishing)
    assert loader.state_dict() == finishing
    assert tokens(loader, 3) == rest
    tokens(loader)
    assert tokens(loader) == tokens(Loader(versions[1], **SHAPE, pass_=1))


def test_a_loader_that_finishes_a_pass_takes_states_over_all_shards(versions: tuple[str, str]):
    state = saved(versions[1])
    loader = Loader(versions[1], **SHAPE)
    loader.load_state_dict(saved(versions[0]), grown="finish")
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert tokens(loader) == tokens(Loader(versions[1], **SHAPE))[5:]


def test_a_loader_in_another_process_finishes_the_pass_and_continues(versions: tuple[str, str]):
    loader = Loader(versions[1], **SHAPE)
    loader.load_state_dict(saved(versions[0]), grown="finish")
    other = copy.copy(loader)
    assert tokens(other) == tokens(loader)
    assert tokens(other) == tokens(loader)
    assert other.state_dict() == loader.state_dict()


def test_a_loader_that_refused_a_state_stands_where_it_stood(versions: tuple[str, str]):
    loader = Loader(versions[1], **SHAPE)
    tokens(loader, 3)
    before = loader.state_dict()
    for state in (saved(versions[0]), {**before, "journal": [{"event": "revised", "position": 0, "versions": [9]}]}):
        with pytest.raises(StateMismatch):
            loader.load_state_dict(state)
    assert loader.state_dict() == before
    assert len(tokens(loader)) == 24 - 3


def test_steps_on_both_sides_of_the_boundary_are_traced(versions: tuple[str, str]):
    loader = Loader(versions[1], **SHAPE)
    loader.load_state_dict(saved(versions[0]), grown="finish")
    tokens(loader)
    tokens(loader, 2)
    state = loader.state_dict()
    dataset = open_dataset(versions[1])
    for step, pass_, position in ((0, 0, 0), (16, 0, 64), (17, 1, 0), (20, 1, 12)):
        traced = trace_step(state, step)
        assert (traced.pass_, [row.position for row in traced.rows]) == (pass_, list(range(position, position + 4)))
        assert traced.taken == (step < 19)
    keys = [shard.tokens for shard in dataset.manifest.shards]
    new = {row.shard for step in range(17, 41) for row in trace_step(state, step).rows} & set(keys[3:])
    assert new == {keys[4]}
    document = trace_step(state, 16).rows[0].pieces[0].document
    assert {use.pass_ for use in trace_document(state, document)} == {0, 1}


def test_a_dataset_whose_older_shards_changed_is_another_one(make_dataset: Callable[..., str]):
    state = saved(make_dataset(sequences=OLD, seq_len=8))
    other = Loader(make_dataset(sequences=NEW, seq_len=8, seed=1), **SHAPE)
    with pytest.raises(StateMismatch, match="layout_root") as caught:
        other.load_state_dict(state, grown="finish")
    assert not isinstance(caught.value, DatasetGrew)


def test_other_differences_are_still_said(versions: tuple[str, str]):
    with pytest.raises(StateMismatch, match="seed"):
        Loader(versions[1], **{**SHAPE, "seed": 4}).load_state_dict(saved(versions[0]), grown="finish")


def test_the_known_part_is_found_by_its_root_among_empty_shards(versions: tuple[str, str]):
    dataset = open_dataset(versions[1])
    for count in (1, 2, 3, 4):
        part = dataset.first_shards(count)
        found = known_part(dataset, {"samples": part.layout.samples, "layout_root": part.layout.root})
        assert found is not None
        assert found.layout.shards == count
        assert np.array_equal(found.rows(0, np.arange(3)), dataset.rows(0, np.arange(3)))
    for bound in ({}, {"samples": 0}, {"samples": 1000}, {"samples": 40, "layout_root": "00"}, {"samples": True}):
        assert known_part(dataset, bound) is None


def followed(uri: str, growths: int) -> dict[str, Any]:
    """The state of a loader that read a step over the first shard, one over the first two, and so on."""
    whole = open_dataset(uri)
    state = saved(whole.first_shards(1), 1, **ONE, prefetch=0)
    for shards in range(2, growths + 2):
        loader = Loader(whole.first_shards(shards), **SHAPE | ONE, prefetch=0)
        loader.load_state_dict(state, grown="finish")
        loader.next_pass()
        tokens(loader, 1)
        loader.close()
        state = json.loads(json.dumps(loader.state_dict()))
    return state


def test_a_state_that_saw_more_growths_than_may_be_nested_is_taken(make_dataset: Callable[..., str]):
    uri = make_dataset(sequences=[1] * (DEPTH_MAX + 2), seq_len=8)
    state = followed(uri, DEPTH_MAX + 1)
    for given in (state, packed(state)):
        loader = Loader(uri, **SHAPE | ONE)
        loader.load_state_dict(given)
        assert loader.state_dict() == state
    assert [trace_step(state, step).pass_ for step in (0, 1, 9, DEPTH_MAX)] == [0, 1, 9, DEPTH_MAX]


def test_a_state_with_those_before_it_in_each_other_is_taken(make_dataset: Callable[..., str]):
    uri = make_dataset(sequences=[1, 1, 1, 1], seq_len=8)
    state = followed(uri, 3)
    nested = None
    for one in (*state["before"], state):
        nested = {**one, "before": nested}
    loader = Loader(uri, **SHAPE | ONE)
    loader.load_state_dict(nested)
    assert loader.state_dict() == state
    assert trace_step(nested, 2) == trace_step(state, 2)
