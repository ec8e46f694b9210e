from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage
from headrace.pipeline.validation import validate
from headrace.stages import library
from headrace.stages.runtime.errors import InputError
from headrace.stages.shipping.preview_run import preview
from headrace.stages.sources.objects.inputs import first_named
from headrace.stages.sources.objects.preflight_check import preflight
from headrace.stages.tokenizer.engine_choice import engine_names

ROOT = pathlib.Path(__file__).parents[3]


def drop_b(record: dict[str, Any]) -> dict[str, Any] | None:
    return None if record["text"] == "b" else {**record, "text": record["text"] + "!"}


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_importing_the_library_is_light() -> None:
    heavy = "('pyarrow', 'numpy', 'gigatoken', 'awkward', 'tokenizers')"
    names = "headrace.stages.library.stages, headrace.stages.sources.objects.preflight_check"
    code = f"import sys, {names}; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: library.read_jsonl(""), 'stage "read": input is'),
        (lambda: library.read_jsonl("cached::https://host/x"), "is no scheme"),
        (lambda: library.read_jsonl("x", batch_records=0), 'stage "read": batch_records is 0; it must be an integer'),
        (lambda: library.read_jsonl("x", text_key="id"), "text_key and id_key are both 'id'"),
        (lambda: library.write_tokens("deepseek", seq_len=True), 'stage "write": seq_len is True'),
        (lambda: library.write_tokens("deepseek", seq_len=1), 'stage "write": seq_len is 1'),
        (lambda: library.write_tokens(library.read_jsonl("x")), "'read' is no tokenize stage"),
        (lambda: library.gopher_quality(bullet_lines_max=2.0), 'stage "gopher-quality": bullet_lines_max is 2.0'),
        (lambda: library.gopher_quality(words_min="5"), "words_min is '5'"),  # type: ignore[arg-type]
        (lambda: library.c4_quality(lorem_ipsum=1), "lorem_ipsum is 1"),  # type: ignore[arg-type]
        (lambda: library.map_records(lambda record: record), "at the top level"),
        (lambda: library.map_records("nonsense"), "not of the form"),
    ],
)
def test_a_bad_parameter_is_named_when_it_is_declared(declare: Callable[[], Stage], message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        declare()
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["plain", "fineweb"])
def test_an_example_declares_a_pipeline_that_can_run(name: str, write_jsonl: Callable[..., pathlib.Path]) -> None:
    path = write_jsonl({"text": "a"})
    pipeline = example(name).build(str(path), "file:///tmp/x")
    validate(pipeline)
    preflight(pipeline)
    assert Pipeline.from_dict(pipeline.to_dict()) == pipeline


def test_where_the_tokenizer_lies_is_no_part_of_the_version(deepseek: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for file in (deepseek, deepseek.with_name("tokenizer_config.json")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    versions = {
        Pipeline.chain("x", "d", library.tokenize(str(path))).version() for path in (deepseek, tmp_path, "deepseek")
    }
    assert len(versions) == 1
    assert Pipeline.chain("x", "d", library.tokenize("deepseek", eos=None)).version() not in versions


def test_preflight_names_a_glob_that_matches_nothing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="no file matches"):
        preflight(example("plain").build(str(tmp_path / "*.jsonl"), "x"))


@pytest.mark.parametrize(
    ("given", "output", "refused"),
    [
        ("in", "in/out", True),
        ("in", "in", True),
        ("in/**/*.jsonl.zst", "in/out", True),
        ("in/**/*", "in/out", True),
        ("in/*.jsonl", "in/out", False),
        ("in/*.jsonl", "in", False),
        ("in/a.jsonl", "in/out", False),
        ("in", "in-2", False),
        ("in", "out", False),
        ("in", "in/.out", False),
    ],
)
def test_preflight_refuses_an_output_that_the_next_run_would_read(
    write_jsonl: Callable[..., pathlib.Path], given: str, output: str, refused: bool
) -> None:
    folder = write_jsonl({"text": "a"}, name="a.jsonl").parent
    (folder / "in" / "out").mkdir(parents=True)
    (folder / "a.jsonl").rename(folder / "in" / "a.jsonl")
    stages = (library.read(str(folder / given)), library.write_jsonl())
    found = Pipeline.chain("x", f"file://{folder}/{output}", *stages)
    if refused:
        with pytest.raises(PipelineError, match=r'stage "read": input .* would read its own output; put the output'):
            preflight(found)
    else:
        preflight(found)


def test_buckets_are_told_apart_by_their_endpoints() -> None:
    names = ("shards/1/0.jsonl.zst",)
    globs = ("**/*.jsonl.zst",)
    assert first_named("s3://b/data?endpoint=http://x", globs, "s3://b/data/out?endpoint=http://x", names)
    assert first_named("s3://b", globs, "s3://b/out?endpoint=http://x&region=r", names)
    assert not first_named("s3://b/data?endpoint=http://x", globs, "s3://b/data/out?endpoint=http://y", names)
    assert not first_named("s3://b/data", globs, "s3://c/data/out", names)
    assert not first_named("s3://b/data", globs, "file:///b/data/out", names)


def test_preflight_refuses_a_sink_for_another_tokenizer(write_jsonl: Callable[..., pathlib.Path]) -> None:
    stages = (
        library.read_jsonl(str(write_jsonl({"text": "a"}))),
        library.tokenize("deepseek", eos=None),
        library.write_tokens("deepseek"),
    )
    with pytest.raises(PipelineError, match=r'sink "write" and stage "tokenize" differ in eos_id'):
        preflight(Pipeline.chain("x", "d", *stages))


def test_two_sinks_of_tokens_are_refused() -> None:
    tokens = library.tokenize("deepseek")
    chain = Pipeline.chain("x", "d", library.read_jsonl("/in"), tokens, library.write_tokens(tokens))
    longer = library.write_tokens(tokens, seq_len=64, name="longer").fed_by("tokenize")
    with pytest.raises(PipelineError, match=r"sinks 'write' and 'longer' both write tokens.* a dataset of its own"):
        validate(Pipeline("x", "d", (*chain.stages, longer)))


def test_preflight_refuses_a_function_that_is_not_there(write_jsonl: Callable[..., pathlib.Path]) -> None:
    stage = library.map_records("headrace.stages.functions.functions:nothing")
    with pytest.raises(PipelineError, match="has no 'nothing'"):
        preflight(Pipeline.chain("x", "d", stage))


def test_a_preview_shows_what_each_stage_removed(write_jsonl: Callable[..., pathlib.Path]) -> None:
    sys.modules["pipeline_under_test"] = sys.modules[__name__]
    path = write_jsonl(*({"id": text, "text": text} for text in "ab"), b"{\n", *({"text": text} for text in "bcd"))
    tokens = library.tokenize("deepseek")
    pipeline = Pipeline.chain(
        "x",
        "d",
        library.read_jsonl(str(path), batch_records=2),
        library.map_records("pipeline_under_test:drop_b"),
        tokens,
        library.write_tokens(tokens),
    )
    try:
        found = preview(pipeline, 5)
    finally:
        del sys.modules["pipeline_under_test"]
    assert (found.records_read, found.kept, found.filtered, found.quarantined) == (5, 2, 2, 1)
    removed = found.removed["drop_b/function returned None"]
    assert removed.count == 2
    assert {(sample.id[-2:], sample.text) for sample in removed.samples} == {("b", "b"), ("#3", "b")}
    assert found.removed["read/malformed JSON"].samples[0].text == "{"
    assert [sample.text for sample in found.samples] == ["a", "c"]
    assert found.edited == {"drop_b": 2}
    assert found.tokens == 6
    assert found.tokenizer_engine == engine_names()[0]


def test_the_cut_of_a_warc_is_declared_only_where_it_differs() -> None:
    assert "fragment_bytes" not in library.read_warc("a.warc.gz").parameters
    assert library.read_warc("a.warc.gz", fragment_bytes=1 << 40).parameters["fragment_bytes"] == 1 << 40
