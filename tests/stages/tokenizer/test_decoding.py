"""Tokens as the texts that they were made of."""

from __future__ import annotations

import hashlib
import pathlib
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from headrace.pipeline.errors import PipelineError
from headrace.stages.tokenizer.decoding import make_decoder
from headrace.stages.tokenizer.engines import tokenizers_encoder

TEXTS = ["A mill.", "", "  two  spaces\n\ttab", "über 漢字 🙂 naïve — 3,000", "x" * 500, "<think>17</think>"]


def decoded(path: pathlib.Path, texts: list[str], end: int | None = None) -> list[str]:
    data = path.read_bytes()
    offsets, tokens = tokenizers_encoder(data)(pa.array(texts), end)
    found = make_decoder(str(path), hashlib.sha256(data).hexdigest())(tokens, np.diff(offsets).astype(np.int64))
    return list(map(str, found.to_pylist()))


def test_bytes_come_back_as_they_were_and_special_tokens_do_not(deepseek: pathlib.Path) -> None:
    parsed = orjson.loads(deepseek.read_bytes())
    end = next(token["id"] for token in parsed["added_tokens"] if token["special"])
    assert decoded(deepseek, TEXTS, end) == TEXTS
    assert decoded(deepseek, []) == []


def test_half_a_character_and_an_unknown_token_are_no_error(deepseek: pathlib.Path) -> None:
    data = deepseek.read_bytes()
    decode = make_decoder(str(deepseek), hashlib.sha256(data).hexdigest())
    vocabulary = orjson.loads(data)["model"]["vocab"]
    half = vocabulary["ð"]
    assert decode(np.array([half, 1 << 30, vocabulary["A"]], np.uint32), np.array([1, 2])).to_pylist() == ["�", "A"]


def test_another_kind_of_tokenizer_is_decoded_by_its_library(tmp_path: pathlib.Path) -> None:
    model: dict[str, Any] = {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "mill": 2}, "unk_token": "[UNK]"}
    path = tmp_path / "tokenizer.json"
    path.write_bytes(orjson.dumps({"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}}))
    assert decoded(path, ["a mill", "", "mill a"]) == ["a mill", "", "mill a"]


def test_a_file_that_changed_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(PipelineError, match="has changed"):
        make_decoder(str(tmp_path / "tokenizer.json"), "0" * 64)
