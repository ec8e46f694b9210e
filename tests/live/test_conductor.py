"""The supervisor and the faults, on commands that are no pipeline: scripts that say in a file how often they began."""

import sys
from pathlib import Path
from typing import Any

from headrace.chaos.live.conductor import Conductor
from headrace.chaos.live.faults.processes import Marked, Process, ProcessRole, matching
from headrace.chaos.live.run import ways_of
from headrace.chaos.live.scenario.outcome import FaultTimeline, ScenarioOutcome
from headrace.chaos.live.scenario.scenario import draw
from headrace.chaos.live.scenario.scenario_file import scenario_of
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.store.ledger.core.entries import Beat, Closed, Entry, Led, encode_entry
from headrace.store.ledger.core.fragments import Counts, Range
from headrace.store.ledger.log import Log
from headrace.store.open import open_store

#: Appends a line to `starts`; `body` then runs with `started`, how often it began.
SCRIPT = """
import pathlib, sys, time
path = pathlib.Path("starts")
path.write_text((path.read_text() if path.exists() else "") + "x")
started = len(path.read_text())
{body}
print('{{"complete": true}}')
"""
#: Closes records at its first start, which a fault can be told to follow: by then the command is surely there.
CLOSES = """
from headrace.store.ledger.core.entries import Closed, Entry, encode_entry
from headrace.store.ledger.core.fragments import Counts, Range
from headrace.store.ledger.log import Log
from headrace.store.open import open_store
last = time.monotonic()
if started == 1:
    closed = Closed("write", "v", 1, (Range(bytes(16), 0, 3),), (), Counts(kept=3))
    Log(open_store("out")).append(0, encode_entry(Entry(1, (closed,))))
"""
WAITS = f"{CLOSES}time.sleep(60) if started == 1 else None"
#: Longer than a process stands still for want of a core.
FROZEN_S = 1.0


def conduct(folder: Path, body: str, *faults: dict[str, Any], limit_s: float = 120.0) -> ScenarioOutcome:
    schedule = draw(scenario_of({"fault": list(faults)}, "x.toml"), 0) if faults else ()
    marked = Marked([sys.executable, "-c", SCRIPT.format(body=body)], folder)
    return Conductor(marked, folder / "out", folder / "logs", schedule, {}, limit_s).run()


def test_a_command_that_is_killed_is_started_again(tmp_path: Path) -> None:
    kill = {"kind": "kill", "target": "everything", "after_commits": 1}
    outcome = conduct(tmp_path, WAITS, kill)
    assert outcome.problem == ""
    assert [start.code for start in outcome.starts] == [-9, 0]
    assert len(outcome.fired) == 1
    assert outcome.answer == {"complete": True}


def test_a_command_that_fails_although_nothing_was_done_is_a_finding(tmp_path: Path) -> None:
    outcome = conduct(tmp_path, "print('headrace: no such file', file=sys.stderr); sys.exit(1)")
    assert "exit code 1 although nothing was done to it: headrace: no such file" in outcome.problem
    assert len(outcome.starts) == 1


def test_a_command_that_hangs_is_a_finding_and_is_not_left_behind(tmp_path: Path) -> None:
    outcome = conduct(tmp_path, "time.sleep(60)", limit_s=0.5)
    assert "did not end within" in outcome.problem
    assert outcome.left == ()


def test_a_frozen_command_does_nothing_until_its_time_is_over(tmp_path: Path) -> None:
    body = f"""
{CLOSES}
gap = 0.0
while gap < {FROZEN_S} - 0.1:
    now = time.monotonic()
    gap, last = now - last, now
    time.sleep(0.01)
"""
    freeze = {"kind": "freeze", "target": "everything", "after_commits": 1, "for_s": FROZEN_S}
    outcome = conduct(tmp_path, body, freeze)
    assert outcome.problem == ""
    assert outcome.fired[0].ended_s - outcome.fired[0].at_s >= FROZEN_S


def test_a_process_that_outlives_its_command_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("headrace.chaos.live.conductor.REST_S", 0.2)
    body = "import subprocess; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    outcome = conduct(tmp_path, body)
    assert len(outcome.left) == 1
    assert "time.sleep(60)" in outcome.left[0]


def test_moments_are_counted_in_entries_that_close_records(tmp_path: Path) -> None:
    dataset = tmp_path / "out"
    log = Log(open_store(str(dataset)))
    counts = Counts(kept=3)
    closed = Closed("write", "v", 1, (Range(bytes(16), 0, 3),), (), counts)
    timeline = FaultTimeline(dataset)
    for number, change in enumerate((Led(1, {}), Beat(1), closed, Beat(1), closed)):
        log.append(number, encode_entry(Entry(1, (change,))))
    timeline.look(1.0)
    assert (timeline.entries, timeline.closes) == (5, 2)
    assert [commit.records for commit in timeline.commits] == [0, 0, 3, 0, 3]


def test_targets_name_processes_by_role_and_by_stage() -> None:
    chain = Pipeline.chain(
        "p",
        "/nowhere",
        Stage("read", StageKind.SOURCE, "a:b", {}),
        Stage("clean", StageKind.TRANSFORM, "a:b", {}),
        Stage("write", StageKind.SINK, "a:b", {}),
    )
    titles = [(ProcessRole.TASK, "read"), (ProcessRole.TASK, "clean"), (ProcessRole.WORKER, "")]
    living = [Process(pid, role, f"{role.value} {stage}", stage) for pid, (role, stage) in enumerate(titles)]
    fused, apart = ways_of(chain, fuse=True), ways_of(chain, fuse=False)
    assert [item.pid for item in matching("task", living, fused)] == [0, 1]
    assert [item.pid for item in matching("worker", living, fused)] == [2]
    assert [item.pid for item in matching("everything", living, fused)] == [0, 1, 2]
    assert [item.pid for item in matching("sink", living, fused)] == [1], "the nearest stage that heads a task"
    assert [item.pid for item in matching("stage:read", living, fused)] == [0]
    assert matching("sink", living, apart) == [], "a stage of its own is not there, so nobody else is meant"
