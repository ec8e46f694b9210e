"""`headrace run` from the pipeline file to the balance, with the real controller, worker and tasks."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace.stages.tokenizer.engine_choice import engine_names
from tests.kits.run.command_server import ended
from tests.kits.run.small_tokenizer import small_tokenizer

DEADLINE_S = 300.0
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, tokenize, write_tokens


def not_short(record):
    if record["text"] == "break":
        raise ValueError("a record that breaks the stage")
    return record if len(record["text"]) > 5 else None


def build(input: str, output: str, seq_len: int = 64) -> Pipeline:
    tokens = tokenize("TOKENIZER")
    stages = (read_jsonl(input), map_records(not_short), tokens, write_tokens(tokens, seq_len=seq_len))
    return Pipeline.chain("small", output, *stages)
"""
KEPT, SHORT = 40, 7


def pipeline() -> str:
    return PIPELINE.replace("TOKENIZER", small_tokenizer())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a pipeline file and two files of records, some of them bad."""
    (tmp_path / "small.py").write_text(pipeline())
    good = [json.dumps({"id": f"g{number}", "text": f"The record of number {number}."}) for number in range(KEPT)]
    short = [json.dumps({"id": f"s{number}", "text": "hm"}) for number in range(SHORT)]
    bad = ["{not JSON", json.dumps({"id": "n1", "text": 3}), json.dumps({"id": "b1", "text": "break"})]
    (tmp_path / "a.jsonl").write_text("\n".join([*good, "", *bad]) + "\n")
    (tmp_path / "b.jsonl").write_text("\n".join(short))
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "headrace.cli", *arguments]


def headrace(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ended(command(*arguments), cwd=home)


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return headrace(home, "run", "small.py", "-p", "input=*.jsonl", "-p", "output=out", *arguments)


def test_run_repetition_refusal_and_dataset_commands_tell_one_story(home: Path) -> None:
    done = run(home, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["state"], found["balanced"], found["complete"]) == ("completed", True, True)
    assert found["records_read"] == KEPT + SHORT + 3
    assert (found["kept"], found["filtered"], found["duplicate"], found["quarantined"]) == (KEPT, SHORT, 0, 3)
    assert sum(found["filtered_by"].values()) == SHORT
    assert sum(found["quarantined_by"].values()) == 3
    assert found["bytes_read"] == sum((home / name).stat().st_size for name in ("a.jsonl", "b.jsonl"))
    assert found["tokenizer_engine"] == engine_names()[0]
    assert found["records_resumed"] == 0
    assert found["dataset"] == (home / "out").as_uri()

    again = json.loads(run(home, "--json").stdout)
    assert (again["bytes_read"], again["records_resumed"], again["kept"]) == (0, KEPT + SHORT + 3, KEPT)

    page = run(home)
    assert "✓ balanced  50 = 40 + 7 + 0 + 3" in page.stdout
    assert "the dataset was complete already" in page.stdout

    refused = run(home, "-p", "seq_len=32")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "was made by another pipeline" in refused.stderr
    assert "  write.seq_len: 64 -> 32" in refused.stderr.splitlines()

    shown = json.loads(headrace(home, "dataset", "show", "out", "--quarantine", "--json").stdout)
    assert (shown["kept"], shown["seq_len"], shown["balanced"]) == (KEPT, 64, True)
    assert sorted(item["id"] for item in shown["quarantine"] if item["id"] in ("n1", "b1")) == ["b1", "n1"]
    assert "{not JSON" in headrace(home, "dataset", "show", "out", "--quarantine").stdout
    samples = json.loads(headrace(home, "dataset", "show", "out", "--samples", "--json").stdout)["samples"]
    ((reason, rows),) = samples.items()
    assert (reason, len(rows)) == (next(iter(found["filtered_by"])), 5)
    assert all(row["verdict"] == "filtered" and row["text"] for row in rows)
    assert reason in headrace(home, "dataset", "show", "out", "--samples").stdout
    assert json.loads(headrace(home, "dataset", "ls", ".", "--json").stdout)["datasets"][0]["kept"] == KEPT
    shutil.copytree(home / "out", home / "a %41 ü#?" / "x y")
    (odd,) = json.loads(headrace(home, "dataset", "ls", "a %41 ü#?", "--json").stdout)["datasets"]
    assert (odd["kept"], odd["dataset"]) == (KEPT, (home / "a %41 ü#?" / "x y").as_uri())
    assert odd["dataset"] in headrace(home, "dataset", "verify", odd["dataset"]).stdout.splitlines()[0], "in one line"
    assert "sound" in headrace(home, "dataset", "verify", "out").stdout

    shard = next((home / "out" / "shards").rglob("*.safetensors"))
    shard.chmod(0o644)
    shard.write_bytes(b"\0" * shard.stat().st_size)
    broken = headrace(home, "dataset", "verify", "out", "--json")
    assert broken.returncode == 1
    assert shard.name in json.loads(broken.stdout)["problems"][0]


def test_faults_before_the_first_record_are_one_line(home: Path) -> None:
    for arguments, code, words in (
        (("run", "small.py", "-p", "input=none/*.jsonl", "-p", "output=o"), 1, "none/*.jsonl"),
        (("run", "small.py", "-p", "input=*.jsonl", "-p", "output=o", "-p", "seq_len=x"), 2, "'seq_len' is 'x'"),
        (("run", "small.py", "-p", "input=*.jsonl", "-p", "output=s3://b/o"), 1, "s3://"),
        (("run", "small.py", "-p", "input=*.jsonl", "-p", "output=small.py"), 1, "small.py"),
    ):
        done = headrace(home, *arguments)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert words in done.stderr


def test_a_preview_shows_what_was_removed_and_writes_nothing(home: Path) -> None:
    found = json.loads(run(home, "--limit", "1000", "--json").stdout)
    assert (found["records_read"], found["kept"], found["filtered"], found["quarantined"]) == (50, KEPT, SHORT, 3)
    page = run(home, "--limit", "1000").stdout
    assert "quarantined read/malformed JSON" in page
    assert "{not JSON" in page
    assert not (home / "out").exists()


def children(pid: int) -> dict[str, int]:
    """The processes below one, by the first words of their titles."""
    found: dict[str, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found[(entry / "cmdline").read_text().split("\0")[0]] = int(entry.name)
    return found


def started(process: subprocess.Popen[str]) -> dict[str, int]:
    """Controller and worker of a run, once the controller serves and the run has begun."""
    assert process.stderr is not None
    deadline = time.monotonic() + DEADLINE_S
    for line in process.stderr:
        if "running" in line:
            return children(process.pid)
        assert time.monotonic() < deadline
    raise AssertionError("the run ended before it began")


def wait_for(path: Path) -> None:
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not path.exists():
        assert time.monotonic() < deadline
        pause.wait(0.02)


def slow(home: Path) -> subprocess.Popen[str]:
    """A run that cannot end by itself: its stage waits for a file."""
    (home / "small.py").write_text(
        pipeline().replace(
            "    if record",
            "    import os, time\n    open('begun', 'w').close()\n"
            "    while not os.path.exists('go'):\n        time.sleep(0.01)\n    if record",
            1,
        )
    )
    arguments = ("run", "small.py", "-p", "input=*.jsonl", "-p", "output=out", "--json")
    return subprocess.Popen(
        command(*arguments), cwd=home, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


@pytest.mark.parametrize("victim", ["headrace controller", "headrace worker"])
def test_a_killed_process_is_started_again_and_the_run_goes_on(home: Path, victim: str) -> None:
    with slow(home) as process:
        below = started(process)
        name = next(name for name in below if name.startswith(victim))
        dead = os.pidfd_open(below[name])
        os.kill(below[name], signal.SIGKILL)
        assert select.select([dead], [], [], DEADLINE_S)[0]
        (home / "go").touch()
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert json.loads(out)["kept"] == KEPT
    (death,) = (item for item in json.loads(out)["deaths"] if item["what"] != "task")
    assert f"headrace {death['what']}" == victim
    assert (death["count"], death["cause"]) == (1, "was killed by signal 9 (SIGKILL)")
    assert "was killed by signal 9 (SIGKILL)" in err


def test_a_killed_task_is_named_at_death_and_end(home: Path) -> None:
    with slow(home) as process:
        worker = next(pid for name, pid in started(process).items() if name.startswith("headrace worker"))
        wait_for(home / "begun")
        task = next(pid for name, pid in children(worker).items() if name.startswith("headrace task"))
        os.kill(task, signal.SIGKILL)
        assert process.stderr is not None
        said = next(line for line in process.stderr if "died" in line)
        (home / "go").touch()
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    (death,) = json.loads(out)["deaths"]
    assert said == f"small: died: task {death['name']}: the process was killed by signal 9\n"
    assert (death["what"], death["count"]) == ("task", 1)


def test_ctrl_c_twice_cancels_and_says_so_in_the_exit_code(home: Path) -> None:
    with slow(home) as process:
        watched = [os.pidfd_open(pid) for pid in started(process).values()]
        # A run that has begun nothing is stopped before it can be cancelled.
        wait_for(home / "begun")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert any("stopping" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    found = json.loads(out)
    assert (found["state"], found["kept"]) == ("cancelled", 0)
    assert all(select.select([pidfd], [], [], DEADLINE_S)[0] for pidfd in watched)
