"""A pipeline file and its parameters."""

from pathlib import Path
from typing import Literal

import pytest

from headrace.cli.commands.run import HINT_CHARACTERS_MAX, text_of
from headrace.client import pipeline_file
from headrace.client.client import RunOptions
from headrace.client.errors import CliError, UsageError
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import MODULES_BYTES_MAX, Pipeline, Stage, StageKind, difference
from headrace.stages.runtime.environment_lock import environment
from headrace.stages.shipping.shipping import has_user_code, modules_of

OWN = """
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.stages.library import map_records
import words_up

def keep(record):
    from words_own.deep import lists
    return record if len(record["text"]) > lists.SHORTEST else None

def build(input, output):
    source = Stage("read", StageKind.SOURCE, "headrace.stages.x:Read")
    sink = Stage("write", StageKind.SINK, "headrace.stages.x:Write")
    return Pipeline.chain("own", output, source, map_records(keep), map_records("words_up:shout"), sink)
"""
OWN_MODULES = {
    "words_own/deep/lists.py": "from ... import x\nfrom words_own.nowhere import y\nfrom . import *\nSHORTEST = 3\n",
    "words_own/deep/__init__.py": "import numpy, json\n",
    "words_up.py": "import os, numpy.linalg\ndef shout(record):\n    return 3\n",
    "beside.py": "raise SystemExit\n",
}


def build(input: str, output: str, seq_len: int = 2048, ratio: float = 0.5, shuffle: bool = False) -> None: ...  # noqa: A002


def optional(
    limit: int | None = None,
    mode: Literal["fast", "safe"] = "fast",
    names: list[str] | None = None,
    where: Path = Path(),
) -> None: ...


def convert(function: object, *given: str) -> dict[str, object]:
    return pipeline_file.convert(function, pipeline_file.parse_parameters(given), "p.py")  # type: ignore[arg-type]


def test_each_parameter_becomes_what_the_signature_says() -> None:
    given = ("input=*.jsonl", "output=a=b", "seq_len=512", "ratio=0.25", "shuffle=yes")
    expected = {"input": "*.jsonl", "output": "a=b", "seq_len": 512, "ratio": 0.25, "shuffle": True}
    assert convert(build, *given) == expected


def test_dashes_in_a_name_are_underscores() -> None:
    assert convert(build, "input=a", "output=b", "seq-len=7")["seq_len"] == 7


def test_a_list_a_path_a_choice_and_none_can_be_said() -> None:
    assert convert(optional, "limit=none", "mode=safe", "names=a,b", "where=/x") == {
        "limit": None,
        "mode": "safe",
        "names": ["a", "b"],
        "where": Path("/x"),
    }
    assert convert(optional, "limit=3") == {"limit": 3}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("input=a", "output=b", "seq_len=many"), ("'seq_len'", "'many'", "int")),
        (("input=a", "output=b", "ratio=x"), ("'ratio'", "'x'", "float")),
        (("input=a", "output=b", "shuffle=maybe"), ("'shuffle'", "'maybe'", "bool")),
        (("input=a", "output=b", "seqlen=5"), ("'seqlen'", "seq_len: int = 2048", "input: str")),
        (("input=a",), ("-p output=...", "seq_len: int = 2048")),
        (("input",), ("'input'", "name=value")),
        (("input=a", "input=b"), ("twice", "'a'", "'b'")),
    ],
)
def test_a_wrong_parameter_is_named_with_what_was_expected(given: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        convert(build, *given)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.exit_code == 2


def test_a_choice_that_is_none_of_them_is_refused() -> None:
    with pytest.raises(UsageError, match="'mode'"):
        convert(optional, "mode=slow")


@pytest.mark.parametrize(
    "code",
    [
        "from __future__ import annotations\ndef build(n: int | None = None): ...\n",
        "def build(n: 'int | None' = None): ...\n",
        "def build(n: int | None = None): ...\n",
    ],
)
def test_annotations_as_strings_are_understood(tmp_path: Path, code: str) -> None:
    file = tmp_path / "p.py"
    file.write_text(code)
    assert convert(pipeline_file.load_build(file), "n=4") == {"n": 4}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", ("build()",)),
        ("def build(:\n", ("p.py:1",)),
        ("\n\nx = 1 / 0\n", ("p.py:3", "ZeroDivisionError")),
        ("import nothing_of_that_name\n", ("p.py:1", "ModuleNotFoundError")),
        ("import sys\nsys.exit(0)\n", ("p.py:2: SystemExit: 0",)),
        ("b'\\xe9'.decode('utf-8')\n", ("p.py:1: UnicodeDecodeError: ",)),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_its_line(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    file = tmp_path / "p.py"
    file.write_text(text)
    with pytest.raises(CliError) as caught:
        pipeline_file.load_build(file)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_file_that_is_no_text_is_wrong_usage(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_bytes(b"name = '\xe9'\n")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        pipeline_file.load_build(file)


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_bytes(b"#" * (MODULES_BYTES_MAX + 1))
    with pytest.raises(UsageError, match=f"has more than {MODULES_BYTES_MAX} characters"):
        pipeline_file.load_build(file)
    assert text_of(file) == "#" * HINT_CHARACTERS_MAX


def test_what_a_file_prints_is_not_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.py"
    file.write_text("print('at import')\ndef build():\n    print('in build')\n    raise SystemExit(3)\n")
    with pytest.raises(CliError, match=r"p\.py:4: SystemExit: 3"):
        pipeline_file.load(file, [])
    assert capsys.readouterr() == ("", "at import\nin build\n")


def test_a_module_that_a_stage_names_is_the_users_code_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rules_of_mine.py").write_text("print('at import')\nraise SystemExit(0)\n")
    (tmp_path / "in.jsonl").write_text('{"id": "a", "text": "b"}\n')
    file = tmp_path / "p.py"
    file.write_text(
        "from headrace.pipeline.graph import Pipeline\n"
        "from headrace.stages.library import map_records, read_jsonl, write_jsonl\n"
        "def build():\n"
        f"    stages = read_jsonl({str(tmp_path / 'in.jsonl')!r}), map_records('rules_of_mine:tidy'), write_jsonl()\n"
        f"    return Pipeline.chain('small', {str(tmp_path / 'out')!r}, *stages)\n"
    )
    with pytest.raises(CliError, match=r"p\.py: SystemExit: 0"):
        pipeline_file.load(file, [])
    assert capsys.readouterr() == ("", "at import\n")


@pytest.mark.parametrize("number", [2e9, "4", True])
def test_a_number_of_another_type_is_said_in_a_line(number: object) -> None:
    with pytest.raises(UsageError, match="give a whole number"):
        RunOptions(task_bytes=number)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", ["def build(n: 'int.nope') -> None: ...", "build = dict"])
def test_a_signature_that_cannot_be_read_is_said(tmp_path: Path, code: str) -> None:
    file = tmp_path / "p.py"
    file.write_text(code)
    with pytest.raises(CliError, match=r"p\.py: the signature of build\(\) cannot be read"):
        pipeline_file.load(file, [])


def test_imports_from_beside_a_file_travel_with_it_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(OWN)
    for name, text in OWN_MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for _ in range(2):
        pipeline = pipeline_file.load(tmp_path / "p.py", ["input=x", "output=y"])
        assert sorted(pipeline.modules) == [
            "pipeline",
            "words_own",
            "words_own.deep",
            "words_own.deep.lists",
            "words_up",
        ]
        version = pipeline.version()
    (tmp_path / "words_up.py").write_text(OWN_MODULES["words_up.py"].replace("3", "4"))
    changed = pipeline_file.load(tmp_path / "p.py", ["input=x", "output=y"])
    assert changed.version() != version
    assert "source of words_up" in "".join(difference(pipeline.identity(), changed.identity()))


def test_another_version_of_a_distribution_makes_another_version_of_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.py").write_text(OWN)
    for name, text in OWN_MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    installed = environment(everything=True)
    versions: list[str] = []
    for numpy in (installed["numpy"], "0.1", installed["numpy"]):
        monkeypatch.setattr(pipeline_file, "environment", lambda numpy=numpy, **_: {**installed, "numpy": numpy})
        pipeline = pipeline_file.load(tmp_path / "p.py", ["input=x", "output=y"])
        assert pipeline.environment["numpy"] == numpy
        versions.append(pipeline.version())
    assert versions[0] == versions[2] != versions[1]


def test_a_module_that_is_no_python_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(OWN.replace("import words_up", "..."))
    for name, text in OWN_MODULES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "words_own" / "deep" / "lists.py").write_text("x = 1\nx = = 2\n")
    with pytest.raises(PipelineError, match=r"module words_own\.deep\.lists: line 2: invalid syntax"):
        pipeline_file.load(tmp_path / "p.py", ["input=x", "output=y"])


def test_build_must_return_a_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text("def build():\n    return 3\n")
    with pytest.raises(CliError, match="returned int, not a Pipeline"):
        pipeline_file.load(file, [])


def test_an_error_inside_build_names_the_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text("def build():\n    return {}['x']\n")
    with pytest.raises(CliError, match=r"p\.py:2: KeyError"):
        pipeline_file.load(file, [])


def test_only_what_the_stages_name_travels_and_nothing_that_is_installed() -> None:
    own = Stage(
        "own", StageKind.TRANSFORM, "headrace.stages.functions.functions:MapRecords", {"function": "pipeline:f"}
    )
    other = Stage("other", StageKind.TRANSFORM, "headrace.stages.tokenizer.tokenize:Tokenize", {"tokenizer": "x"})
    third = Stage("third", StageKind.TRANSFORM, "numpy:array", {"function": "json:loads", "x": ["y:z"]})
    texts = {"pipeline": "import numpy, os.path, headrace.store.ledger.log, nobody_has_this"}
    assert modules_of(Pipeline("p", "d", (own,)), texts) == texts
    assert modules_of(Pipeline("p", "d", (other,)), texts) == {}
    assert modules_of(Pipeline("p", "d", (third,)), texts) == {}
    assert [has_user_code(Pipeline("p", "d", (stage,))) for stage in (own, other, third)] == [True, False, True]


def test_the_environment_names_what_decides_the_bytes() -> None:
    few, many = environment(everything=False), environment(everything=True)
    assert {"python", "pyarrow", "numpy", "gigatoken"} <= set(few)
    assert len(many) > len(few)
    assert list(few) == sorted(few)


def test_a_relative_output_means_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert pipeline_file.absolute_uri("out") == (tmp_path / "out").as_uri()
    assert pipeline_file.absolute_uri("file://./out") == (tmp_path / "out").as_uri()
    assert pipeline_file.absolute_uri((tmp_path / "out").as_uri()) == (tmp_path / "out").as_uri()
