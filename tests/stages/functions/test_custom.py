"""What a function on a batch or on a record may give back, and what ends the run with the name of its stage."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage
from headrace.stages.functions.functions import LINEAGE
from headrace.stages.library import map_batches, map_records
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.build import build_stage, process_safely
from headrace.stages.runtime.errors import StageContractError
from headrace.stages.sources.objects.preflight_check import preflight

MakeBatch = Callable[..., Batch]
BATCH_FUNCTIONS = """
import pyarrow as pa

def _set(rows, name, values):
    return rows.set_column(rows.schema.get_field_index(name), name, values)

def other_id(rows):
    return _set(rows, "id", pa.array(["x"] * rows.num_rows))

def swapped(rows):
    return _set(rows, "__row", rows.column("__row").take(pa.array([1, 0])))

def own_column(rows):
    return rows.append_column("score", pa.array([1.0] * rows.num_rows))

def without_text(rows):
    return rows.select(["__row", "id", "metadata"])

def without_metadata(rows):
    return rows.select(["__row", "id", "text"])

def number_for_text(rows):
    return _set(rows, "text", pa.array(range(rows.num_rows)))

def struct_for_metadata(rows):
    return _set(rows, "metadata", pa.array([{"a": 1}] * rows.num_rows))

def no_json(rows):
    return _set(rows, "metadata", pa.array(["a=1"] * rows.num_rows))

def no_object(rows):
    return _set(rows, "metadata", pa.array(["[1]"] * rows.num_rows))

def large(rows):
    rows = _set(rows, "text", rows.column("text").cast(pa.large_string()))
    return _set(rows, "metadata", pa.array(['{"a":1}'] * rows.num_rows).dictionary_encode())

def emptied(rows):
    return _set(rows, "metadata", pa.nulls(rows.num_rows))

def upper(rows):
    import pyarrow.compute as pc
    return _set(rows, "text", pc.utf8_upper(rows.column("text")))

def backwards(rows):
    turned = rows.take(pa.array(range(rows.num_rows))[::-1])
    return turned.select(["metadata", "text", "id", "__row"])
"""
RECORD_FUNCTIONS = """
def list_for_metadata(record):
    return {**record, "metadata": [1]}

def numbers_of_numpy(record):
    import numpy as np
    return {**record, "metadata": {"score": np.float32(0.5), "rank": np.int64(3), "of": np.arange(2)}}

def text_for_metadata(record):
    return {**record, "metadata": "a=1"}
"""
MODULES = {"batch_functions": BATCH_FUNCTIONS, "record_functions": RECORD_FUNCTIONS}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for name in (*MODULES, "takers"):
        sys.modules.pop(name, None)


def batch_stage(function: str, **options: Any) -> Any:
    return build_stage(map_batches(f"batch_functions:{function}", **options), MODULES)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("other_id", r"""returned the id 'x' for record '.+': a record keeps its id"""),
        ("swapped", r"""returned the id '.+' for record '.+': a record keeps its id, and `__row`"""),
        ("own_column", r"""returned the column 'score': put what is your own into 'metadata'"""),
        ("without_text", r"""returned rows without 'text': return every column"""),
        ("without_metadata", r"""returned rows without 'metadata': return every column"""),
        ("number_for_text", r"""column 'text' holds int64: it must be text"""),
        ("struct_for_metadata", r"""column 'metadata' holds struct<a: int64>: it must be JSON text or null"""),
        ("no_json", r"""metadata for record '.+' that are not the JSON text of an object: 'a=1'"""),
        ("no_object", r"""metadata for record '.+' that are not the JSON text of an object: '\[1\]'"""),
    ],
)
@pytest.mark.parametrize("splits", [False, True], ids=["one to one", "splits"])
def test_a_batch_function_that_breaks_its_contract_is_named(
    batch_of: MakeBatch, function: str, words: str, splits: bool
) -> None:
    with pytest.raises(StageContractError, match=rf'^stage "{function}".*{words}'):
        process_safely(batch_stage(function, splits=splits), batch_of(["a", "b"]), function)


def test_columns_in_other_types_and_order_are_those_given(batch_of: MakeBatch) -> None:
    before = batch_of(["a", "b"])
    answer = process_safely(batch_stage("large"), before, "large")
    assert answer.rows.column("text").equals(pa.array(["a", "b"]))
    assert answer.rows.column("metadata").equals(pa.array(['{"a":1}', '{"a":1}']))
    assert process_safely(batch_stage("emptied"), before, "emptied").rows.column("metadata").null_count == 2
    turned = process_safely(batch_stage("backwards"), before, "backwards")
    assert turned.rows.select(before.rows.schema.names).to_pylist() == before.rows.to_pylist()


def test_the_lineage_outlives_a_function_that_gives_only_its_own_columns_back(batch_of: MakeBatch) -> None:
    edited = process_safely(batch_stage("upper"), batch_of(["a", "B"]), "upper")
    answer = process_safely(batch_stage("backwards"), edited, "backwards")
    assert answer.rows.column(LINEAGE).to_pylist() == ['{"edited_by":["upper"]}', None]


@pytest.mark.parametrize(("function", "kind"), [("list_for_metadata", "list"), ("text_for_metadata", "str")])
def test_metadata_of_a_record_are_a_dict(batch_of: MakeBatch, function: str, kind: str) -> None:
    stage = build_stage(map_records(f"record_functions:{function}"), MODULES)
    with pytest.raises(StageContractError, match=rf'^stage "{function}".*returned {kind} as metadata for record'):
        process_safely(stage, batch_of(["a"]), function)


def test_numbers_of_numpy_are_numbers_of_the_metadata(batch_of: MakeBatch) -> None:
    stage = build_stage(map_records("record_functions:numbers_of_numpy"), MODULES)
    answer = process_safely(stage, batch_of(["a"]), "numbers_of_numpy")
    assert answer.rows.column("metadata").to_pylist() == ['{"score":0.5,"rank":3,"of":[0,1]}']


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("two", "missing a required argument: 'other'"),
        ("none", "too many positional arguments"),
        ("Made", "too many positional arguments"),
        ("named", "too many positional arguments"),
    ],
)
@pytest.mark.parametrize("made", [map_records, map_batches], ids=["records", "batches"])
def test_a_function_without_one_argument_is_refused_first(
    made: Callable[[str], Stage], function: str, words: str
) -> None:
    text = """
        def two(record, other): return record
        def none(): return None
        class Made:
            def __call__(self, record): return record
        def named(*, record): return record
        def good(record, more=1, *rest, **others): return record
    """
    modules = {"takers": textwrap.dedent(text)}
    with pytest.raises(PipelineError, match=rf"takers:{function} cannot be called with one argument.*\({words}\)$"):
        preflight(Pipeline("p", "d", (made(f"takers:{function}"),), modules=modules))
    preflight(Pipeline("p", "d", (made("takers:good"),), modules=modules))
