"""The standard streams with which a process of Headrace begins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 60
BEGIN = "import os, sys; from headrace.daemon import mend_streams; mend_streams(); "


def python(code: str, streams: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """A process that begins as ours do, with the streams that a shell gives it."""
    shell = ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-c", BEGIN + code]
    variables = {**os.environ, **variables}
    return subprocess.run(shell, capture_output=True, text=True, env=variables, timeout=DEADLINE_S, check=False)


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_number_of_a_closed_stream(streams: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = (
        f"file = open({str(told)!r}, 'w'); print('out'); print('error', file=sys.stderr); sys.stdin.read(); "
        "print(file.fileno() > 2, *map(os.get_inheritable, range(3)), file=file)"
    )
    done = python(code, f"{streams} </dev/null" if "<&-" not in streams else streams)
    assert done.returncode == 0, done.stderr
    assert told.read_text() == "True True True True\n"
    assert done.stdout in ("out\n", "")
    assert done.stderr in ("error\n", "")


@pytest.mark.parametrize("streams", ["2>/dev/full", "2</dev/null"])
def test_what_standard_error_does_not_take_is_lost(streams: str) -> None:
    code = "[print('x' * 100_000, file=sys.stderr) for _ in range(3)]; sys.stderr.flush(); print('done')"
    assert python(code, streams).stdout == "done\n"


def test_a_reader_of_errors_that_has_gone_ends_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    code = BEGIN + "print('lost', file=sys.stderr); print('done')"
    try:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=write, timeout=DEADLINE_S)
    finally:
        os.close(write)
    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_a_daemon_that_is_no_command_has_its_streams(tmp_path: Path) -> None:
    daemon = [sys.executable, "-m", "headrace.worker.spool.server", str(tmp_path), "--listen", "insecure-tcp:8.8.8.8:1"]
    done = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *daemon], capture_output=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (2, b"")


def test_errors_arrive_whole_and_in_order() -> None:
    code = "[print(f'{n} ' + 'x' * n, file=sys.stderr) for n in range(0, 100_000, 9_999)]"
    assert [line.partition(" ")[0] for line in python(code).stderr.splitlines()] == [str(9_999 * n) for n in range(11)]


def test_what_an_encoding_lacks_is_escaped() -> None:
    code = "print(chr(0x25cf)); print(os.fsdecode(bytes([255])), file=sys.stderr)"
    done = python(code, PYTHONIOENCODING="latin-1")
    assert (done.stdout, done.stderr) == ("\\u25cf\n", "\\udcff\n")


@pytest.mark.parametrize(
    "use",
    [
        "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')",
        "sys.stdout = codecs.getwriter('utf-8')(sys.stdout.detach())",
        "sys.stdout = open(sys.stdout.fileno(), 'w', buffering=1)",
        "pass",
    ],
)
def test_whatever_users_do_to_standard_output_is_said_aside(use: str) -> None:
    code = f"""
import codecs, io
from headrace.daemon import said_aside
print("before")
with said_aside():
    {use}
    print("theirs")
    sys.stdout.flush()
    os.system("echo their child")
print("after")
print("told", file=sys.stderr)
sys.stdout.flush()
"""
    done = python(code)
    assert (done.stdout, done.stderr) == ("before\nafter\n", "theirs\ntheir child\ntold\n")


def test_errors_are_written_at_once_where_python_is_asked_to() -> None:
    done = python("print('no newline', end='', file=sys.stderr); os._exit(0)", PYTHONUNBUFFERED="1")
    assert done.stderr == "no newline"
