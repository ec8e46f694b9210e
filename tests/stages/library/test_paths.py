"""Where a declaration takes the name of a file it takes a `pathlib.Path`, as what the name is as text."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.pipeline import Pipeline, PipelineError, Stage
from headrace.stages import library
from tests.kits.run.small_tokenizer import small_tokenizer

LISTS: list[Callable[[str | os.PathLike[str]], object]] = [
    library.read,
    library.read_jsonl,
    library.read_parquet,
    library.read_csv,
    library.read_files,
    library.read_spool,
    library.url_filter,
    lambda path: library.dedup(folder=path),
    lambda path: library.perplexity(path, tag=True),
    lambda path: library.onnx_classifier(path, tokenizer=path, tag=True),
]


@pytest.mark.parametrize("declare", LISTS)
def test_a_path_is_what_its_text_is(declare: Callable[[str | os.PathLike[str]], object], tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text("example.org\n")
    assert declare(file) == declare(str(file))


@pytest.mark.parametrize("declare", [*LISTS, library.dedup_passages, library.tokenize, library.decontaminate])
def test_the_home_of_nobody_is_a_folder_like_another(declare: Callable[[str | os.PathLike[str]], object]) -> None:
    with contextlib.suppress(PipelineError):
        declare("~nobody-here/a file")


def test_a_tokenizer_is_named_by_a_path() -> None:
    file = Path(small_tokenizer())
    assert library.tokenize(file) == library.tokenize(str(file))
    assert library.write_tokens(file) == library.write_tokens(str(file))


def test_several_inputs_are_those_of_each(tmp_path: Path) -> None:
    given = [tmp_path / "a, b.jsonl", f"{tmp_path}/c.jsonl,{tmp_path}/d.jsonl"]
    assert library.read(given).parameters["input"] == [f"{tmp_path}/{name}.jsonl" for name in ("a, b", "c", "d")]
    with pytest.raises(PipelineError, match="input is 5; it must be a string"):
        library.read(["a", 5])  # type: ignore[list-item]


def test_a_chain_writes_to_a_path(tmp_path: Path) -> None:
    stages = (library.read("a"), library.write_documents())
    assert Pipeline.chain("p", tmp_path, *stages) == Pipeline.chain("p", str(tmp_path), *stages)


def test_dedup_is_given_to_a_chain_as_it_comes() -> None:
    ends: list[Stage] = [library.read("a"), library.write_documents()]
    flat = Pipeline.chain("p", "out", ends[0], *library.dedup(), ends[1])
    assert Pipeline.chain("p", "out", ends[0], library.dedup(), ends[1]) == flat
