"""Runs of the plain example over good and bad input: exit codes, the balance, and one clear line."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.cli.main import invoke
from tests.kits.inputs import files
from tests.kits.run.command_server import ended
from tests.kits.run.small_tokenizer import small_tokenizer

PLAIN = pathlib.Path(__file__).parents[3] / "examples" / "plain.py"
RUN_S_MAX = 300.0


def headrace(folder: pathlib.Path, *arguments: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "headrace.cli", *arguments]
    if prefix:
        return subprocess.run([*prefix, *command], capture_output=True, text=True, cwd=folder, timeout=RUN_S_MAX)
    return ended(command, cwd=folder, timeout=RUN_S_MAX)


def run(
    folder: pathlib.Path, given: str, *options: str, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    parameters = ("-p", f"input={given}", "-p", "output=out", "-p", f"tokenizer={small_tokenizer()}", "--json")
    return headrace(folder, "run", str(PLAIN), *parameters, *options, prefix=prefix)


def balance(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_run_over_every_format_with_bad_records_ends_well(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "in"
    bad = b'{"text":"\\ud800"}\n{"text":3}\n\0\n'
    files.write(folder / "a.jsonl.gz", gzip.compress(files.lines() + bad))
    files.write(folder / "b.jsonl.zst", files.zstd(files.lines()))
    files.parquet_of(folder / "data" / "train-00000-of-00001.parquet")
    files.write(folder / "c.warc.gz", files.members(files.warc()))
    files.write(folder / "d.wet.gz", files.members(files.wet()))
    files.write(folder / "e.txt", b"plain text")
    files.write(folder / "f.txt", b"\xff")
    for name in ("README.md", ".gitattributes", "data/_SUCCESS", "g.jsonl.xz", "h.jsonl.xz"):
        files.write(folder / name, b"no record at all")
    report = balance(run(tmp_path, "in"))
    (note,) = report["warnings"]
    assert ": skipped in the input's folders: 2 .jsonl.xz, .gitattributes, README.md, _SUCCESS; a glob" in note
    assert report["records_read"] == 63 + 60 + 60 + 22 + 20 + 1 + 1
    assert (report["kept"], report["filtered"], report["quarantined"]) == (60 * 3 + 20 + 20 + 1, 2, 4)
    assert report["balanced"]
    again = balance(run(tmp_path, "in"))
    assert again["records_read"] == report["records_read"]


FAULTS = {
    "cut.jsonl.gz": (gzip.compress(files.lines())[:-20], "the gzip stream is cut off"),
    "junk.jsonl.zst": (b"junk" * 50, "not a sound zstd stream"),
    "cut.warc": (b"".join(files.warc())[:3000], "cut off within the record"),
    "junk.parquet": (b"PAR1 junk PAR1", "its Parquet footer cannot be read"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_that_is_damaged_ends_the_run_with_one_line(tmp_path: pathlib.Path, name: str) -> None:
    data, why = FAULTS[name]
    files.write(tmp_path / "in" / name, data)
    files.write(tmp_path / "in" / "good.jsonl", files.lines())
    done = run(tmp_path, "in")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if "damaged" in line]
    assert name in line
    assert why in line
    assert "fetch it again or take it out of the input, and run again with --changed-input reread, or drop" in line


@pytest.mark.parametrize("mended", [True, False], ids=["fetched again", "taken out"])
def test_a_run_ended_by_damage_goes_on_as_its_line_says(tmp_path: pathlib.Path, mended: bool) -> None:
    whole = gzip.compress(files.lines())
    damaged = files.write(tmp_path / "in" / "a.jsonl.gz", whole[:-20])
    files.write(tmp_path / "in" / "b.jsonl", files.lines())
    assert run(tmp_path, "in").returncode == 1
    if mended:
        damaged.write_bytes(whole)
    else:
        damaged.unlink()
    report = balance(run(tmp_path, "in", "--changed-input", "reread" if mended else "drop"))
    assert (report["kept"], report["balanced"], report["complete"]) == (120 if mended else 60, True, True)


@pytest.mark.parametrize("fault", ["no text column", "text of numbers", "empty gzip", "looping link"])
def test_an_unreadable_file_ends_the_run_with_one_line(tmp_path: pathlib.Path, fault: str) -> None:
    files.write(tmp_path / "in" / "good.jsonl", files.lines())
    bad = tmp_path / "in" / "bad.parquet"
    if fault == "no text column":
        files.write_parquet(bad, {"content": ["a"]})
        words = 'has no column "text"; it has: content; name it with text_key='
    elif fault == "text of numbers":
        files.write_parquet(bad, {"text": [1]})
        words = 'column "text" holds int64, no text'
    elif fault == "looping link":
        (tmp_path / "in" / "bad.jsonl").symlink_to("bad.jsonl")
        words = "Too many levels of symbolic links"
    else:
        files.write(tmp_path / "in" / "bad.jsonl.gz", b"")
        words = "it is empty, where a gzip stream should be"
    done = run(tmp_path, "in")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("plain: ")]
    assert words in line
    assert "bad." in line


def unprivileged() -> list[str]:
    """What takes from root the right to read what it may not."""
    return [] if os.geteuid() else ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.mark.parametrize("what", ["secret.jsonl", "folder"])
def test_forbidden_input_ends_the_run_until_it_is_permitted(tmp_path: pathlib.Path, what: str) -> None:
    good = [{"id": f"g{index}", "text": f"good {index}"} for index in range(60)]
    files.write(tmp_path / "in" / "good.jsonl", files.lines(good))
    files.write(tmp_path / "in" / "folder" / "a.jsonl", files.lines())
    secret = files.write(tmp_path / "in" / "secret.jsonl", files.lines()).parent / what
    mode = secret.stat().st_mode
    secret.chmod(0)
    done = run(tmp_path, "in", prefix=unprivileged())
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("plain: ")]
    verb = "list" if what == "folder" else "read"
    assert f"cannot {verb} '{secret}" in line
    assert "Permission denied; let this user read it, or take it out of the input" in line
    secret.chmod(mode)
    report = balance(run(tmp_path, "in", prefix=unprivileged()))
    assert (report["records_read"], report["kept"], report["balanced"]) == (180, 180, True)


def test_a_folder_named_like_a_file_is_searched(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "in" / "odd.jsonl" / "good.jsonl", files.lines())
    assert balance(run(tmp_path, "in"))["records_read"] == 60


def test_nulls_in_parquet_are_quarantined_row_by_row(tmp_path: pathlib.Path) -> None:
    files.write_parquet(tmp_path / "a.parquet", {"id": ["a", "b", "c"], "text": ["x", None, "z"]})
    report = balance(run(tmp_path, "a.parquet"))
    assert (report["kept"], report["quarantined_by"]) == (2, {"read/text is not a string": 1})


def test_a_run_over_its_quarantine_allowance_goes_on_with_more(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.jsonl", files.lines() + b"{broken\n" * 3)
    done = run(tmp_path, "a.jsonl", "--max-quarantined", "1%")
    assert done.returncode == 1
    assert "3 of 63 records closed by sink write are quarantined, more than the 1% allowed" in done.stderr
    assert "most of them by read/malformed JSON" in done.stderr
    report = balance(run(tmp_path, "a.jsonl", "--max-quarantined", "3"))
    assert (report["kept"], report["quarantined"], report["records_resumed"]) == (60, 3, 63)


@pytest.mark.parametrize("text", ["x", "-1", "101%", "%"])
def test_an_allowance_that_is_no_number_and_no_share_is_wrong_usage(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    files.write(tmp_path / "a.jsonl", files.lines())
    monkeypatch.chdir(tmp_path)
    assert invoke(["run", str(PLAIN), "-p", "input=a.jsonl", "-p", "output=out", f"--max-quarantined={text}"]) == 2
    assert "give a number of records, such as 100, or a share, such as 1%" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_new_input_is_added_next_time_and_nothing_reread(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "in" / "b.jsonl.gz", gzip.compress(files.lines()))
    assert balance(run(tmp_path, "in"))["kept"] == 60
    files.write(tmp_path / "in" / "a.jsonl", b'{"text":"one more"}')
    report = balance(run(tmp_path, "in"))
    assert (report["kept"], report["records_resumed"]) == (61, 60)
    assert report["bytes_read"] == len(b'{"text":"one more"}')
