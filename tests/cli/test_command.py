"""The command as a process: one line on standard error and an exit code, and never a traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.ending import outcome
from headrace.client.errors import CliError

COMMAND = [sys.executable, "-P", "-m", "headrace.cli"]
#: Of the endpoint that a bucket has without one: nothing answers there.
UNREACHED = ("dataset", "verify", "s3://bucket/x")


def headrace(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, timeout=300)


@pytest.fixture(scope="module", autouse=True)
def unreached() -> Iterator[subprocess.Popen[str]]:
    """A command that asks an endpoint again and again until it gives up: it does so while the other tests run."""
    with subprocess.Popen([*COMMAND, *UNREACHED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give a command"),
        (("rnu",), "rnu"),
        (("run",), "PIPELINE.py"),
        (("run", "nope.py"), "'nope.py' does not exist"),
        (("run", "."), "is a folder"),
        (("run", "nope.py", "--limit", "x"), "--limit"),
        (("run", "nope.py", "--limit", "5"), "'nope.py' does not exist"),
        (("dataset", "show"), "'URI'"),
        (("stop", "p\udcff", "--controller", "insecure-tcp:127.0.0.1:1"), "'p\\udcff' is not UTF-8"),
    ],
)
def test_wrong_usage_ends_with_two_and_one_line(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = headrace(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("headrace: ")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (1, "headrace: No space left on device: free some, then try again\n")


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&-", "2>/dev/full"])
def test_a_standard_stream_that_is_closed_is_done_without(streams: str) -> None:
    for arguments, code in ((("version",), 0), (("rnu",), 2)):
        command = ["sh", "-c", f'exec "$@" {streams}', "sh", *COMMAND, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, done.stderr
        assert "headrace: " not in done.stdout, "an error is no answer"
        assert "Traceback" not in done.stderr


def test_a_name_that_is_no_utf_8_is_said_escaped(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "some words"}\n')
    arguments = [b"tokenizer", b"train", b"in.jsonl", b"t\xff/tok.json", b"--vocab-size", b"300"]
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, cwd=tmp_path, env=variables, timeout=300)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"t\\udcff/tok.json: 265 tokens")


def test_an_error_holds_nothing_that_a_terminal_obeys(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise CliError("the host said \x1b]0;owned\x07", ["and \x9b31m\rmore"])

    assert outcome(fail) == 1
    said = capfd.readouterr().err
    assert said == "headrace: the host said \\x1b]0;owned\\x07\n  and \\x9b31m\\x0dmore\n"


def test_a_wrong_parameter_ends_with_two_and_names_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("def build(input: str, n: int = 3): ...\n")
    done = headrace("run", "p.py", "-p", "input=x", "-p", "m=3", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "headrace: p.py has no parameter 'm'; it takes: input: str, n: int = 3\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [("headrace data", "dataset"), ("headrace dataset ver", "verify"), ("headrace run p.py --am", "--amend")],
)
def test_a_shell_completes_commands_and_options(words: str, found: str) -> None:
    asked = {"_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(COMMAND, capture_output=True, text=True, env={**os.environ, **asked}, timeout=300)
    assert done.stdout.split() == [found]


def test_help_and_version_cost_no_heavy_import() -> None:
    code = (
        "import sys; from headrace.cli.main import invoke; invoke(['version']); "
        "heavy = {'pyarrow', 'grpc', 'numpy', 'torch', 'rich.live'} & set(sys.modules); print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "[]"


def test_a_folder_without_datasets_lists_none(tmp_path: Path) -> None:
    assert "no dataset below" in headrace("dataset", "ls", str(tmp_path)).stdout
    found = json.loads(headrace("dataset", "ls", str(tmp_path), "--json").stdout)
    assert found["datasets"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dataset", "show", "nothing"), "holds no dataset"),
        (("dataset", "show", "ftp://x"), "unknown scheme"),
        (("status", "--controller", "insecure-tcp:127.0.0.1:1"), "no controller answers at insecure-tcp:127.0.0.1:1"),
        (("stop", "p", "--controller", "insecure-tcp:127.0.0.1:1"), "headrace controller"),
        (UNREACHED, "s3://"),
    ],
)
def test_faults_end_with_one_and_a_line_that_names_the_thing(
    arguments: tuple[str, ...], words: str, tmp_path: Path, unreached: subprocess.Popen[str]
) -> None:
    process = unreached
    if arguments != UNREACHED:
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
    out, errors = process.communicate(timeout=300)
    assert (process.returncode, out) == (1, "")
    assert errors.startswith("headrace: ")
    assert words in errors
    assert "Traceback" not in errors
