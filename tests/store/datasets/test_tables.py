"""The tables of a dataset as Arrow: each row once, with one set of columns, without what was retracted."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace import Pipeline, RunResult, filter_records, read, tokenize, write_documents, write_jsonl, write_tokens
from headrace.cli.main import invoke
from headrace.store.datasets import Dataset, tables
from headrace.store.datasets.tables import read_rows
from tests.kits.run.small_tokenizer import small_tokenizer

TEXTS = [f"Text number {number} says what it has to say." for number in range(40)]
EVEN = [str(number) for number in range(0, len(TEXTS), 2)]


def is_even(record: dict[str, str]) -> bool:
    return int(record["id"]) % 2 == 0


def run(folder: Path, *stages: headrace.Stage) -> RunResult:
    lines = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("\n".join([*lines, "no record", ""]))
    source = read(str(folder / "corpus.jsonl"))
    return headrace.run(Pipeline.chain("tables", str(folder / "out"), source, *stages), progress=False)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    tokens = tokenize(small_tokenizer())
    folder = tmp_path_factory.mktemp("tables")
    return run(folder, filter_records(is_even), tokens, write_tokens(tokens, seq_len=64))


def test_each_record_is_in_one_table(done: RunResult) -> None:
    documents, verdicts, quarantine = (
        table.read_all() for table in (done.documents(), done.verdicts(), done.quarantine())
    )
    assert sorted(documents["id"].to_pylist(), key=int) == EVEN
    reasons = dict(zip(verdicts["id"].to_pylist(), verdicts["reason"].to_pylist(), strict=True))
    assert [reasons[str(number)] for number in range(1, len(TEXTS), 2)] == ["function returned False"] * len(EVEN)
    assert set(verdicts["verdict"].to_pylist()) == {"filtered", "quarantined"}
    assert quarantine["raw"].to_pylist() == [b"no record"]
    counts = done.balance.counts
    assert (documents.num_rows, counts.quarantined) == (counts.kept, quarantine.num_rows)


def test_an_opened_dataset_gives_the_same(done: RunResult) -> None:
    opened = headrace.open_dataset(done.dataset)
    assert opened.documents().read_all() == done.documents().read_all()
    assert opened.verdicts().read_all() == done.verdicts().read_all()
    assert opened.quarantine().read_all() == done.quarantine().read_all()


def test_pandas_polars_and_duckdb_take_it_by_arrows_own_interface(done: RunResult) -> None:
    reader = done.documents()
    again = pa.RecordBatchReader.from_stream(reader)
    assert hasattr(reader, "__arrow_c_stream__")
    assert again.read_all().num_rows == len(EVEN)


def test_texts_are_among_the_documents_columns(tmp_path: Path) -> None:
    done = run(tmp_path, filter_records(is_even), write_documents())
    rows = done.documents().read_all()
    assert sorted(rows["text"].to_pylist()) == sorted(TEXTS[::2])
    assert headrace.open_dataset(done.dataset).documents().read_all() == rows
    with pytest.raises(headrace.LoaderError, match=r"has documents and no tokens: open_dataset\(uri\)"):
        headrace.Loader(done.dataset, batch_size=1)


@pytest.mark.parametrize("sink", ["tokens", "documents", "lines"])
def test_what_was_retracted_is_left_out(tmp_path: Path, sink: str) -> None:
    tokens = tokenize(small_tokenizer())
    ends = {"tokens": [tokens, write_tokens(tokens, seq_len=64)], "documents": [write_documents()],
            "lines": [write_jsonl()]}  # fmt: skip
    done = run(tmp_path, *ends[sink])
    assert invoke(["dataset", "retract", str(tmp_path / "out"), "3", "5"]) == 0
    assert sorted(set(map(str, range(len(TEXTS)))) - set(done.documents().read_all()["id"].to_pylist())) == ["3", "5"]
    first = Dataset.open(done.dataset).of_version(1)
    assert read_rows(first, "documents").read_all().num_rows in (len(TEXTS), len(TEXTS) - 2)


def test_a_column_that_one_shard_has_is_null_in_the_others(done: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset.open(done.dataset).of_version()
    keys = [item.key for shard in dataset.shards if (item := shard.object("documents"))]
    other = pa.schema([*tables.sidecar_schema(dataset.store, keys[0]), pa.field("score.x.y", pa.float64())])
    monkeypatch.setattr(tables, "sidecar_schema", lambda *_: other)
    rows = read_rows(dataset, "documents").read_all()
    assert rows["score.x.y"].null_count == rows.num_rows == len(EVEN)
