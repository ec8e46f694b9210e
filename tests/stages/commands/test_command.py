"""A stage that is any executable: its lines find their records, and what it fails on is quarantined alone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.stages.commands import command as command_stage
from headrace.stages.commands.command import FAILURES_MAX, Command
from headrace.stages.commands.process import CommandProcess
from headrace.stages.library import command
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.build import build_stage, process_safely
from headrace.stages.runtime.errors import StageContractError
from tests.kits.stages.command import HANGS_S, patience_ends_with_the_hanging, run, wait_for_answers

MakeBatch = Callable[..., Batch]
MakeStage = Callable[..., Command]
#: Gives each line back, but does what its text says.
ODD = """
import json, os, signal, sys, time
for line in sys.stdin:
    record = json.loads(line)
    what = record["text"]
    if what == "exit":
        print("cannot", what, file=sys.stderr)
        sys.exit(3)
    if what == "abort":
        os.kill(os.getpid(), signal.SIGABRT)
    if what == "hang":
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(1000)
    if what == "nonsense":
        print("{nonsense")
        continue
    if what == "drop":
        continue
    record["text"] = 5 if what == "number" else what.upper()
    print(json.dumps(record), flush=True)
"""
COPY = "for line in sys.stdin: print(line, end='', flush=True)"


SPENDS = """
import sys, time
for line in sys.stdin:
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    print(line, end='', flush=True)
"""


@pytest.fixture
def stage() -> Iterator[MakeStage]:
    made: list[Command] = []

    def make(line: Any, **options: Any) -> Command:
        made.append(build_stage(command(line, **options), {}))
        return made[-1]

    yield make
    for item in made:
        item.close()


def pid_of(built: Command) -> int:
    assert built._process is not None
    return built._process.pid


def test_one_process_edits_and_filters_batch_after_batch(
    stage: MakeStage, batch_of: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_answers(monkeypatch)
    built = stage(["jq", "-c", "--unbuffered", 'select(.text != "no") | .text |= ascii_upcase | .metadata.seen = 1'])
    kept = process_safely(built, batch_of(["a", "no", "c"]), built.name)
    pid = pid_of(built)
    assert kept.rows.column("text").to_pylist() == ["A", "C"]
    assert kept.rows.column("metadata").to_pylist() == ['{"n":1,"seen":1}'] * 2
    assert kept.edits == {"jq": 2}
    assert [row["reason"] for row in kept.verdicts.to_pylist()] == ["command gave no line"]
    for first in range(3, 30, 3):
        # The last of the batch is filtered, so only the fence tells that nothing more will come.
        assert run(built, batch_of(["x", "y", "no"], first)) == (
            ["X", "Y"],
            {f"r{first + 2}": "filtered: command gave no line"},
        )
    assert pid_of(built) == pid


def test_a_command_that_holds_output_back_meets_end_of_input(stage: MakeStage, batch_of: MakeBatch) -> None:
    built = stage("sed -e s/old/new/ -e /secret/d")
    for first in range(0, 8, 2):
        texts, lost = run(built, batch_of(["an old text", "a secret"], first))
        assert (texts, list(lost)) == (["an new text"], [f"r{first + 1}"])


def test_an_answer_present_at_waking_is_taken_however_late(
    stage: MakeStage, batch_of: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood_still_s, turn = [0.0], CommandProcess.turn
    real = command_stage.time.monotonic

    def turn_and_stand_still(process: CommandProcess, timeout_s: float, take: Callable[[bytes], None]) -> bool:
        moved = turn(process, timeout_s, take)
        stood_still_s[0] += 2 * HANGS_S * moved
        return moved

    built = stage("sed -u s/old/new/", seconds=HANGS_S)
    monkeypatch.setattr(CommandProcess, "turn", turn_and_stand_still)
    clock = SimpleNamespace(monotonic=lambda: real() + stood_still_s[0])
    monkeypatch.setattr(command_stage, "time", clock)
    assert run(built, batch_of(["an old text", "an old one"])) == (["an new text", "an new one"], {})


def test_a_command_slow_to_start_is_waited_for(
    stage: MakeStage, batch_of: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_stage, "SILENCE_S", 0.2)
    built = stage([sys.executable, "-c", "import sys, time; sys.stdin.readline() and time.sleep(1.7)\n" + COPY])
    # The first line is not given back. The second batch gets a new process, which is not closed before it answers.
    assert run(built, batch_of(["a", "b"]))[0] == ["b"]
    assert run(built, batch_of(["c", "d"], 2))[0] == ["d"]
    pid = pid_of(built)
    assert run(built, batch_of(["e", "f"], 4)) == (["e", "f"], {})
    assert pid_of(built) == pid


def test_a_commands_core_time_is_counted_living_and_gone(stage: MakeStage, batch_of: MakeBatch) -> None:
    made = stage([sys.executable, "-c", SPENDS])
    before = made.delegated_cpu_s()
    made.process(batch_of(["a", "b"]))
    living = made.delegated_cpu_s()
    assert living - before >= 0.1
    made._drop()
    assert made.delegated_cpu_s() >= living


def test_a_batch_of_which_nothing_is_kept_ends_too(stage: MakeStage, batch_of: MakeBatch) -> None:
    built = stage("grep --line-buffered wanted", succeeds=[0, 1])
    assert run(built, batch_of(["one", "two"])) == (
        [],
        dict.fromkeys(("r0", "r1"), "filtered: command gave no line"),
    )
    assert run(built, batch_of(["one", "a wanted one"], 2))[0] == ["a wanted one"]


def test_a_command_failing_without_input_names_codes_to_declare(stage: MakeStage) -> None:
    with pytest.raises(PipelineError, match=r"exit code 1; if 1 is no failure of it, declare succeeds=\[0, 1\]$"):
        stage("grep --line-buffered wanted")
    with pytest.raises(
        PipelineError, match=r"exit code 2: grep: .*; if 2 is no failure of it, .* succeeds=\[0, 1, 2\]$"
    ):
        stage("grep --line-buffered --no-such-option wanted", succeeds=[1, 0])


def test_a_command_may_write_before_it_has_read_all(stage: MakeStage, batch_of: MakeBatch) -> None:
    texts = [f"{index} " + "x" * 4000 for index in range(2000)]
    assert run(stage("cat"), batch_of(texts)) == (texts, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("exit", "command ended with exit code 3: cannot exit"),
        ("abort", "command was killed by signal 6"),
        ("hang", f"command did not answer within {HANGS_S} s"),
        ("number", "command gave back no text"),
        ("nonsense", "command gave a line that is no JSON"),
    ],
)
def test_a_record_that_it_fails_on_is_quarantined_alone(
    stage: MakeStage, batch_of: MakeBatch, text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience_ends_with_the_hanging(tmp_path / "hangs", monkeypatch)
    texts = [f"t{index}" for index in range(20)]
    texts[13], texts[4] = text, "drop"
    built = stage([sys.executable, "-c", ODD, str(tmp_path / "hangs")], seconds=HANGS_S)
    kept, lost = run(built, batch_of(texts))
    assert kept == [item.upper() for item in texts if item not in (text, "drop")]
    assert lost.pop("r4") == "filtered: command gave no line"
    assert list(lost) == ["r13"]
    assert lost["r13"].startswith(f"quarantined: {words}")
    assert run(built, batch_of(["again"], 20)) == (["AGAIN"], {})


def test_a_record_that_jq_skips_with_complaint_is_quarantined(stage: MakeStage, batch_of: MakeBatch) -> None:
    built = stage(["jq", "-c", "--unbuffered", 'select(.text != "no") | .metadata.n = (.text | tonumber)'])
    assert run(built, batch_of(["0"], 90)) == (["0"], {})
    kept, lost = run(built, batch_of(["1", "two", "3", "no", "5"]))
    assert kept == ["1", "3", "5"]
    assert lost["r3"] == "filtered: command gave no line"
    assert lost["r1"].startswith("quarantined: command ended with exit code 5: jq: error")


def test_a_command_that_somebody_kills_costs_no_record(stage: MakeStage, batch_of: MakeBatch) -> None:
    built = stage([sys.executable, "-c", ODD])
    assert run(built, batch_of(["a"]))[0] == ["A"]
    os.kill(pid_of(built), signal.SIGKILL)
    assert run(built, batch_of(["b"], 1)) == (["B"], {})
    assert run(built, batch_of(["b", "b"], 1)) == (["B", "B"], {})
    os.kill(pid_of(built), signal.SIGKILL)
    assert run(built, batch_of(["c", "d", "e"], 2)) == (["C", "D", "E"], {})


def test_parts_of_split_records_come_back_to_their_places(stage: MakeStage, batch_of: MakeBatch) -> None:
    from headrace.stages.functions.split import number_parts

    batch = batch_of(["a", "b"])
    rows = batch.rows.take([0, 0, 1])
    parts = number_parts(batch, rows, "split")
    built = stage(["jq", "-c", "--unbuffered", 'select(.id != "r0/0") | .text += "!"'])
    answer = process_safely(built, parts, "jq")
    assert [(row["id"], row["text"]) for row in answer.rows.to_pylist()] == [("r0/1", "a!"), ("r1/0", "b!")]
    assert answer.verdicts.column("part").to_pylist() == [0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("jq -c {text}", "a line without __row"),
        ("jq -c '., .'", "twice"),
        ("jq -c '.__row += 100'", "which it was not given"),
        ("jq -c '.id = 5'", "another id"),
        ("jq -c '.mine = 5'", "the field 'mine'"),
    ],
)
def test_a_command_that_breaks_the_rules_ends_the_run_and_is_named(
    stage: MakeStage, batch_of: MakeBatch, line: str, words: str
) -> None:
    with pytest.raises(StageContractError, match=words) as caught:
        run(stage(line), batch_of(["a", "b"]))
    assert 'stage "jq"' in str(caught.value)


def test_what_cannot_work_is_refused_before_the_first_record(stage: MakeStage) -> None:
    with pytest.raises(PipelineError, match="no executable 'no-such-thing'"):
        stage("no-such-thing -x")
    with pytest.raises(PipelineError, match=r"jq, tried without input: command ended with exit code 3: jq: error"):
        stage("jq -c '.text |'")
    with pytest.raises(PipelineError, match="cannot be split"):
        command("jq '")
    with pytest.raises(PipelineError, match="at least one word"):
        command([])


def test_a_command_that_fails_on_everything_ends_the_run(
    stage: MakeStage, batch_of: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FAILURES_MAX == 100
    monkeypatch.setattr("headrace.stages.commands.command.FAILURES_MAX", 10)
    built = stage(["sh", "-c", "read line && exit 9 || exit 0"])
    with pytest.raises(StageContractError, match=r"failed on 10 records in a row, the last time: .*exit code 9"):
        run(built, batch_of([str(index) for index in range(20)]))
    again = stage(["sh", "-c", "read line && exit 9 || exit 0"])
    _, lost = run(again, batch_of([str(index) for index in range(9)]))
    assert len(lost) == 9, "one record less than that ends nothing"
