"""`headrace examples`: what is listed, where an example is written, and what is said of the next step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.commands.examples import known_examples, show_examples
from headrace.client import CliError, UsageError


def test_a_group_is_listed_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("chaos", "chaos/"):
        assert show_examples(name, None) == 0
        listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert listed == [each for each in known_examples() if each.startswith("chaos/")]


def test_a_name_without_an_example_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="no example is called 'nope'; there are: dedup, fineweb, "):
        show_examples("nope", None)
    with pytest.raises(UsageError, match=r"chaos is a group of 10 examples: write it into a folder: --to x\.toml/"):
        show_examples("chaos", "x.toml")


def test_a_group_is_written_with_its_folders_or_not_at_all(tmp_path: Path) -> None:
    names = {each for each in known_examples() if each.startswith("systemd/")}
    assert show_examples("systemd", str(tmp_path)) == 0
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == names
    (tmp_path / "systemd/headrace.env").unlink()
    with pytest.raises(CliError, match=r"headrace-controller\.service is there already and is not replaced"):
        show_examples("systemd", str(tmp_path))
    assert not (tmp_path / "systemd/headrace.env").exists()


def test_a_pipeline_is_run_with_the_parameters_that_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_examples("plain", str(tmp_path)) == 0
    said = f"headrace run {tmp_path}/plain.py -p input=... -p output=..."
    assert capsys.readouterr().out == f"{tmp_path}/plain.py is written; run it: {said}\n"


def test_a_shell_completes_their_names() -> None:
    asked = {"_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": "headrace examples chaos/s", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "headrace"], env={**os.environ, **asked}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["chaos/slow-sink", "chaos/store"]


def test_a_folder_is_made_where_a_slash_ends_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_examples("notebook", f"{tmp_path}/new/") == 0
    written = tmp_path / "new" / "notebook.ipynb"
    assert written.is_file()
    assert capsys.readouterr().out == f"{written} is written; run it: jupyter lab {written}\n"


def test_a_file_of_another_kind_is_refused_with_one_that_fits(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"notebook is a .ipynb file: write it to {tmp_path}/mine.ipynb"):
        show_examples("notebook", f"{tmp_path}/mine.py")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name in known_examples() if not name.startswith("systemd/")])
def test_each_example_that_is_run_says_how(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_examples(name, f"{tmp_path}/") == 0
    assert "run it: " in capsys.readouterr().out
