"""The samples of what was removed are the same however records were cut into batches and shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.stages import library as stages
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.build import build_stage, process_safely
from headrace.stages.runtime.contract import Transform
from headrace.stages.runtime.samples import SAMPLE_CHARACTERS_MAX, SAMPLES_MAX, draw, merge, rank
from headrace.stages.sinks.sidecars import write_sidecars
from headrace.stages.sinks.tokens import TokenSink
from headrace.store.contract.objects import ObjectStore
from headrace.store.open import open_store
from headrace.store.shards.sidecars import read_table

TEXTS = [f"text {number} " + "word " * (number % 3) for number in range(60)]


def removed(batch: Batch) -> Batch:
    """Each text is filtered, for one of two reasons."""
    stage = build_stage(stages.gopher_quality(words_min=4, words_max=4), {})
    return process_safely(stage, batch, "gopher-quality")


def samples_of(store: ObjectStore, batches: list[Batch]) -> pa.Table:
    table = pa.table({"tokens": pa.array([], pa.int64())})
    objects = write_sidecars(batches, store, "", table)
    (key,) = [item.key for item in objects if item.role == "samples"]
    return read_table(store, key)


@pytest.mark.parametrize("cut", [1, 7, 60])
def test_a_shard_holds_the_same_samples_however_its_batches_were_cut(
    tmp_path: Any, batch_of: Callable[..., Batch], cut: int
) -> None:
    whole = samples_of(open_store(str(tmp_path / "whole")), [removed(batch_of(TEXTS))])
    parts = [removed(batch_of(TEXTS[at : at + cut], first=at)) for at in range(0, 60, cut)]
    assert samples_of(open_store(str(tmp_path / "parts")), parts).equals(whole)
    assert whole.num_rows == 2 * SAMPLES_MAX
    for row in whole.to_pylist():
        assert row["text"] == TEXTS[row["row"]]


def test_samples_of_two_shards_merge_into_those_of_both(tmp_path: Any, batch_of: Callable[..., Batch]) -> None:
    both = [removed(batch_of(TEXTS[:25])), removed(batch_of(TEXTS[25:], first=25))]
    tables = [samples_of(open_store(str(tmp_path / str(number))), [batch]) for number, batch in enumerate(both)]
    whole = samples_of(open_store(str(tmp_path / "whole")), both)
    assert merge(tables).equals(whole)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.text(max_size=4)), max_size=40), st.integers(0, 40))
def test_what_is_drawn_of_a_union_is_drawn_of_the_drawn(records: list[tuple[str, str]], cut: int) -> None:
    named = [((reason, ""), name, place) for place, (reason, name) in enumerate(records)]
    halves = [draw(named[:cut]), draw(named[cut:])]
    assert draw(named[place] for half in halves for place in half) == draw(named)


def test_a_sample_is_drawn_by_id_and_not_by_what_comes_first() -> None:
    named = [(("s", "r"), f"r{number}", number) for number in range(1000)]
    chosen = draw(named)
    assert len(chosen) == SAMPLES_MAX
    assert chosen == sorted(sorted(range(1000), key=lambda number: rank(f"r{number}"))[:SAMPLES_MAX])
    assert max(chosen) > 100


def test_a_long_text_is_cut_and_a_quarantined_record_is_no_sample(
    tmp_path: Any, batch_of: Callable[..., Batch]
) -> None:
    class Refuses(Transform):
        def process(self, batch: Batch) -> Batch:
            if batch.rows.num_rows > 1 or batch.rows.column("id")[0].as_py() == "r0":
                raise ValueError("no")
            return removed(batch)

    answer = process_safely(Refuses(), batch_of(["a", "é" * 5000]), "refuses")
    table = samples_of(open_store(str(tmp_path)), [answer])
    assert table.column("text").to_pylist() == ["é" * SAMPLE_CHARACTERS_MAX]
    assert answer.verdicts.column("verdict").to_pylist() == ["quarantined", "filtered"]


def test_a_dataset_without_filtered_records_has_no_table_of_samples(
    tmp_path: Any, batch_of: Callable[..., Batch]
) -> None:
    sink = TokenSink("write", 8, 100, 0, None, "sha")
    rows = batch_of(["a"]).rows
    tokens = pa.array([[1, 2]], pa.list_(pa.uint32()))
    batch = batch_of(["a"]).with_rows(
        pa.RecordBatch.from_arrays([*rows.columns, tokens], names=[*rows.schema.names, "tokens"])
    )
    shard = sink.write([batch], open_store(str(tmp_path)), "")
    assert {item.role for item in shard.objects} == {"tokens", "documents", "verdicts", "profile"}
