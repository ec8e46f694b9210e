"""A run that is over before all that was planned has been done to it is followed by another round."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.chaos.gates.impairments import Affected
from headrace.chaos.live.checks.checker import CheckResult
from headrace.chaos.live.conductor import Conductor
from headrace.chaos.live.faults.processes import Marked
from headrace.chaos.live.report import joined, left_over, of_all_rounds
from headrace.chaos.live.scenario.outcome import NOTHING_YET, Fired, ScenarioOutcome
from headrace.chaos.live.scenario.scenario import Planned, draw
from headrace.chaos.live.scenario.scenario_file import scenario_of
from tests.kits.run.live import call, inputs

#: A command that closes records in so many entries; it then waits for what is to come, until it is started again.
SCRIPT = """
import pathlib, sys, time
from headrace.store.ledger.core.entries import Closed, Entry, Led, encode_entry
from headrace.store.ledger.core.fragments import Counts, Range
from headrace.store.ledger.log import Log
from headrace.store.open import open_store
closed = Closed("write", "v", 1, (Range(bytes(16), 0, 3),), (), Counts(kept=3))
log, again = Log(open_store("out")), pathlib.Path("out").exists()
for number in range(0 if again else {commits}):
    log.append(number, encode_entry(Entry(1, (closed,))))
time.sleep(0 if again or {ends} else 60)
print('{{"complete": true}}')
"""
#: So large that the corpus gives three shards, and a run with one sink as many commits.
SHARD_BYTES = 1 << 20


def conduct(
    folder: Path, schedule: tuple[Planned, ...], earlier: ScenarioOutcome, *, commits: int, ends: bool
) -> ScenarioOutcome:
    folder.mkdir()
    marked = Marked([sys.executable, "-c", SCRIPT.format(commits=commits, ends=ends)], folder)
    return Conductor(marked, folder / "out", folder / "logs", schedule, {}, 60.0, earlier=earlier).run()


def planned(*faults: dict[str, Any]) -> tuple[Planned, ...]:
    return draw(scenario_of({"fault": list(faults), "cluster": {}}, "x.toml"), 0)


def met(item: Planned, affected: dict[Affected, int]) -> ScenarioOutcome:
    return ScenarioOutcome((Fired(item, 0.0, 1, (), 1.0, affected=Counter(affected)),), (), (), (), {}, (), 1.0)


def test_commits_are_counted_across_rounds_until_the_fault_fires(tmp_path: Path) -> None:
    schedule = planned({"kind": "kill", "target": "everything", "after_commits": 3})
    first = conduct(tmp_path / "1", schedule, NOTHING_YET, commits=2, ends=True)
    assert (first.fired, left_over(first)) == ((), schedule)
    second = joined(first, conduct(tmp_path / "2", left_over(first), first, commits=2, ends=False))
    assert [fired.commits for fired in second.fired] in ([3], [4]), "at the first of the second round, or both at once"
    assert left_over(second) == ()
    assert [start.number for start in second.starts] == [1, 2, 3]
    assert second.fired[0].at_s > first.seconds, "times go on too"


def test_nothing_is_fired_before_a_later_round_is_on_its_way(tmp_path: Path) -> None:
    schedule = planned({"kind": "kill", "target": "everything", "after_s": 0})
    earlier = conduct(tmp_path / "1", (), NOTHING_YET, commits=1, ends=True)
    without = conduct(tmp_path / "2", schedule, earlier, commits=0, ends=True)
    assert without.fired == ()


def test_a_fault_of_the_network_that_met_nothing_is_done_once_more(tmp_path: Path) -> None:
    (item,) = planned({"kind": "partition", "target": "worker", "after_commits": 1})
    assert left_over(met(item, {Affected.CONTROL: 4})) == (item,), "it has to meet links between workers as well"
    assert left_over(met(item, {Affected.CONTROL: 4, Affected.BETWEEN: 1})) == ()
    assert left_over(joined(met(item, {}), met(item, {}))) == (), "not a third time"


def test_an_answer_that_is_no_in_one_round_is_no() -> None:
    good, bad, unasked = (
        CheckResult("same", passed, said) for passed, said in ((True, "a"), (False, "b"), (None, "c"))
    )
    assert of_all_rounds([[good]]) == [good]
    assert of_all_rounds([[good], [bad]]) == [CheckResult("same", False, "round 1: a; round 2: b")]
    assert of_all_rounds([[unasked], [good]]) == [CheckResult("same", None, "round 1: c; round 2: a")]


def test_an_answer_that_several_rounds_gave_is_said_once() -> None:
    a, b = CheckResult("same", True, "a"), CheckResult("same", True, "b")
    for rounds, words in (
        ("aaa", "rounds 1 to 3: a"),
        ("aab", "rounds 1 and 2: a; round 3: b"),
        ("aabaa", "rounds 1, 2, 4 and 5: a; round 3: b"),
    ):
        assert of_all_rounds([[a if letter == "a" else b] for letter in rounds]) == [CheckResult("same", True, words)]


@pytest.mark.slow
def test_a_run_over_too_soon_repeats_until_the_fault_fires(home: Path, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(
        '[run]\nreplicas = 1\n[[fault]]\nkind = "kill"\ntarget = "task"\nafter_commits = 5\n'
    )
    done = call(
        home, "chaos", "run", str(tmp_path / "x.toml"), "small.py", *inputs(home), "-p", f"shard_bytes={SHARD_BYTES}",
        "--folder", str(tmp_path), "--report", str(tmp_path / "report"), "--rebuilds", "0", "--rounds", "20", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["not_fired"] == []
    assert [fired["commits"] >= 5 for fired in report["fired"]] == [True]
    assert report["rounds"] > 1
    asked = {finding["name"]: finding["said"] for finding in report["findings"]}
    assert f"1 of 1 planned, in {report['rounds']} rounds" in asked["all planned faults were fired"]
    assert f"{report['rounds']}: " in asked["each record stands in the dataset once"]
