"""A command that grows beyond a task's memory, in a process that it has let go of, is ended; the run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.run.test_poison import verdicts

RECORDS = 20
GROWS = 7
COMMAND = """
import json, os, sys, time
for line in sys.stdin:
    if json.loads(line)["text"] == "grow":
        if not os.fork():
            os.setsid()
            if not os.fork():
                open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
                held = b"x" * (400 << 20)
            sys.stderr.close()
            time.sleep(600)
        time.sleep(600)
    sys.stdout.write(line)
    sys.stdout.flush()
"""
PIPELINE = """
import sys
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import command, read_jsonl, write_jsonl


def build(output: str) -> Pipeline:
    clean = command([sys.executable, "grow.py", "grown"], seconds=300, name="clean")
    return Pipeline.chain("grows", output, read_jsonl("in.jsonl"), clean, write_jsonl())
"""


def test_a_command_growing_in_a_grandchild_meets_the_tasks_cap(tmp_path: Path) -> None:
    (tmp_path / "grow.py").write_text(COMMAND)
    (tmp_path / "grows.py").write_text(PIPELINE)
    texts = ["grow" if number == GROWS else f"record {number}" for number in range(RECORDS)]
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"id": str(n), "text": t}) + "\n" for n, t in enumerate(texts))
    )
    arguments = ("run", "grows.py", "-p", "output=out", "--task-memory", "350", "--json")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "headrace.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["kept"], report["quarantined"], report["balanced"]) == (RECORDS - 1, 1, True)
    (reason,) = [fate["reason"] for fate in verdicts(tmp_path / "out") if fate["verdict"] == "quarantined"]
    assert "of memory, of which the command" in reason
    assert 'of stage "clean" and what that has started have' in reason
    for pid in (tmp_path / "grown").read_text().split():
        assert not Path(f"/proc/{pid}").exists(), "what a command has started ends with its task"
