"""Every block of Python and of TOML in README and docs runs as it stands."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import Pipeline, read, run, tokenize, write_documents, write_tokens
from headrace.chaos.live.scenario.scenario_file import scenario_of
from tests.kits.loader.recipes import PAGE as RECIPES
from tests.kits.run.small_tokenizer import small_tokenizer
from tests.kits.stages.models import write_arpa, write_fasttext, write_token_onnx

ROOT = Path(__file__).resolve().parents[2]
#: But the recipes for trainers, which tests/loader/test_recipes.py runs with the trainers.
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {RECIPES})]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: What a page's reader has already: for each block that begins so, what stands before it and what follows it.
READERS: dict[str, tuple[str, str]] = {
    "from headrace.loader import Loader\n": (
        """
trained = []
def train_step(tokens, labels):
    trained.append(tokens.shape)
""",
        "assert trained and checkpoint['position'] > 0",
    ),
    "from headrace.loader import Loader, TorchLoader": (
        "checkpoint = {}",
        "assert checkpoint['loader']['position'] > 0",
    ),
    "import duckdb": ("", "assert long.height == 200 and counts[0][1] == 200"),
    "read_jsonl(": ("from headrace import read_jsonl, tokenize\ntokens = TOKENIZER", ""),
    "from headrace import c4_quality": ("texts = ['A text. ' * 40]", "assert judgement.stage"),
    "import pyarrow.compute": ("", "assert lost.num_rows == 1"),
    "decontaminate(": ("from headrace import decontaminate", ""),
    "perplexity(": ("from headrace import fasttext_classifier, onnx_classifier, perplexity", ""),
    "from headrace import Pipeline, dedup": (
        "from headrace import tokenize\ninput, output, tokens = 'corpus', 'out', tokenize(TOKENIZER)",
        "",
    ),
    "from headrace import Pipeline, map_records": ("", "assert build('corpus', 'out', TOKENIZER).version"),
    "map_records(": (
        """
from headrace import filter_records, map_batches, map_records
def sentences(record):
    return [record]
def is_long(record):
    return True
def function(batch):
    return batch
""",
        "",
    ),
    "command(": ("from headrace import command", ""),
    "from collections import defaultdict": ("", "assert tokens_of_first.size > 0"),
}


def blocks(kind: str) -> list[tuple[str, str]]:
    """Each block of a language: the page with the line at which the block begins, and its text."""
    found: list[tuple[str, str]] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match[1] == kind:
                line = text.count("\n", 0, match.start()) + 1
                found.append((f"{page.relative_to(ROOT)}:{line}", match[2]))
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the pages name: a dataset, models, commands, modules."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "corpus").mkdir()
    lines = [
        json.dumps({"id": str(n), "text": f"Text number {n} is long enough to be kept. " * 40}) for n in range(200)
    ]
    (folder / "corpus" / "a.jsonl").write_text("\n".join(lines) + "\n")
    tokens = tokenize(small_tokenizer())
    sink = write_tokens(tokens, seq_len=256)
    report = run(
        Pipeline.chain("plain", str(folder / "data" / "plain"), read(str(folder / "corpus")), tokens, sink),
        progress=False,
    )
    assert report.state == "completed"
    texts = Pipeline.chain("texts", str(folder / "data" / "texts"), read(str(folder / "corpus")), write_documents())
    assert run(texts, progress=False).state == "completed"
    shard = next((folder / "data" / "plain" / "shards").rglob("*.safetensors"))
    (folder / "shards" / "1").mkdir(parents=True)
    shutil.copy(shard, folder / "shards" / "1" / "0123....safetensors")
    (folder / "shards" / "...").mkdir()
    table = pa.table({"id": ["a", "b"], "score.gopher-quality.words": [50, 500]})
    pq.write_table(table, folder / "shards" / "..." / "<hash>.documents.parquet")
    (folder / "models").mkdir()
    write_arpa(folder / "models" / "en.arpa.bin", ["a text of words"])
    write_fasttext(folder / "models" / "quality.bin", {"text": [1.0, 0.0]}, ["hq", "lq"])
    write_token_onnx(folder / "models" / "edu.onnx", np.ones((8, 2), np.float32))
    shutil.copy(small_tokenizer(), folder / "models" / "tokenizer.json")
    (folder / "suites").mkdir()
    question = "How many wheels have seven red wagons that a baker of the town bought on a Monday?"
    for name, asked, told in (("gsm8k", "question", "answer"), ("own", "query", "gold")):
        (folder / "suites" / f"{name}.jsonl").write_text(json.dumps({asked: question, told: "28"}) + "\n")
    pq.write_table(pa.table({"question": [question], "answer": ["28"]}), folder / "suites" / "mmlu.parquet")
    (folder / "my_package").mkdir()
    (folder / "my_package" / "filters.py").write_text("def tidy(record):\n    return record\n")
    (folder / "clean.py").write_text("")
    (folder / "clean-batches").write_text("#!/bin/sh\n")
    (folder / "clean-batches").chmod(0o755)
    return folder


@pytest.mark.parametrize(("place", "text"), [pytest.param(*block, id=block[0]) for block in blocks("python")])
def test_a_block_of_python_runs(place: str, text: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (known,) = [reader for start, reader in READERS.items() if text.startswith(start)]
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))
    body = text.replace("file:///path/to/data/plain", f"file://{home}/data/plain").replace('"cuda"', '"cpu"')
    script = home / f"{place.replace('/', '_').replace(':', '_')}.py"
    script.write_text(f"TOKENIZER = {small_tokenizer()!r}\n{known[0]}\n{body}\n{known[1]}\n")
    runpy.run_path(str(script))


def test_each_reader_has_a_block() -> None:
    texts = [text for _, text in blocks("python")]
    assert [start for start in READERS if not any(text.startswith(start) for text in texts)] == []


@pytest.mark.parametrize(("place", "text"), [pytest.param(*block, id=block[0]) for block in blocks("toml")])
def test_a_block_of_toml_is_read(place: str, text: str) -> None:
    table: dict[str, Any] = tomllib.loads(text)
    assert table
    if "fault" in table:
        assert len(scenario_of(table, place).faults) == len(table["fault"])
