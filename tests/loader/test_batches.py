import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.loader.batch import producer
from headrace.loader.batch.compiled import KERNELS
from headrace.loader.dataset.dataset import open_dataset
from headrace.loader.loader import Loader
from headrace.loader.order.errors import LoaderClosed, LoaderError, StateMismatch
from headrace.store.contract.errors import ChecksumMismatch
from tests.kits.loader.threads import watch_threads


def ranks(uri: str, world_size: int, batch_size: int, **arguments: object) -> list[Loader]:
    dataset = open_dataset(uri)
    return [
        Loader(dataset, batch_size=batch_size, rank=rank, world_size=world_size, **arguments)  # type: ignore[arg-type]
        for rank in range(world_size)
    ]


def read(loaders: list[Loader], steps: int | None = None) -> tuple[list[int], list[bytes]]:
    """Positions and rows of tokens in the global order, over some steps of all ranks or to the end of the pass."""
    positions: list[int] = []
    tokens: list[bytes] = []
    taken = 0
    iterators = [iter(loader) for loader in loaders]
    while steps is None or taken < steps:
        batches = [next(iterator, None) for iterator in iterators]
        if batches[0] is None:
            assert batches == [None] * len(loaders)
            break
        for batch in batches:
            assert batch is not None
            real = batch["positions"] >= 0
            positions += batch["positions"][real].tolist()
            tokens += [row.tobytes() for row in batch["tokens"][real]]
        taken += 1
    for loader in loaders:
        loader.close()
    return positions, tokens


@pytest.mark.parametrize("order", ["sequential", "windowed", "full"])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_any_number_of_ranks_reads_the_same_global_order(thousand_dataset: str, order: str, prefetch: int):
    arguments = {"order": order, "prefetch": prefetch, "last": "pad", "block_rows": 16, "window_blocks": 4}
    one = read(ranks(thousand_dataset, 1, 1, **arguments))
    assert one[0] == list(range(1003))
    for world_size, batch_size in ((1, 7), (4, 8), (3, 5), (16, 2)):
        assert read(ranks(thousand_dataset, world_size, batch_size, **arguments)) == one


@pytest.mark.parametrize(("world_size", "batch_size"), [(3, 5), (1, 7), (16, 2), (8, 3), (1, 500)])
def test_a_state_saved_at_world_eight_goes_on_at_any_other(thousand_dataset: str, world_size: int, batch_size: int):
    whole = read(ranks(thousand_dataset, 1, 1, seed=9))
    first = ranks(thousand_dataset, 8, 4, seed=9)
    before = read(first, steps=11)
    states = [json.dumps(loader.state_dict()) for loader in first]
    assert len(set(states)) == 1
    second = ranks(thousand_dataset, world_size, batch_size, seed=9, last="pad")
    for loader in second:
        loader.load_state_dict(json.loads(states[0]))
    after = read(second)
    assert (before[0] + after[0], before[1] + after[1]) == whole


def test_many_saves_and_loads_at_changing_world_sizes_read_each_sample_once(thousand_dataset: str):
    random = np.random.default_rng(5)
    whole = read(ranks(thousand_dataset, 1, 1))
    state = None
    got: tuple[list[int], list[bytes]] = ([], [])
    while len(got[0]) < 1003:
        loaders = ranks(thousand_dataset, int(random.integers(1, 9)), int(random.integers(1, 9)), last="pad")
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        part = read(loaders, steps=int(random.integers(1, 6)))
        state = loaders[-1].state_dict()
        got = (got[0] + part[0], got[1] + part[1])
    assert got == whole


def test_the_state_is_that_of_the_last_batch_received_whatever_was_prefetched(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=10, prefetch=8)
    iterator = iter(loader)
    for step in range(1, 6):
        next(iterator)
        assert loader.state_dict()["position"] == step * 10
    loader.close()


def test_a_loop_that_was_left_goes_on_where_it_was(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=100)
    for batch in loader:
        if batch["positions"][0] == 300:
            break
    assert next(iter(loader))["positions"][0] == 400


def passes(loader: Loader, loops: int) -> list[tuple[int, int]]:
    """Of each of some loops over the loader, which pass it read and how many batches."""
    found = []
    for _ in range(loops):
        count = sum(1 for _ in loader)
        found.append((loader.pass_, count))
    return found


def test_a_state_from_a_loops_end_goes_on_alike(thousand_dataset: str):
    first, second = Loader(thousand_dataset, batch_size=200), Loader(thousand_dataset, batch_size=200)
    assert passes(first, 1) == [(0, 5)]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()
    assert passes(second, 2) == passes(first, 2) == [(1, 5), (2, 5)]


def test_a_state_from_a_loops_last_batch_ends_it_first(thousand_dataset: str):
    first, second = Loader(thousand_dataset, batch_size=200), Loader(thousand_dataset, batch_size=200)
    second.load_state_dict([first.state_dict() for _ in first][-1])
    assert passes(second, 2) == [(0, 0), (1, 5)]


def test_batches_dropped_at_a_loops_end_are_read_by_smaller_ones(thousand_dataset: str):
    first, second = Loader(thousand_dataset, batch_size=200), Loader(thousand_dataset, batch_size=2)
    passes(first, 1)
    second.load_state_dict(first.state_dict())
    assert next(iter(second))["positions"].tolist() == [1000, 1001]


def test_a_loop_left_at_its_last_batch_precedes_the_next_pass(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=200)
    found = [[batch["positions"][0] for _, batch in zip(range(5), loader, strict=False)] for _ in range(3)]
    assert found == [[0, 200, 400, 600, 800]] * 3
    assert loader.pass_ == 2


@pytest.mark.parametrize(("last", "steps"), [("drop", 8), ("pad", 9)])
def test_each_rank_makes_the_same_number_of_steps(thousand_dataset: str, last: str, steps: int):
    loaders = ranks(thousand_dataset, 4, 30, last=last)
    assert [loader.steps_left for loader in loaders] == [steps] * 4
    assert [sum(1 for _ in loader) for loader in loaders] == [steps] * 4


def test_a_padded_row_has_no_loss_no_document_and_no_position(thousand_dataset: str):
    *_, last = Loader(thousand_dataset, batch_size=500, last="pad")
    assert last["positions"][3:].tolist() == [-1] * 497
    assert not last["loss_mask"][3:].any()
    assert (last["tokens"][3:] == 1).all()


def test_iterating_after_the_end_gives_another_order(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=1003)
    (first,), (second,) = list(loader), list(loader)
    assert loader.pass_ == 1
    assert sorted(map(bytes, first["tokens"])) == sorted(map(bytes, second["tokens"]))
    assert not np.array_equal(first["tokens"], second["tokens"])
    assert np.array_equal(next(iter(Loader(thousand_dataset, batch_size=1003, pass_=1)))["tokens"], second["tokens"])


def test_a_state_of_a_later_pass_is_resumed_in_that_pass(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=100)
    list(loader)
    iterator = iter(loader)
    next(iterator)
    other = Loader(thousand_dataset, batch_size=100)
    other.load_state_dict(loader.state_dict())
    assert (other.pass_, other.position) == (1, 100)
    assert np.array_equal(next(iter(other))["tokens"], next(iterator)["tokens"])


def test_a_state_of_another_order_is_refused_with_all_that_differs(thousand_dataset: str, tiny_dataset: str):
    state = Loader(thousand_dataset, batch_size=4, seed=3, order="full").state_dict()
    with pytest.raises(StateMismatch) as caught:
        Loader(tiny_dataset, batch_size=4).load_state_dict(state)
    fields = {difference.field for difference in caught.value.differences}
    assert {"layout_root", "samples", "seq_len", "seed", "order.mode"} <= fields
    assert "seed: the state has 3, this loader has 0" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"), [("seed", 1), ("tokenizer", "another"), ("seq_len", 9), ("layout_root", "00"), ("samples", 7)]
)
def test_a_state_that_differs_in_one_field_is_refused_by_its_name(tiny_dataset: str, field: str, value: object):
    loader = Loader(tiny_dataset, batch_size=4)
    with pytest.raises(StateMismatch) as caught:
        loader.load_state_dict({**loader.state_dict(), field: value})
    assert [difference.field for difference in caught.value.differences] == [field]


def test_a_dataset_under_another_name_takes_the_state(tiny_dataset: str):
    loader = Loader(tiny_dataset, batch_size=4)
    loader.load_state_dict({**loader.state_dict(), "dataset": "moved", "position": 8})
    assert next(iter(loader))["positions"].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"journal": ["skipped"]}, {"position": -1}, {"position": 18}, {"pass": "one"}]
)
def test_a_state_that_this_version_cannot_follow_is_refused(tiny_dataset: str, change: dict[str, object]):
    loader = Loader(tiny_dataset, batch_size=4)
    with pytest.raises(LoaderError, match="state"):
        loader.load_state_dict({**loader.state_dict(), **change})


def test_an_error_of_reading_comes_after_the_batches_before(make_dataset: Callable[..., str]):
    uri = make_dataset()
    loader = Loader(uri, batch_size=1, order="sequential")
    path = Path(uri) / loader.dataset.manifest.shards[2].tokens
    path.write_bytes(b"\0" * path.stat().st_size)
    taken = []
    with pytest.raises(ChecksumMismatch):
        taken.extend(batch["positions"][0] for batch in loader)
    assert taken == [0, 1, 2, 3, 4]
    assert loader.position == 5


def test_no_thread_is_left_by_a_pass_close_or_abandonment(thousand_dataset: str):
    loader_threads = watch_threads("headrace loader")
    loader = Loader(thousand_dataset, batch_size=100)
    list(loader)
    assert loader_threads() == []
    iterator = iter(loader)
    next(iterator)
    assert len(loader_threads()) == 1
    loader.close()
    assert loader_threads() == []
    abandoned = iter(Loader(thousand_dataset, batch_size=100))
    next(abandoned)
    del abandoned
    gc.collect()
    assert loader_threads() == []


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_iteration_that_was_ended_from_outside_says_so(thousand_dataset: str, prefetch: int):
    loader = Loader(thousand_dataset, batch_size=10, prefetch=prefetch)
    old = iter(loader)
    next(old)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(LoaderClosed):
        next(old)


def test_a_dataset_too_small_for_one_global_batch_is_refused(tiny_dataset: str):
    with pytest.raises(LoaderError, match=r"global batch of 24 .* last='pad'"):
        Loader(tiny_dataset, batch_size=8, rank=0, world_size=3)


@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": 0}, {"rank": 1}, {"world_size": 0}, {"order": "random"}, {"last": "keep"}, {"prefetch": -1}],
)
def test_arguments_that_make_no_sense_are_refused(tiny_dataset: str, arguments: dict[str, object]):
    with pytest.raises(ValueError, match=r"."):
        Loader(tiny_dataset, **{"batch_size": 1, **arguments})  # type: ignore[arg-type]


def test_statistics_count_what_was_received(tiny_dataset: str):
    loader = Loader(tiny_dataset, batch_size=4, last="pad")
    list(loader)
    statistics = loader.statistics()
    assert (statistics.batches, statistics.samples, statistics.tokens) == (5, 17, 17 * 16)
    assert statistics.verified_shards == 3
    assert statistics.assemble_s > 0


def test_when_a_row_is_read_follows_from_the_order_alone(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=10, seed=4)
    shard, row = np.array([2]), np.array([17])
    position = int(loader.order.inverse(shard, row)[0])
    (mine,) = [tokens for batch in loader for tokens in batch["tokens"][batch["positions"] == position]]
    assert np.array_equal(mine, loader.dataset.rows(2, row)[0])


def test_the_core_of_the_loader_imports_no_torch():
    code = "import sys, headrace.loader.loader, headrace.loader.dataset.dataset; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_a_part_of_the_steps_goes_on_with_its_own_next_one(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=10, fields=())
    loader.share_steps(1, 4)
    for expected in ([10, 50], [90, 130], [170, 210]):
        # each loop goes on where the one before was left
        assert [int(batch["positions"][0]) for _, batch in zip(range(2), loader, strict=False)] == expected
    loader.load_state_dict(loader.state_dict())
    assert int(next(iter(loader))["positions"][0]) == 220
    loader.close()


def test_a_state_loaded_after_a_pass_is_gone_on_from(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=100, fields=())
    states = [loader.state_dict() for _ in loader]
    loader.load_state_dict(states[6])
    assert [int(batch["positions"][0]) for batch in loader] == [700, 800, 900]
    assert (loader.pass_, loader.step) == (0, 10)


def test_a_batch_of_a_later_pass_says_its_place_in_that_pass(thousand_dataset: str):
    loader = Loader(thousand_dataset, batch_size=10, pass_=2)
    first, second, *_ = loader
    assert second["positions"].tolist() == list(range(10, 20))
    assert (first["state"].tolist(), second["state"].tolist()) == ([2, 10, 1], [2, 20, 2])
    loader.close()


def test_padding_is_counted_as_no_sample_of_the_rank_that_has_it(tiny_dataset: str):
    ranks = [Loader(tiny_dataset, batch_size=3, rank=rank, world_size=7, last="pad") for rank in range(7)]
    real = [sum(int((batch["positions"] >= 0).sum()) for batch in rank) for rank in ranks]
    assert real == [rank.statistics().samples for rank in ranks] == [3, 3, 3, 3, 3, 2, 0]


def test_short_jobs_load_no_compiled_loops_and_long_ones_do(thousand_dataset: str, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    monkeypatch.setattr(KERNELS, "request", lambda: asked.append("the loops"))
    for tokens, times in ((producer.KERNEL_TOKENS, 0), (500 * 8, 1)):
        monkeypatch.setattr(producer, "KERNEL_TOKENS", tokens)
        assert len(list(Loader(thousand_dataset, batch_size=10))) == 100
        assert bool(asked) == bool(times)
