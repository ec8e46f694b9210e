"""A campaign: whose turn it is, and what its record says after several sessions."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.fuzz import campaign, registry
from tests.fuzz.campaign import Campaign
from tests.fuzz.harness import Report, Target
from tests.fuzz.runner import ROOT, RUNNER

A, B = (
    Target(name, (f"headrace.transport.core.{module}",), lambda data: None, lambda: [b""])
    for name, module in (("a", "frame"), ("b", "credit"))
)


def session(path: Path, commit: str = "c1", seconds: float = 10) -> Campaign:
    return Campaign(path, [A, B], seconds, 4, commit)


def report(name: str, seconds: float, account: str = "", fresh: int = 80) -> Report:
    return Report(name, 100, seconds, 0, 90, fresh, 1, 7, "x/crash-1" if account else "", account)


def test_who_had_the_least_comes_next_over_sessions(tmp_path: Path) -> None:
    first = session(tmp_path / "fuzz.json")
    assert first.next() == (A, 4)
    assert first.next() == (B, 4)
    assert first.next() is None, "both run"
    first.ended(report("b", 4))
    first.ended(report("a", 2.5))
    second = session(tmp_path / "fuzz.json", "c2")
    assert second.next() == (A, 4)
    second.ended(report("a", 4.5))
    assert second.next() == (B, 4)
    second.ended(report("b", 4))
    assert second.next() == (A, 3)
    second.ended(report("a", 3))
    assert second.next() == (B, 2)
    second.ended(report("b", 2))
    assert second.next() is None
    entries = campaign.load(tmp_path / "fuzz.json")
    assert [(it.target, it.commit, it.seconds, it.executions) for it in entries] == [
        ("a", "c1", 2.5, 100),
        ("a", "c2", 7.5, 200),
        ("b", "c1", 4, 100),
        ("b", "c2", 6, 200),
    ]


def test_a_target_that_broke_is_recorded_and_has_no_other_turn(tmp_path: Path) -> None:
    turns = session(tmp_path / "fuzz.json")
    assert turns.next() == (A, 4)
    turns.ended(report("a", 0.1, "it broke"))
    assert turns.next() == (B, 4)
    turns.ended(report("b", 4))
    assert turns.next() == (B, 4)
    assert campaign.load(tmp_path / "fuzz.json")[0].crashes == ("crash-1",)
    assert session(tmp_path / "fuzz.json").next() == (A, 4)


def test_time_that_reached_nothing_does_not_count(tmp_path: Path) -> None:
    turns = session(tmp_path / "fuzz.json")
    turns.next()
    turns.ended(report("a", 4, fresh=0))
    assert turns.had("a") == 0
    assert turns.next() == (B, 4)
    turns.ended(report("b", 4))
    assert turns.next() == (B, 4), "the other has no other turn in this session"


def test_time_of_a_decoder_that_changed_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "fuzz.json"
    turns = session(path)
    turns.next()
    turns.ended(report("a", 4))
    assert turns.had("a") == 4
    record = json.loads(path.read_text())
    record["entries"][0]["decoder"] = "another"
    path.write_text(json.dumps(record))
    assert session(path).had("a") == 0


def test_an_interrupt_records_the_turns_that_it_ends(tmp_path: Path) -> None:
    folder, log = tmp_path / "fuzzed", tmp_path / "fuzzed" / "credit" / "log"
    options = ("--seconds", "1000", "--turn", "900", "--campaign", str(tmp_path / "fuzz.json"), "--folder", str(folder))
    with subprocess.Popen([sys.executable, *RUNNER, "credit", *options], cwd=ROOT) as running:
        while not (log.exists() and b"INITED" in log.read_bytes()):
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.wait(600) in (0, 1), "its canary may not have been found"
    (entry,) = campaign.load(tmp_path / "fuzz.json")
    assert entry.executions
    assert entry.crashes == ()


def test_a_target_is_found_without_importing_all_others() -> None:
    assert registry.areas_of(["frame"]) == ["transport_targets"]
    named = {name for area in registry.areas() for name in [target.name for target in registry.targets_of(area)]}
    assert all(registry.areas_of([name]) for name in named)
