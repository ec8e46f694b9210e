"""A tokenizer.json written anew for gigatoken says the same."""

import os
import pathlib
import subprocess
import sys
from typing import Any

import orjson
import pytest
from gigatoken.gigatoken_rs import load_hf_json
from hypothesis import given, strategies as st

from headrace.stages.tokenizer import minified as module
from headrace.stages.tokenizer.minified import minified_of, minify, preload, share
from headrace.stages.tokenizer.vocabulary import _read, keep_parsed, resolve_tokenizer

TEXTS = ["", "don't  DON'T 12 1,000.5\r\n", "漢字かな交じり文。", "e\u0301 שלום", '\\ " \x7f <｜end▁of▁sentence｜>']  # noqa: RUF001


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_minified", {})


def test_a_tokenizer_is_the_same_but_for_merges_that_are_pairs(deepseek: pathlib.Path) -> None:
    data = deepseek.read_bytes()
    said = orjson.loads(data)
    written = minify(said)
    assert [text.tolist() for text in map(load_hf_json(written).encode, TEXTS)] == [
        text.tolist() for text in map(load_hf_json(data).encode, TEXTS)
    ]
    said["model"]["merges"] = [merge.split(" ") for merge in said["model"]["merges"]]
    assert orjson.loads(written) == said


@given(st.lists(st.text(st.sampled_from('ab \\"\x7f漢\n,[]'), max_size=6) | st.lists(st.text("ab"), max_size=2)))
def test_merges_that_are_no_two_words_stay(merges: list[Any]) -> None:
    said = {"model": {"merges": merges, "vocab": {}}}
    plain = merges and all(isinstance(merge, str) and merge.count(" ") == 1 and "\x7f" not in merge for merge in merges)
    expected = [merge.split(" ") for merge in merges] if plain else merges
    assert orjson.loads(minify(said)) == {"model": {"merges": expected, "vocab": {}}}


def test_a_file_without_merges_or_anything_else_is_written_too() -> None:
    assert minify({"model": {}}) == b'{"model":{"merges":[]}}'


def test_what_is_shared_is_found_by_another_process_while_it_is_open() -> None:
    descriptor, path = share(b"{}")
    ask = (
        "import sys; from headrace.stages.tokenizer import minified; "
        "minified.preload(sys.argv[1], 'a'); print(minified.minified_of('a'), minified.minified_of('b'))"
    )
    asked = [sys.executable, "-c", ask, path]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "b'{}' None\n"
    os.close(descriptor)
    preload(path, "a")
    assert minified_of("a") is None


def test_only_what_is_read_within_is_kept(tmp_path: pathlib.Path) -> None:
    small = tmp_path / "tokenizer.json"
    small.write_bytes(orjson.dumps({"model": {"vocab": {"a": 0}, "merges": []}}))
    with keep_parsed() as kept:
        sha256 = resolve_tokenizer(str(small), None).sha256
        assert kept == {sha256: {"model": {"vocab": {"a": 0}, "merges": []}}}
    assert _read.cache_info().currsize == 0
    kept.clear()
    resolve_tokenizer(str(small), None)
    assert not kept
