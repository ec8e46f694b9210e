"""Which documents were in a step and in which steps a document was, against what the batches held."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.loader.loader import Loader, Source
from headrace.loader.order.errors import LoaderError, StateMismatch
from headrace.loader.order.plan import Skipped
from headrace.loader.trace import Trace, trace_document, trace_step
from headrace.store.shards.sidecars import table_to_parquet

Logged = dict[int, dict[tuple[int, int], tuple[int, list[str]]]]


def logged(loaders: list[Loader], steps: int) -> Logged:
    """What the ranks' batches hold: step -> (rank, row) -> (position, ids of documents)."""
    found: Logged = {}
    for _, batches in zip(range(steps), zip(*loaders, strict=True), strict=False):
        for loader, batch in zip(loaders, batches, strict=True):
            rows = found.setdefault(int(batch["state"][2]) - 1, {})
            seq_len = loader.sources.seq_len
            for row, position in enumerate(batch["positions"].tolist()):
                if position < 0:
                    continue
                mine = (batch["cu_seqlens"][:-1] // seq_len == row) & (batch["documents"][:, 0] >= 0)
                ids = []
                for shard, document in batch["documents"][mine].tolist():
                    source, local = (0, shard) if shard < 4 or len(loader.sources.datasets) == 1 else (1, shard - 4)
                    ids.append(f"{source}/{local}/{document}")
                rows[loader.rank, row] = (position, ids)
    for loader in loaders:
        loader.close()
    return found


@pytest.fixture
def sources(make_dataset: Callable[..., str]) -> list[Source]:
    return [Source(make_dataset(seed=0), 0.6, "web"), Source(make_dataset(sequences=(6, 3), seed=1), 0.4, "code")]


def ranks(dataset: Any, world_size: int, **arguments: Any) -> list[Loader]:
    shape = {"block_rows": 4, "window_blocks": 2, "last": "pad", **arguments}
    return [Loader(dataset, rank=rank, world_size=world_size, **shape) for rank in range(world_size)]


def history(dataset: Any) -> tuple[Logged, dict[str, Any]]:
    """Two world sizes, a skip, and a second pass; what was read, and the state at the end."""
    first = ranks(dataset, 2, batch_size=2)
    log = logged(first, 2)
    second = ranks(dataset, 3, batch_size=1)
    for loader in second:
        loader.load_state_dict(first[0].state_dict())
        loader.skip(11, 2)
    log |= logged(second, 20)
    log |= logged(second, 3)
    return log, json.loads(json.dumps(second[0].state_dict()))


@pytest.mark.parametrize("kind", ["one", "mixture"])
def test_a_step_is_traced_to_the_documents_that_its_batches_held(sources: list[Source], kind: str):
    log, state = history(sources[0].dataset if kind == "one" else sources)
    assert state["pass"] == 1
    for step, expected in log.items():
        traced = trace_step(state, step)
        rows = {(row.rank, row.row): (row.position, [piece.document for piece in row.pieces]) for row in traced.rows}
        assert rows == expected
        assert traced.taken
    assert not Trace(state).step(max(log) + 1).taken


def test_a_skip_is_told_with_the_step_that_reads_on(sources: list[Source]):
    log, state = history(sources[0].dataset)
    skips = [step for step, event in Trace(state).journal() if isinstance(event, Skipped)]
    assert skips == [min(step for step, rows in log.items() if min(rows.values())[0] > 11)]


@pytest.mark.parametrize("kind", ["one", "mixture"])
def test_a_document_is_traced_to_the_steps_that_read_it(sources: list[Source], kind: str):
    log, state = history(sources[0].dataset if kind == "one" else sources)
    uses: dict[str, list[tuple[int, int, int]]] = {}
    for step, rows in log.items():
        for (rank, row), (_, ids) in rows.items():
            for one in ids:
                uses.setdefault(one, []).append((step, rank, row))
    trace = Trace(state)
    for one in sorted(uses)[::5]:
        found = [(use.step, use.rank, use.row) for use in trace.document(one) if use.taken]
        assert found == sorted(uses[one])


@pytest.mark.parametrize("kind", ["one", "mixture"])
def test_a_pass_left_in_the_middle_is_traced_as_read(sources: list[Source], kind: str):
    loaders = ranks(sources[0].dataset if kind == "one" else sources, 2, batch_size=2)
    log = logged(loaders, 2)
    for loader in loaders:
        loader.next_pass()
    log |= logged(loaders, 3)
    state = json.loads(json.dumps(loaders[0].state_dict()))
    assert (state["pass"], state["step"]) == (1, 5)
    trace = Trace(state)
    for step, expected in log.items():
        rows = {(row.rank, row.row): row.position for row in trace.step(step).rows}
        assert rows == {place: position for place, (position, _) in expected.items()}
    read = {(step, *place) for step, rows in log.items() for place, (_, ids) in rows.items() for _ in ids}
    for one in {one for rows in log.values() for _, ids in rows.values() for one in ids}:
        uses = trace.document(one)
        # what was left out is read by no step
        assert {(use.step, use.rank, use.row) for use in uses if use.taken} <= read
        assert all(use.pass_ == (use.step >= 2) for use in uses)


def test_a_document_that_is_not_there_is_named(tiny_dataset: str):
    state = Loader(tiny_dataset, batch_size=2).state_dict()
    with pytest.raises(LoaderError, match="no dataset of this state has a document 'nobody'"):
        trace_document(state, "nobody")


def test_a_dataset_that_changed_since_is_refused(make_dataset: Callable[..., str], tiny_dataset: str):
    state = Loader(tiny_dataset, batch_size=2).state_dict()
    with pytest.raises(StateMismatch, match="layout_root"):
        trace_step(state, 0, [Source(make_dataset(seed=9))])


def test_a_dataset_that_moved_is_found_where_the_caller_says(tmp_path: Path, make_dataset: Callable[..., str]):
    uri = make_dataset()
    state = Loader(uri, batch_size=2).state_dict()
    moved = tmp_path / "moved"
    Path(uri).rename(moved)
    assert len(trace_step(state, 3, [Source(str(moved))]).rows) == 2


def named(uri: str, columns: dict[str, Any]) -> None:
    """Give the documents of the first shard these columns."""
    table = pa.table(columns)
    manifest = json.loads((Path(uri) / "manifest.json").read_text())
    (Path(uri) / manifest["shards"][0]["documents"]).write_bytes(table_to_parquet(table))


@pytest.mark.parametrize("kind", ["ids that several have", "parts of a record"])
def test_a_name_of_several_documents_is_traced_to_the_steps_of_all(make_dataset: Callable[..., str], kind: str):
    uri = make_dataset()
    loader = Loader(uri, batch_size=2, last="pad")
    expected = []
    for batch in loader:
        bounds = zip(batch["cu_seqlens"][:-1].tolist(), batch["documents"].tolist(), strict=True)
        # of those of the first shard, each second one
        rows = [start // 16 for start, (shard, document) in bounds if shard == 0 and document % 2]
        expected += [(int(batch["state"][2]) - 1, row) for row in rows]
    count = json.loads((Path(uri) / "manifest.json").read_text())["shards"][0]["records"]
    if kind == "parts of a record":
        parts = [number // 2 if number % 2 else None for number in range(count)]
        ids = ["twice" if part is None else f"several/{part}" for part in parts]
        named(uri, {"id": ids, "part": pa.array(parts, pa.int32())})
    else:
        named(uri, {"id": ["several" if number % 2 else "several/0" for number in range(count)]})
    assert [(use.step, use.row) for use in trace_document(loader.state_dict(), "several")] == sorted(expected)
    assert len(expected) > 2


def test_an_order_that_makes_no_sense_is_a_malformed_state(tiny_dataset: str):
    state = Loader(tiny_dataset, batch_size=2).state_dict()
    for wrong in ({"seed": -1}, {"seed": math.inf}, {"order": {**state["order"], "window_blocks": "x"}}):
        with pytest.raises(LoaderError, match="the state is malformed"):
            trace_step({**state, **wrong}, 0)
