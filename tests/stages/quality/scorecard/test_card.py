"""Scorecard, decisions after the fact, and training a tokenizer: over real files and a real dataset."""

from __future__ import annotations

import pathlib

import numpy as np
import orjson
import pytest

from headrace.pipeline.errors import PipelineError
from headrace.stages import library as stages
from headrace.stages.quality.scorecard.scorecard import Facts, to_html, to_markdown
from headrace.stages.runtime.build import build_stage
from headrace.stages.tokenizer.training import train_tokenizer

WORDS = [
    "water",
    "wheel",
    "mill",
    "channel",
    "stream",
    "gate",
    "turbine",
    "valley",
    "stone",
    "barley",
    "horse",
    "ledger",
]


def facts(**numbers: float) -> Facts:
    return Facts(
        dataset="file:///data/<script>alert(1)</script>",
        numbers={"records": 10, "kept_share": 0.4, "padding_share": 0.01, **numbers},
        tokens=np.array([1, 5, 300, 4096]),
        languages={"en": 3, "de": 1},
        reasons={"gopher-quality/too few words": 5, "language/<b>": 1},
        edited={"c4-quality": 2},
        counters={"c4-quality/<i>dropped": 31},
        title="<i>mine</i>",
        version=3,
        stages=(("read", 0), ("gopher-quality", 5), ("language", 1)),
        scores={"perplexity.perplexity": np.array([1.0, 2.0, np.inf])},
        samples={"gopher-quality/too few words": [("<r1>", "<script>alert(2)</script>\n\nshort")]},
    )


def test_a_scorecard_is_one_page_that_escapes_what_it_shows() -> None:
    page = to_html(facts())
    assert "<script>" not in page
    assert "language/<b>" not in page
    assert "http" not in page
    assert page.count("<svg") == 2
    assert page.count("<section>") == 8
    assert "<em>c4-quality</em> &lt;i&gt;dropped</span>" in page
    assert "<span>31</span>" in page
    assert "40.00%" in page
    assert "<i>mine" not in page
    assert "&lt;script&gt;alert(2)&lt;/script&gt;\nshort<cite>&lt;r1&gt;</cite>" in page


def test_a_scorecard_shows_how_many_records_each_stage_let_through() -> None:
    page = to_html(facts(kept=4))
    assert "&minus;5 (50.0%)" in page
    assert "&minus;1 (10.0%)" in page
    assert "duplicates" not in page
    assert "1 (10.0%)</span></div><div" in page
    assert "duplicates" in to_html(facts(kept=3, duplicate=1))


def test_a_scorecard_of_a_dataset_without_records_is_a_page() -> None:
    nothing = Facts("file:///d", {"records": 0, "kept_share": 0.0}, np.zeros(0, np.int64), {}, {}, {})
    assert "<section>" in to_html(nothing)
    assert to_markdown(nothing).startswith("# file:///d")


def test_a_scorecard_in_markdown_names_each_reason() -> None:
    text = to_markdown(facts())
    assert "| kept_share | 40.00% |" in text
    assert "| gopher-quality/too few words | 5 |" in text
    assert "<script>" not in text


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "in.jsonl"
    lines = [" ".join(np.random.default_rng(number).choice(WORDS, 30)) for number in range(400)]
    path.write_bytes(b"".join(orjson.dumps({"text": line}) + b"\n" for line in lines))
    return path


def test_a_trained_tokenizer_is_used_by_name_of_its_file(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    made = train_tokenizer(stages.read_jsonl(str(source)), tmp_path / "out" / "tokenizer.json", vocab_size=400)
    assert made.records == 400
    assert made.vocab_size <= 400
    stage = stages.tokenize(made.path)
    assert stage.identity["eos_id"] == 0
    build_stage(stage, {})


def test_the_sample_is_a_share_of_the_source_each_time(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    paths = [tmp_path / name / "tokenizer.json" for name in "ab"]
    read = stages.read_jsonl(str(source))
    made = [train_tokenizer(read, path, vocab_size=300, sample_bytes=20_000) for path in paths]
    assert 10_000 < made[0].sample_bytes < 40_000
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_training_on_nothing_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"\n")
    with pytest.raises(PipelineError, match="no text to train on"):
        train_tokenizer(stages.read_jsonl(str(tmp_path / "in.jsonl")), tmp_path / "tokenizer.json")
