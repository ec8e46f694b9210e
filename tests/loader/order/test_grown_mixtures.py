"""Mixtures of which sources grew: each finishes its pass as it was, and reads all of its shards from the next on."""

import copy
import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from headrace.loader.loader import Loader, Source
from headrace.loader.order.errors import DatasetGrew, LoaderError, StateMismatch
from headrace.loader.order.mixture import Growth, Mixture, Shuffle
from headrace.loader.order.order import OrderMode, SampleLayout
from headrace.loader.order.plan import Reweighted
from headrace.loader.prefetch.shard_prefetcher import next_use
from headrace.loader.trace import Trace, trace_document, trace_step

SHUFFLE = Shuffle(3, OrderMode.WINDOWED, 2, 4)
#: positions that a property is checked for
POSITIONS = 300

# ---- the sequence, against a count by hand ----

sources_of_shards = st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=5), min_size=2, max_size=4)


@st.composite
def grown_mixtures(draw: st.DrawFn) -> tuple[list[list[int]], list[tuple[int, int, int]], list[Reweighted]]:
    """Shards of each source, growths (position, source, shards before it), and changes of weights."""
    shards = draw(sources_of_shards)
    counts = [len(one) for one in shards]
    growths = []
    # from the last on backwards, so that each source has fewer shards before each of its growths
    for position in sorted(draw(st.lists(st.integers(0, 200), max_size=5)), reverse=True):
        source = draw(st.integers(0, len(shards) - 1))
        if counts[source] > 1:
            counts[source] = draw(st.integers(1, counts[source] - 1))
            growths.append((position, source, counts[source]))
    weights = st.tuples(*[st.sampled_from([0.0, 0.5, 1.0, 2.0])] * len(shards)).filter(any)
    changes = [Reweighted(at, draw(weights)) for at in sorted(draw(st.lists(st.integers(0, 200), max_size=3)))]
    return shards, growths[::-1], changes


def layout(shards: list[int]) -> SampleLayout:
    return SampleLayout(np.array(shards))


def made(
    shards: list[list[int]], growths: list[tuple[int, int, int]], changes: list[Reweighted] | None = None
) -> Mixture:
    before = [Growth(at, source, layout(shards[source][:count])) for at, source, count in growths]
    return Mixture([layout(one) for one in shards], SHUFFLE, [1.0] * len(shards), 100, changes or [], before)


@functools.lru_cache(maxsize=256)
def pass_rows(shards: tuple[int, ...], source: int, pass_: int) -> list[tuple[int, int]]:
    """(shard, row) at each position of one pass over a source's first shards."""
    order = SHUFFLE.order(layout([*shards]), source, pass_)
    shard, row = order.locate(np.arange(sum(shards), dtype=np.uint64))
    return list(zip(shard.tolist(), row.tolist(), strict=True))


def counted(mixture: Mixture, shards: list[list[int]], growths: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """(shard, row) at each position: each source's pass is walked through, and its length looked at when one begins."""
    read = [len(one) for one in shards]
    for _, source, count in reversed(growths):
        read[source] = count
    newest, passes, places = list(read), [0] * len(shards), [0] * len(shards)
    owners, _ = mixture.sources(np.arange(POSITIONS))
    found = []
    for position, source in enumerate(owners.tolist()):
        for number, (at, grown, _) in enumerate(growths):
            if at == position:
                later = [count for _, other, count in growths[number + 1 :] if other == grown]
                newest[grown] = (later or [len(shards[grown])])[0]
        for one in range(len(shards)):
            if places[one] == 0:
                read[one] = newest[one]
        walked = pass_rows(tuple(shards[source][: read[source]]), source, passes[source])
        shard, row = walked[places[source]]
        found.append((shard + sum(len(one) for one in shards[:source]), row))
        places[source] += 1
        if places[source] == sum(shards[source][: read[source]]):
            passes[source], places[source] = passes[source] + 1, 0
    return found


@given(drawn=grown_mixtures())
@settings(deadline=None, max_examples=20)
def test_a_grown_source_finishes_its_pass_and_then_takes_all(
    drawn: tuple[list[list[int]], list[tuple[int, int, int]], list[Reweighted]],
):
    shards, growths, changes = drawn
    mixture = made(shards, growths, changes)
    shard, row = mixture.locate(np.arange(POSITIONS))
    assert list(zip(shard.tolist(), row.tolist(), strict=True)) == counted(mixture, shards, growths)


@given(drawn=grown_mixtures())
@settings(deadline=None, max_examples=25)
def test_where_a_row_of_a_grown_source_is_read_is_found_again(
    drawn: tuple[list[list[int]], list[tuple[int, int, int]], list[Reweighted]],
):
    mixture = made(*drawn)
    shard, row = mixture.locate(np.arange(POSITIONS))
    places: dict[tuple[int, int], list[int]] = {}
    for position, pair in enumerate(zip(shard.tolist(), row.tolist(), strict=True)):
        places.setdefault(pair, []).append(position)
    for number in range(int(mixture.shard_starts[-1]) + len(drawn[0][-1])):
        assert mixture.positions_of(number, 0, POSITIONS) == places.get((number, 0), [])


@given(drawn=grown_mixtures())
@settings(deadline=None, max_examples=20)
def test_growth_moves_no_position_to_another_source_nor_what_the_others_give(
    drawn: tuple[list[list[int]], list[tuple[int, int, int]], list[Reweighted]],
):
    shards, growths, changes = drawn
    mixture, still = made(shards, growths, changes), made(shards, [], changes)
    positions = np.arange(POSITIONS)
    owners = mixture.sources(positions)[0]
    assert np.array_equal(owners, still.sources(positions)[0])
    untouched = np.isin(owners, [source for _, source, _ in growths], invert=True)
    for mine, theirs in zip(mixture.locate(positions), still.locate(positions), strict=True):
        assert np.array_equal(mine[untouched], theirs[untouched])


@given(drawn=grown_mixtures(), number=st.integers(0, 4))
@settings(deadline=None, max_examples=20)
def test_what_lies_before_a_growth_is_what_was_read_without_it(
    drawn: tuple[list[list[int]], list[tuple[int, int, int]], list[Reweighted]], number: int
):
    shards, growths, changes = drawn
    if not growths:
        return
    at, source, count = growths[number % len(growths)]
    before = made(
        [one[:count] if which == source else one for which, one in enumerate(shards)],
        [one for one in growths if one[1] != source or one[2] < count],
        changes,
    )
    mine, theirs = ([*zip(*found, strict=True)] for found in (mixed_rows(made(*drawn), at), mixed_rows(before, at)))
    assert mine == theirs


def mixed_rows(mixture: Mixture, end: int) -> tuple[list[int], list[int], list[int]]:
    """(source, shard of it, row) at the positions up to `end`."""
    shard, row = mixture.locate(np.arange(end))
    source = mixture.source_of(shard)
    return source.tolist(), (shard - mixture.shard_starts[source]).tolist(), row.tolist()


def test_a_shard_that_came_since_is_needed_with_the_next_pass():
    mixture = made([[8, 8], [16]], [(4, 0, 1)])
    assert next_use(mixture, 1, 4) == 6
    # and where its pass has begun, when the order of that pass reads it
    assert next_use(mixture, 1, 16) == min(mixture.positions_of(1, 0, 64)) // 2 - 8


# ---- through the loader ----

SHAPE: dict[str, Any] = {"seed": 3, "block_rows": 4, "window_blocks": 2, "last": "pad"}
SHARDS = (12, 0, 9, 14, 0, 7)


@pytest.fixture
def grow(make_dataset: Callable[..., str]) -> Callable[..., list[Source]]:
    """Makes the sources of a mixture with so many shards each; equal arguments give equal shards."""
    kept: dict[tuple[int, int], str] = {}

    def make(web: int = 2, code: int = 2, books: int = 1) -> list[Source]:
        found = []
        for seed, (name, count, weight) in enumerate((("web", web, 0.5), ("code", code, 0.3), ("books", books, 0.2))):
            if (seed, count) not in kept:
                kept[seed, count] = make_dataset(sequences=SHARDS[seed : seed + count], seq_len=8, seed=seed)
            found.append(Source(kept[seed, count], weight, name))
        return found

    return make


def ranks(sources: list[Source], world_size: int, batch_size: int = 2, **arguments: Any) -> list[Loader]:
    shape = {**SHAPE, "batch_size": batch_size, "world_size": world_size, **arguments}
    return [Loader(sources, rank=rank, **shape) for rank in range(world_size)]


def loaded(loaders: list[Loader], state: dict[str, Any], grown: str = "finish") -> list[Loader]:
    for loader in loaders:
        loader.load_state_dict(json.loads(json.dumps(state)), grown=grown)  # type: ignore[arg-type]
    return loaders


def rows(loaders: list[Loader], steps: int) -> list[tuple[int, bytes]]:
    """(source, tokens) of the next steps over all ranks, in order; passes follow each other."""
    found: list[tuple[int, bytes]] = []
    done = 0
    while done < steps:
        for batches in zip(*loaders, strict=True):
            for batch in batches:
                real = batch["positions"] >= 0
                found += zip(batch["sources"][real].tolist(), map(bytes, batch["tokens"][real]), strict=True)
            done += 1
            if done == steps:
                break
    for loader in loaders:
        loader.close()
    return found


def samples(source: Source) -> int:
    return Loader(source.dataset, batch_size=1).dataset.layout.samples  # type: ignore[arg-type]


def alone(source: Source, number: int, pass_: int) -> list[bytes]:
    """A source's own order of one of its passes, read without the others."""
    loader = Loader(source.dataset, batch_size=1)  # type: ignore[arg-type]
    shuffle = Shuffle(SHAPE["seed"], OrderMode.WINDOWED, SHAPE["window_blocks"], SHAPE["block_rows"])
    order = shuffle.order(loader.dataset.layout, number, pass_)
    shards, found = order.locate(np.arange(loader.dataset.layout.samples, dtype=np.uint64))
    return [
        loader.dataset.rows(int(shard), np.array([row])).astype(np.int32).tobytes()
        for shard, row in zip(shards.tolist(), found.tolist(), strict=True)
    ]


def test_a_grown_mixture_is_refused_with_sources_and_remedy(grow: Callable[..., list[Source]]):
    state = Loader(grow(), batch_size=2, **SHAPE).state_dict()
    loader = Loader(grow(web=4, books=2), batch_size=2, **SHAPE)
    with pytest.raises(
        DatasetGrew, match=r'(?s)2 of the 3 sources.*\[0\].*4 shards of 35.*2 of 12.*\[2\].*"finish"'
    ) as caught:
        loader.load_state_dict(state)
    assert [(one.field, one.theirs, one.ours) for one in caught.value.differences] == [
        ("sources[0].shards", 2, 4),
        ("sources[0].samples", 12, 35),
        ("sources[2].shards", 1, 2),
        ("sources[2].samples", 9, 23),
    ]
    assert str(copy.copy(caught.value)) == str(caught.value)
    assert loader.state_dict()["sources"] != state["sources"]


def test_each_source_takes_new_shards_at_its_own_passs_end(grow: Callable[..., list[Source]]):
    old, new = grow(), grow(web=4)
    first = ranks(old, 2)
    read = rows(first, 4)
    second = loaded(ranks(new, 1, 5), first[0].state_dict())
    read += rows(second, 30)
    for number in range(3):
        mine = [tokens for source, tokens in read if source == number]
        expected = alone(old[number], number, 0)
        for pass_ in range(1, 20):
            expected += alone(new[number], number, pass_)
        assert len(mine) > samples(new[number])
        assert mine == expected[: len(mine)]
    web = second[0].statistics().shares[0]
    assert web.passes == pytest.approx(1 + (web.samples - 12) / 35)


def test_a_pass_of_the_mixture_keeps_its_length_and_every_share(grow: Callable[..., list[Source]]):
    first = ranks(grow(), 1)
    rows(first, 3)
    (loader,) = loaded(ranks(grow(4, 4, 3), 1), first[0].state_dict())
    assert loader.state_dict()["samples"] == first[0].state_dict()["samples"] == 12 + 9 + 9
    before = loader.position
    assert loader.steps_left == (30 - before) // 2
    rows([loader], 100)
    for share in loader.statistics().shares:
        assert abs(share.samples - share.asked * 206) <= 3


def test_a_state_after_growth_needs_no_choice_at_any_size(grow: Callable[..., list[Source]]):
    first = ranks(grow(), 1)
    read = rows(first, 2)
    (loader,) = loaded(ranks(grow(web=4, code=3), 1), first[0].state_dict())
    state = loader.state_dict()
    whole = rows([loader], 60)
    for world_size, batch_size in ((8, 1), (3, 5), (1, 1)):
        again = loaded(ranks(grow(web=4, code=3), world_size, batch_size), state, grown="refuse")
        got = rows(again, 100 // (world_size * batch_size))
        assert got == whole[: len(got)]
    assert len(read) == 4
    assert rows([copy.copy(loaded(ranks(grow(web=4, code=3), 1), state)[0])], 60) == whole


def test_growth_ranks_weights_and_skips_change_nothing_one_rank_reads(
    grow: Callable[..., list[Source]],
):
    def history(worlds: list[tuple[int, int]]) -> tuple[list[tuple[int, bytes]], dict[str, Any]]:
        """The same samples a stretch, cut into other steps; 24 of them each."""
        read: list[tuple[int, bytes]] = []
        state: dict[str, Any] | None = None
        for stretch, (world_size, batch_size) in enumerate(worlds):
            sources = [grow(), grow(web=3), grow(web=3), grow(web=4, code=4, books=2), grow(web=4, code=4, books=2)]
            loaders = ranks(sources[stretch], world_size, batch_size, pass_samples=240)
            if state is not None:
                loaded(loaders, state)
            for loader in loaders:
                if stretch in (0, 2, 4):
                    loader.skip(24 * stretch + 5 + 2 * (stretch > 0) * stretch, 2)
                if stretch in (1, 3):
                    loader.reweight([1.0, stretch, 0.0 if stretch == 1 else 2.0])
            read += rows(loaders, 24 // (world_size * batch_size))
            state = loaders[-1].state_dict()
        assert state is not None
        return read, state

    read, state = history([(8, 1), (3, 4), (2, 12), (1, 8), (6, 2)])
    expected, one = history([(1, 1)] * 5)
    assert read == expected
    assert len(read) == 120
    assert (state["position"], state["samples"]) == (one["position"], 240)
    grew = [event for event in state["journal"] if event["event"] == "grew"]
    assert [(event["source"], event["samples"]) for event in grew] == [(0, 12), (0, 21), (1, 9), (2, 9)]


def ids_read(loaders: list[Loader], sources: list[Source], steps: int) -> dict[int, list[list[str]]]:
    """step -> the documents of each row over all ranks, by the batches; ids are <source>/<shard>/<row of documents>."""
    counts = [Loader(source.dataset, batch_size=1).dataset.layout.shards for source in sources]  # type: ignore[arg-type]
    starts = np.cumsum(counts) - counts
    found: dict[int, list[list[str]]] = {}
    for _, batches in zip(range(steps), zip(*loaders, strict=True), strict=False):
        for batch in batches:
            for row, position in enumerate(batch["positions"].tolist()):
                if position < 0:
                    continue
                mine = (batch["cu_seqlens"][:-1] // 8 == row) & (batch["documents"][:, 0] >= 0)
                ids = []
                for shard, document in batch["documents"][mine].tolist():
                    source = int(np.searchsorted(starts, shard, side="right")) - 1
                    ids.append(f"{source}/{shard - starts[source]}/{document}")
                found.setdefault(int(batch["state"][2]) - 1, []).append(ids)
    for loader in loaders:
        loader.close()
    return found


def test_steps_and_documents_are_traced_on_both_sides_of_every_growth(grow: Callable[..., list[Source]]):
    versions = [grow(), grow(web=4), grow(web=6, code=4, books=3)]
    read: dict[int, list[list[str]]] = {}
    state: dict[str, Any] = {}
    for number, sources in enumerate(versions):
        loaders = ranks(sources, 2 + number)
        if number:
            loaded(loaders, state)
        for steps in (7, 4, 9, 9, 9, 9, 2):
            read |= ids_read(loaders, sources, steps)
        state = json.loads(json.dumps(loaders[0].state_dict()))
    trace = Trace(state)
    assert trace.steps == max(read) + 1 == len(read) > 60
    uses: dict[str, list[int]] = {}
    for step, expected in read.items():
        traced = trace.step(step)
        assert [[piece.document for piece in row.pieces] for row in traced.rows] == expected
        assert traced.taken
        for one in {one for row in expected for one in row}:
            uses.setdefault(one, []).append(step)
    assert {one.split("/")[0] for one in uses if int(one.split("/")[1]) >= 4} == {"0"}
    for one in sorted(uses)[::7]:
        assert sorted({use.step for use in trace.document(one) if use.taken}) == sorted(uses[one])


def test_a_trace_goes_on_when_the_datasets_have_grown_further(grow: Callable[..., list[Source]]):
    loaders = ranks(grow(), 1)
    rows(loaders, 5)
    again = loaded(ranks(grow(web=3), 1), loaders[0].state_dict())
    rows(again, 20)
    state = again[0].state_dict()
    documents = [piece.document for row in trace_step(state, 24).rows for piece in row.pieces]
    later = grow(web=5, code=4)
    assert [piece.document for row in trace_step(state, 24, later).rows for piece in row.pieces] == documents
    assert trace_document(state, documents[0], later) == trace_document(state, documents[0])


# ---- what cannot be ----


def test_a_grown_mixture_still_says_what_else_differs(grow: Callable[..., list[Source]]):
    state = Loader(grow(), batch_size=2, **SHAPE).state_dict()
    new = grow(web=4)
    for arguments, field in (
        ({"seed": 4}, "seed"),
        ({"pass_samples": 31}, "samples"),
        ({"order": "full"}, "order.mode"),
    ):
        with pytest.raises(StateMismatch, match=field) as caught:
            Loader(new, batch_size=2, **{**SHAPE, **arguments}).load_state_dict(state, grown="finish")
        assert not isinstance(caught.value, DatasetGrew)
    with pytest.raises(StateMismatch, match="weights"):
        Loader([*new[:2], Source(new[2].dataset, 0.9)], batch_size=2, **SHAPE).load_state_dict(state, grown="finish")
    with pytest.raises(StateMismatch, match=r"sources\[2\]"):
        Loader(new[:2], batch_size=2, **SHAPE).load_state_dict(state, grown="finish")


def test_a_mixture_of_which_one_source_grew_and_another_changed_is_refused(
    grow: Callable[..., list[Source]], make_dataset: Callable[..., str]
):
    state = Loader(grow(), batch_size=2, **SHAPE).state_dict()
    changed = Source(make_dataset(sequences=SHARDS[1:3], seq_len=8, seed=9), 0.3, "code")
    web, _, books = grow(web=4)
    with pytest.raises(StateMismatch, match=r"sources\[1\]\.layout_root") as caught:
        Loader([web, changed, books], batch_size=2, **SHAPE).load_state_dict(state, grown="finish")
    assert [one.field for one in caught.value.differences] == ["sources[1].uri", "sources[1].layout_root"]


def test_datasets_from_before_a_growth_or_with_another_past_are_refused(
    grow: Callable[..., list[Source]], make_dataset: Callable[..., str]
):
    (loader,) = loaded(ranks(grow(web=4), 1), Loader(grow(), batch_size=2, **SHAPE).state_dict())
    state = loader.state_dict()
    with pytest.raises(StateMismatch, match=r"sources\[0\]\.layout_root"):
        Loader(grow(), batch_size=2, **SHAPE).load_state_dict(state, grown="finish")
    for field, value in (("samples", 11), ("layout_root", "00")):
        forged = json.loads(json.dumps(state))
        (event,) = (event for event in forged["journal"] if event["event"] == "grew")
        event[field] = value
        with pytest.raises(StateMismatch, match=r"sources\[0\] before position 0|samples"):
            ranks(grow(web=4), 1, pass_samples=30)[0].load_state_dict(forged)


@pytest.mark.parametrize("change", [{"source": 3}, {"source": -1}, {"position": None}, {"samples": "12"}])
def test_a_growth_that_is_malformed_is_refused(grow: Callable[..., list[Source]], change: dict[str, Any]):
    (loader,) = loaded(ranks(grow(web=4), 1), Loader(grow(), batch_size=2, **SHAPE).state_dict())
    state = json.loads(json.dumps(loader.state_dict()))
    (event,) = (event for event in state["journal"] if event["event"] == "grew")
    event.update(change)
    with pytest.raises(LoaderError, match=r"grew"):
        loader.load_state_dict(state)


def test_a_pass_that_is_too_short_for_the_new_world_is_refused(grow: Callable[..., list[Source]]):
    state = Loader(grow(), batch_size=2, **SHAPE).state_dict()
    loader = Loader(grow(web=4), batch_size=40, **{**SHAPE, "last": "drop"})
    with pytest.raises(LoaderError, match="a pass of 30 samples cannot fill one global batch of 40"):
        loader.load_state_dict(state, grown="finish")
