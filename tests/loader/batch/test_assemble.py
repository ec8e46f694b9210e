"""The fields of a batch against a slow reference that walks token by token."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, example, given, settings, strategies as st

from headrace.loader.batch.assemble import Assembly
from headrace.loader.batch.buffers import Buffers
from headrace.loader.batch.compiled import KERNELS, CompiledAssembly
from headrace.loader.batch.fields import FIELDS, Batch, Placed, chosen_fields
from headrace.loader.dataset.dataset import TokenDataset, open_dataset
from headrace.loader.dataset.sources import Source, Sources
from headrace.loader.loader import Loader
from tests.kits.loader.shards import write_dataset

I64 = np.typing.NDArray[np.int64]
ARRAYS = ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "documents", "positions")


@pytest.fixture(scope="module")
def long_dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows of so many tokens that fields are made by a copy a run; pieces repeat some."""
    root = tmp_path_factory.mktemp("long") / "data"
    return str(write_dataset(root, sequences=(6, 5), seq_len=4000, repeats=True))


def assemble(dataset: TokenDataset, positions: I64, shards: I64, rows: I64, batch_size: int) -> Batch:
    """The batch of the samples at `positions` [k], which lie at (`shards` [k], `rows` [k]); the others are padding."""
    padded = np.full(batch_size, -1, dtype=np.int64)
    padded[: positions.size] = positions
    placed = Placed(padded, np.zeros(batch_size, np.int32), np.zeros((1, 3), np.int64))
    return Assembly(Sources([Source(dataset)]), placed, shards, rows, Buffers()).batches(0, 1)[0]


def reference_row(arrays: dict[str, np.ndarray], shard: int, row: int) -> tuple[list[Any], ...]:
    """Per token of one row: its label, its position, and the segment that it lies in."""
    seq_len = arrays["tokens"].shape[1]
    owner: list[tuple[int, int, int]] = [(-1, -1, -1)] * seq_len
    repeated = {"piece_repeated": np.zeros_like(arrays["piece_start"]), **arrays}["piece_repeated"].tolist()
    new_from = [0] * seq_len
    for sequence, start, length, document, again in zip(
        *(arrays[f"piece_{name}"].tolist() for name in ("sequence", "start", "length", "document")),
        repeated,
        strict=True,
    ):
        if sequence == row:
            owner[start : start + length] = [(shard, document, start)] * length
            new_from[start : start + length] = [start + again] * length
    labels, places, segments = [], [], []
    for at, mine in enumerate(owner):
        goes_on = mine[0] >= 0 and at + 1 < seq_len and owner[at + 1] == mine and at + 1 >= new_from[at]
        labels.append(int(arrays["tokens"][row, at + 1]) if goes_on else -100)
        fresh = at == 0 or owner[at - 1] != mine
        places.append(0 if fresh else places[-1] + 1)
        if fresh:
            segments.append((mine[:2], at))
    return arrays["tokens"][row].tolist(), labels, places, segments


def reference(uri: str, dataset: TokenDataset, samples: list[tuple[int, int]], batch_size: int) -> dict[str, Any]:
    seq_len = dataset.seq_len
    fields: dict[str, list[Any]] = {"tokens": [], "labels": [], "position_ids": [], "documents": [], "cu_seqlens": []}
    for at, (shard, row) in enumerate(samples):
        arrays = safetensors.numpy.load_file(Path(uri) / dataset.manifest.shards[shard].tokens)
        tokens, labels, places, segments = reference_row(arrays, shard, row)
        fields["tokens"].append(tokens)
        fields["labels"].append(labels)
        fields["position_ids"].append(places)
        fields["documents"] += [list(document) for document, _ in segments]
        fields["cu_seqlens"] += [at * seq_len + start for _, start in segments]
    for at in range(len(samples), batch_size):
        fields["tokens"].append([dataset.manifest.pad_id] * seq_len)
        fields["labels"].append([-100] * seq_len)
        fields["position_ids"].append(list(range(seq_len)))
        fields["documents"].append([-1, -1])
        fields["cu_seqlens"].append(at * seq_len)
    fields["cu_seqlens"].append(batch_size * seq_len)
    return fields


def assert_same(batch: Batch, expected: dict[str, Any]) -> None:
    for name, values in expected.items():
        assert batch[name].tolist() == values, name  # type: ignore[literal-required]
    assert np.array_equal(batch["loss_mask"], batch["labels"] != -100)
    assert batch["max_seqlen"] == max(np.diff(expected["cu_seqlens"]))


@given(
    picked=st.lists(st.sampled_from([(0, 0), (0, 4), (2, 0), (2, 3), (2, 8), (3, 1), (3, 2)]), max_size=9),
    padding=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_a_batch_of_any_rows_equals_the_slow_reference(tiny_dataset: str, picked: list[tuple[int, int]], padding: int):
    batch_size = len(picked) + padding
    if batch_size == 0:
        return
    dataset = open_dataset(tiny_dataset)
    table = np.array(picked, dtype=np.int64).reshape(-1, 2)
    batch = assemble(dataset, np.arange(len(picked)), table[:, 0], table[:, 1], batch_size)
    assert_same(batch, reference(tiny_dataset, dataset, picked, batch_size))


@given(picked=st.lists(st.integers(0, 10), min_size=1, max_size=4), padding=st.integers(0, 1))
@settings(max_examples=20, deadline=None)
def test_a_batch_of_long_segments_equals_the_slow_reference(long_dataset: str, picked: list[int], padding: int):
    dataset = open_dataset(long_dataset)
    shards, rows = dataset.layout.split(np.array(picked, dtype=np.int64))
    samples = list(zip(shards.tolist(), rows.tolist(), strict=True))
    batch_size = len(picked) + padding
    batch = assemble(dataset, np.arange(len(picked)), shards, rows, batch_size)
    assert_same(batch, reference(long_dataset, dataset, samples, batch_size))


# rows without padding, and padding behind them
@example(seed=0, seq_len=1, picked=[3, 4])
@given(seed=st.integers(0, 10**6), seq_len=st.integers(1, 40), picked=st.lists(st.integers(0, 6), max_size=9))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_packing_equals_the_slow_reference_by_numpy_and_by_compiled_loops(
    make_dataset: Any, seed: int, seq_len: int, picked: list[int]
):
    uri = make_dataset(sequences=(4, 3), seq_len=seq_len, seed=seed, repeats=bool(seed % 2))
    dataset = open_dataset(uri)
    shards, rows = dataset.layout.split(np.array(picked, dtype=np.int64))
    positions = np.arange(len(picked), dtype=np.int64)
    samples = list(zip(shards.tolist(), rows.tolist(), strict=True))
    assert_same(assemble(dataset, positions, shards, rows, 9), reference(uri, dataset, samples, 9))
    # three batches of which the last may be all padding, the first and the other two made apart
    assert KERNELS.wait(300), KERNELS.error
    padded = np.full(9, -1, np.int64)
    padded[: positions.size] = positions
    placed = Placed(padded, np.zeros(9, np.int32), np.zeros((3, 3), np.int64))
    assembly = CompiledAssembly(KERNELS.get(), Sources([Source(dataset)]), placed, shards, rows, Buffers())
    for number, batch in enumerate([*assembly.batches(0, 1), *assembly.batches(1, 2)]):
        assert_same(batch, reference(uri, dataset, samples[number * 3 : number * 3 + 3], 3))
        assert batch["positions"].tolist() == [*positions[number * 3 : number * 3 + 3], -1, -1, -1][:3]


def test_a_long_pass_changes_to_compiled_loops_with_equal_batches(
    thousand_dataset: str, monkeypatch: pytest.MonkeyPatch
):
    assert KERNELS.wait(300), KERNELS.error
    monkeypatch.setattr(KERNELS, "_module", None)
    by_numpy = list(Loader(thousand_dataset, batch_size=8, last="pad", prefetch=0))
    monkeypatch.undo()
    compiled = list(Loader(thousand_dataset, batch_size=8, last="pad"))
    for ours, theirs in zip(compiled, by_numpy, strict=True):
        for name in (*ARRAYS, "state", "sources"):
            assert np.array_equal(ours[name], theirs[name]), name  # type: ignore[literal-required]
        assert ours["max_seqlen"] == theirs["max_seqlen"]


@pytest.mark.parametrize("fields", [(), ("tokens",), ("labels",), ("position_ids", "max_seqlen"), ("documents",)])
def test_a_loader_makes_the_fields_asked_for_and_they_agree(
    make_dataset: Callable[..., str], monkeypatch: pytest.MonkeyPatch, fields: tuple[str, ...]
):
    uri = make_dataset(sequences=(40, 90), seq_len=70, repeats=True)
    assert KERNELS.wait(300), KERNELS.error
    for module in (KERNELS.get(), None):
        monkeypatch.setattr(KERNELS, "_module", module)
        whole = list(Loader(uri, batch_size=8, last="pad"))
        for ours, theirs in zip(Loader(uri, batch_size=8, last="pad", fields=fields), whole, strict=True):
            assert set(ours) == {"tokens", "positions", "sources", "state", *fields}
            for name in ours:
                assert np.array_equal(ours[name], theirs[name]), name  # type: ignore[literal-required]


def test_what_was_retracted_is_padding_where_tokens_alone_are_made(
    make_dataset: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    uri = make_dataset(sequences=(40, 90))
    before = np.concatenate([batch["tokens"] for batch in Loader(uri, batch_size=10, order="sequential")])
    manifest = json.loads((Path(uri) / "manifest.json").read_text())
    hidden = {"version": 2, "tokens": manifest["shards"][1]["tokens"], "documents": [3, 5]}
    (Path(uri) / "manifest.json").write_text(json.dumps(manifest | {"version": 2, "retracted": [hidden]}))
    assert KERNELS.wait(300), KERNELS.error
    for module in (KERNELS.get(), None):
        monkeypatch.setattr(KERNELS, "_module", module)
        loader = Loader(uri, batch_size=10, order="sequential", fields=["tokens"])
        after = np.concatenate([batch["tokens"] for batch in loader])
        assert (after != before).any()
        assert (after[after != before] == 1).all()
        assert (after[:40] == before[:40]).all()


def test_a_field_that_there_is_not_is_refused(tiny_dataset: str):
    for fields in (["tokens", "lables"], "labels"):
        with pytest.raises(ValueError, match="fields are some of tokens, labels"):
            Loader(tiny_dataset, batch_size=4, fields=fields)
    assert chosen_fields(None).names == {*FIELDS}


def test_segments_tile_the_flattened_batch_and_cross_no_sequence(tiny_dataset: str):
    for batch in Loader(tiny_dataset, batch_size=5, last="pad"):
        bounds = batch["cu_seqlens"]
        assert (bounds[0], bounds[-1]) == (0, 5 * 16)
        assert (np.diff(bounds) > 0).all()
        assert set(range(0, 80, 16)) <= set(bounds.tolist())
        assert len(batch["documents"]) == len(bounds) - 1


def test_the_fields_have_the_types_that_are_promised(tiny_dataset: str):
    batch = next(iter(Loader(tiny_dataset, batch_size=4)))
    kinds = {name: str(batch[name].dtype) for name in ARRAYS}  # type: ignore[literal-required]
    assert kinds == {
        "tokens": "int32",
        "labels": "int32",
        "loss_mask": "bool",
        "position_ids": "int32",
        "cu_seqlens": "int32",
        "documents": "int64",
        "positions": "int64",
    }
    assert isinstance(batch["max_seqlen"], int)


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_piece_is_a_segment_once_in_a_padded_pass(tiny_dataset: str, world_size: int):
    dataset = open_dataset(tiny_dataset)
    found: list[tuple[int, ...]] = []
    for rank in range(world_size):
        for batch in Loader(dataset, batch_size=4, rank=rank, world_size=world_size, last="pad"):
            found += [tuple(pair) for pair in batch["documents"].tolist() if pair[0] >= 0]
    expected = [
        (shard, document)
        for shard, entry in enumerate(dataset.manifest.shards)
        for document in safetensors.numpy.load_file(Path(tiny_dataset) / entry.tokens)["piece_document"].tolist()
    ]
    assert sorted(found) == sorted(expected)
