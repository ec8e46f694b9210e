"""The stage of `headrace insert` and `replace`: a call of the library, or a stage of a pipeline file."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cli.commands.cluster.reconfigure import stages_of
from headrace.client.errors import UsageError
from headrace.stages.shipping.shipping import beside

FILE = """
from headrace import Pipeline, map_records, normalize, read_jsonl, write_jsonl

def clean(record):
    return record

def build(form: str = "NFC") -> Pipeline:
    stages = map_records(clean, name="clean"), normalize(form)
    return Pipeline.chain("p", "out", read_jsonl("*.jsonl"), *stages, write_jsonl())
"""


def test_a_call_with_literal_arguments() -> None:
    (stage,), modules = stages_of("gopher_quality(words_min=7, name='long')", [])
    assert (stage.name, stage.parameters["words_min"], modules) == ("long", 7, {})
    assert stages_of("normalize", []) == stages_of("normalize()", [])
    assert stages_of("normalize('NFKC')", [])[0][0].parameters["form"] == "NFKC"


def test_a_parameter_of_a_call_of_the_library_is_refused() -> None:
    with pytest.raises(UsageError, match=r"-p words_min=20: build\(\) of FILE.py:NAME takes it"):
        stages_of("gopher_quality(words_min=80)", ["words_min=20", "nonsense"])


def test_a_stage_of_a_file_brings_its_module(tmp_path: Path) -> None:
    path = tmp_path / "a file.py"
    path.write_text(FILE)
    (tmp_path / "in.jsonl").write_text('{"text": "x"}\n')
    path.write_text(FILE.replace("*.jsonl", str(tmp_path / "*.jsonl")))
    (stage,), modules = stages_of(f"{path}:clean", [])
    assert stage.name == "clean"
    assert "def clean" in modules["pipeline"]
    assert stages_of(f"{path}:normalize", ["form=NFD"])[0][0].parameters["form"] == "NFD"
    with pytest.raises(UsageError, match="declares no stage 'nope'; it has read, clean, normalize"):
        stages_of(f"{path}:nope", [])


def test_a_file_that_was_changed_stands_beside_the_running_one(tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    (tmp_path / "in.jsonl").write_text('{"text": "x"}\n')
    path.write_text(FILE.replace("*.jsonl", str(tmp_path / "*.jsonl")))
    stages, modules = stages_of(f"{path}:clean", [])
    assert beside(stages, modules, modules, "pipeline") == (stages, modules), "the same text keeps its name"
    assert beside(stages, modules, {"other": "pass"}, "pipeline") == (stages, modules)
    (made,), texts = beside(stages, modules, {"pipeline": "pass"}, "pipeline")
    (name,) = texts
    assert texts[name] == modules["pipeline"]
    assert name.startswith("pipeline_")
    assert made == replace(stages[0], parameters={**stages[0].parameters, "function": f"{name}:clean"})
    nested = replace(made, target="pipeline:Stage", parameters={"a": [{"b": "pipeline:one.two"}, "pipeline x:y", 3]})
    (again,), _ = beside([nested], modules, {"pipeline": "pass"}, "pipeline")
    assert (again.target, again.parameters["a"]) == (f"{name}:Stage", [{"b": f"{name}:one.two"}, "pipeline x:y", 3])
    with_more = {**modules, "helper": "import pipeline"}
    assert beside(stages, with_more, {"pipeline": "pass"}, "pipeline") == (stages, with_more), "another needs its name"


def test_a_call_may_make_two_parts_of_one_stage(tmp_path: Path) -> None:
    assert [stage.name for stage in stages_of("dedup(near=False)", [])[0]] == ["dedup-keys", "dedup"]
    path = tmp_path / "file.py"
    (tmp_path / "in.jsonl").write_text('{"text": "x"}\n')
    text = FILE.replace("*.jsonl", str(tmp_path / "*.jsonl")).replace("import ", "import dedup, ", 1)
    path.write_text(text.replace("normalize(form)", "*dedup()"))
    assert [stage.name for stage in stages_of(f"{path}:dedup", [])[0]] == ["dedup-keys", "dedup"]


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("nothing()", "the library has no stage 'nothing'"),
        ("__import__('os')", "the library has no stage '__import__'"),
        ("gopher_quality(words_min=len('x'))", "is no stage: give a call with literal arguments"),
        ("os.system('x')", "is no stage"),
        ("gopher_quality(", "is no stage"),
        ("(" * 5000, "is no stage"),
        ("gopher_quality(nope=1)", "unexpected keyword argument 'nope'"),
        ("gopher_quality(**{'a': 1})", "is no stage"),
        ("Compiling()", "the library has no stage 'Compiling'"),
        ("missing.py:clean", "'missing.py' does not exist"),
        ("", "is no stage"),
    ],
)
def test_anything_else_is_refused_with_the_reason(expression: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        stages_of(expression, [])
