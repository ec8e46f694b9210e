"""A pipeline file and its parameters."""

from pathlib import Path
from typing import Literal

import pytest

from headrace.cli import load
from headrace.cli.errors import CliError, UsageError
from headrace.pipeline.graph import Pipeline, Stage, StageKind


def build(input: str, output: str, seq_len: int = 2048, ratio: float = 0.5, shuffle: bool = False) -> None: ...  # noqa: A002


def optional(
    limit: int | None = None,
    mode: Literal["fast", "safe"] = "fast",
    names: list[str] | None = None,
    where: Path = Path(),
) -> None: ...


def convert(function: object, *given: str) -> dict[str, object]:
    return load.convert(function, load.parse_parameters(given), "p.py")  # type: ignore[arg-type]


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


def test_annotations_as_strings_are_understood(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text("from __future__ import annotations\ndef build(n: int | None = None): ...\n")
    assert convert(load.load_build(file), "n=4") == {"n": 4}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", ("build()",)),
        ("def build(:\n", ("p.py:1",)),
        ("\n\nx = 1 / 0\n", ("p.py:3", "ZeroDivisionError")),
        ("import nothing_of_that_name\n", ("p.py:1", "ModuleNotFoundError")),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_its_line(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    file = tmp_path / "p.py"
    file.write_text(text)
    with pytest.raises(CliError) as caught:
        load.load_build(file)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_module_beside_the_file_cannot_be_imported_and_the_remedy_is_told(tmp_path: Path) -> None:
    (tmp_path / "helpers_beside.py").write_text("")
    file = tmp_path / "p.py"
    file.write_text("import helpers_beside\n")
    with pytest.raises(CliError, match="travels alone"):
        load.load_build(file)


def test_build_must_return_a_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text("def build():\n    return 3\n")
    with pytest.raises(CliError, match="returned int, not a Pipeline"):
        load.load(file, [])


def test_an_error_inside_build_names_the_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text("def build():\n    return {}['x']\n")
    with pytest.raises(CliError, match=r"p\.py:2: KeyError"):
        load.load(file, [])


def test_only_the_modules_that_stages_name_are_shipped() -> None:
    own = Stage("own", StageKind.TRANSFORM, "headrace.stages.custom:MapRecords", {"function": "pipeline:f"})
    other = Stage("other", StageKind.TRANSFORM, "headrace.stages.tokenizer:Tokenize", {"tokenizer": "x"})
    assert load._refers_to(Pipeline("p", "d", (own,)), "pipeline")
    assert not load._refers_to(Pipeline("p", "d", (other,)), "pipeline")


def test_the_environment_names_what_decides_the_bytes() -> None:
    few, many = load.environment(everything=False), load.environment(everything=True)
    assert {"python", "pyarrow", "numpy", "gigatoken"} <= set(few)
    assert len(many) > len(few)
    assert list(few) == sorted(few)


def test_a_relative_output_means_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load.absolute_uri("out") == (tmp_path / "out").as_uri()
    assert load.absolute_uri("file://./out") == (tmp_path / "out").as_uri()
    assert load.absolute_uri((tmp_path / "out").as_uri()) == (tmp_path / "out").as_uri()
