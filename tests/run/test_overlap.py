"""Documents cut with an overlap: written, verified, made again, exported and loaded, with each token a label once."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from headrace.loader.loader import Loader
from headrace.store.datasets.dataset import Dataset
from headrace.store.datasets.verify import _overlap_problems
from tests.kits.run.command_server import ended
from tests.kits.run.small_tokenizer import small_tokenizer

PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_jsonl, tokenize, write_tokens


def build(output: str, overlap: int = 0) -> Pipeline:
    tokens = tokenize("TOKENIZER")
    sink = write_tokens(tokens, seq_len=32, overlap=overlap)
    return Pipeline.chain("cut", output, read_jsonl("in.jsonl"), tokens, sink)
"""
OVERLAP = 5


def headrace(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "headrace.cli", *arguments]
    return ended(command, cwd=home, timeout=300)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dataset `cut`, packed with an overlap, and `plain`, packed without."""
    folder = tmp_path_factory.mktemp("overlap")
    (folder / "cut.py").write_text(PIPELINE.replace("TOKENIZER", small_tokenizer()))
    texts = ["".join(f"{number * word} " for word in range(number * 3)) for number in range(30)]
    lines = [json.dumps({"id": f"r{number}", "text": text}) for number, text in enumerate(texts)]
    (folder / "in.jsonl").write_text("\n".join(lines))
    for name, overlap in (("cut", OVERLAP), ("plain", 0)):
        done = headrace(folder, "run", "cut.py", "-p", f"output={name}", "-p", f"overlap={overlap}", "--json")
        assert done.returncode == 0, done.stderr
    return folder


def shard_of(dataset: Path) -> Path:
    (shard,) = json.loads((dataset / "manifest.json").read_text())["shards"]
    return dataset / shard["tokens"]


def documents_of(dataset: Path) -> list[list[int]]:
    """The documents as docs/reference/format.md says to read them."""
    arrays = load_file(shard_of(dataset))
    repeated = arrays.get("piece_repeated", np.zeros_like(arrays["piece_start"]))
    (shard,) = json.loads((dataset / "manifest.json").read_text())["shards"]
    found: list[list[int]] = [[] for _ in range(pq.read_table(dataset / shard["documents"]).num_rows)]
    names = ("piece_sequence", "piece_start", "piece_length", "piece_document")
    for sequence, start, length, document, again in zip(*(arrays[name] for name in names), repeated, strict=True):
        found[document] += arrays["tokens"][sequence, start + again : start + length].tolist()
    return found


def test_the_documents_are_those_of_a_dataset_without_overlap(home: Path) -> None:
    assert documents_of(home / "cut") == documents_of(home / "plain")
    assert "piece_repeated" not in load_file(shard_of(home / "plain"))
    assert set(load_file(shard_of(home / "cut"))["piece_repeated"].tolist()) == {0, OVERLAP}
    counts = [Dataset.open(str(home / name)).balance().counts for name in ("cut", "plain")]
    assert counts[0].tokens == counts[1].tokens
    assert counts[0].sequences > counts[1].sequences


def test_a_dataset_with_overlap_is_sound_and_can_be_made_again(home: Path) -> None:
    verified = headrace(home, "dataset", "verify", "cut")
    assert verified.returncode == 0, verified.stdout
    rebuilt = headrace(home, "dataset", "rebuild", "--trust-code", "cut", shard_of(home / "cut").stem)
    assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr


def test_each_token_but_a_documents_first_is_a_label_once(home: Path) -> None:
    documents = documents_of(home / "cut")
    found: dict[int, list[int]] = {}
    labelled: dict[int, list[int]] = {}
    for batch in Loader(str(home / "cut"), batch_size=4, last="pad"):
        assert np.array_equal(batch["loss_mask"], batch["labels"] != -100)
        labels, tokens = batch["labels"].reshape(-1), batch["tokens"].reshape(-1)
        bounds = batch["cu_seqlens"].tolist()
        for (_, document), begin, end in zip(batch["documents"].tolist(), bounds, bounds[1:], strict=False):
            if document < 0:
                assert (labels[begin:end] == -100).all()
                continue
            wanted = labels[begin:end] != -100
            at = np.flatnonzero(wanted) + begin
            assert np.array_equal(labels[at], tokens[at + 1])
            found.setdefault(document, []).append(int(wanted.sum()))
            labelled.setdefault(document, []).extend(labels[begin:end][wanted].tolist())
    for document, tokens_of in enumerate(documents):
        assert sum(found.get(document, [])) == max(0, len(tokens_of) - 1)
        assert sorted(labelled.get(document, [])) == sorted(tokens_of[1:])


def test_an_export_holds_each_token_once(home: Path) -> None:
    for name in ("cut", "plain"):
        done = headrace(home, "dataset", "export", name, f"{name}-out", "--format", "parquet")
        assert done.returncode == 0, done.stderr
    tables = [pq.read_table(next((home / f"{name}-out").glob("*.parquet"))) for name in ("cut", "plain")]
    assert tables[0].column("input_ids").to_pylist() == tables[1].column("input_ids").to_pylist()


def test_a_piece_that_does_not_repeat_what_it_says_is_found(home: Path) -> None:
    arrays = load_file(shard_of(home / "cut"))
    starts = arrays["piece_sequence"].astype(np.int64) * 32 + arrays["piece_start"]
    names = ("piece_document", "piece_length", "piece_repeated")
    document, length, repeated = (arrays[name].astype(np.int64) for name in names)
    line = arrays["tokens"].reshape(-1)
    assert list(_overlap_problems(line, document, starts, length, repeated, "k")) == []
    changed = line.copy()
    changed[starts[np.flatnonzero(repeated)[0]]] += 1
    assert "1 piece does not begin" in next(_overlap_problems(changed, document, starts, length, repeated, "k"))
    too_many = np.where(np.arange(len(repeated)) == 0, 3, repeated)
    assert "1 piece does not begin" in next(_overlap_problems(line, document, starts, length, too_many, "k"))


def test_an_overlap_as_long_as_a_sequence_is_refused(home: Path) -> None:
    done = headrace(home, "run", "cut.py", "-p", "output=x", "-p", "overlap=32")
    assert done.returncode != 0
    assert "overlap is 32; it must be an integer from 0 to 31" in done.stderr
