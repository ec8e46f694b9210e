"""Whatever dies, the dataset is the one of a run that nothing happened to: each record once, with the same fate."""

import json
import os
import random
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from headrace.store.datasets.dataset import Dataset
from tests.kits.run.command import DEADLINE_S, run_command
from tests.kits.run.command_server import ended
from tests.kits.run.daemons import until
from tests.kits.run.dataset import fates
from tests.kits.run.kill import Marked, count_entries, headrace, kill_after_entries
from tests.kits.run.operators import write_paced

LOOK_S = 0.005
#: The last kill is to come when this share of the records is closed: more closes before it is noticed.
LAST_KILL_SHARE = 0.7


def kill_again_and_again(home: Path, output: str, records: int, kills: int, *arguments: str) -> int:
    """Kill everything so many times, spread evenly over the run; how often it was done.

    Kill number n is to come when n / kills of LAST_KILL_SHARE of the records are closed. A run that starts beyond that
    is killed just behind its leader's first entry, the others some entries later.
    """
    chance = random.Random(1)
    dataset = home / output
    for kill in range(kills):
        ahead = closed_records(dataset) / records > LAST_KILL_SHARE * kill / kills
        run = Marked(run_command(home, output, *arguments), home)
        count = partial(count_entries, dataset / "ledger")
        entries = count() + (1 if ahead else chance.choice((2, 3)))
        if not kill_after_entries(run, count, entries, delay_s=0 if ahead else chance.random() * 0.02):
            return kill
        assert not run.alive()
    return kills


def closed_records(dataset: Path) -> int:
    if not count_entries(dataset / "ledger"):
        return 0
    return sum(counts.records for counts in Dataset.open(str(dataset)).state.counts.values())


def closed_shards(dataset: Path) -> int:
    return len(Dataset.open(str(dataset)).state.shards) if count_entries(dataset / "ledger") else 0


@pytest.mark.parametrize(
    ("kills", "edges"),
    [
        pytest.param(5, (), id="fused"),
        pytest.param(50, (), id="fused, fifty times", marks=pytest.mark.slow),
        pytest.param(50, ("--no-fuse",), id="rings, fifty times", marks=pytest.mark.slow),
    ],
)
def test_a_dataset_killed_repeatedly_equals_an_undisturbed_one(
    home: Path, undisturbed: Path, kills: int, edges: tuple[str, ...]
) -> None:
    output = f"killed-{kills}" + "".join(edges)
    killed = kill_again_and_again(home, output, len(fates(undisturbed)), kills, *edges)
    assert killed == kills, f"the run was complete after {killed} kills"
    before = Dataset.open(str(home / output)).state if count_entries(home / output / "ledger") else None
    closed = sum(state.of("write").bytes for state in before.fragments.values()) if before else 0
    run = Marked(run_command(home, output, *edges), home)
    process = run.start()
    out, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors.decode()
    answer = json.loads(out)
    total = sum(path.stat().st_size for path in (home / "corpus").iterdir())
    assert answer["bytes_read"] <= total - closed, "more was read again than was open"
    assert fates(home / output) == fates(undisturbed)
    assert answer["balanced"]
    assert not run.alive()
    assert not run.memory_left()


@pytest.mark.parametrize(
    "edges", [pytest.param((), id="fused", marks=pytest.mark.slow), pytest.param(("--no-fuse",), id="rings")]
)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_a_task_killed_while_the_rest_runs_costs_no_record(
    home: Path, undisturbed: Path, tmp_path: Path, edges: tuple[str, ...], seed: int
) -> None:
    chance = random.Random(seed)
    run = Marked(run_command(home, str(tmp_path / "out"), *edges), home)
    process = run.start()
    deadline = time.monotonic() + DEADLINE_S
    # Not so many entries: heartbeats are entries too, and come while the tasks are still starting.
    wanted = chance.randint(1, 5)
    pause = threading.Event()
    while closed_shards(tmp_path / "out") < wanted:
        assert time.monotonic() < deadline
        assert process.poll() is None, f"the run ended before {wanted} shards were closed"
        pause.wait(LOOK_S)
    victims = sorted(pid for pid in run.alive() if _title(pid).startswith("headrace task"))
    assert victims, "shards are closed and no task is there"
    os.kill(chance.choice(victims), signal.SIGKILL)
    out, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors.decode()
    assert json.loads(out)["balanced"]
    assert fates(tmp_path / "out") == fates(undisturbed)
    assert not run.alive()


def test_a_second_run_over_a_complete_dataset_reads_nothing(home: Path, undisturbed: Path) -> None:
    done = ended(run_command(home, str(undisturbed)), cwd=home)
    answer = json.loads(done.stdout)
    assert answer["bytes_read"] == 0
    assert answer["records_resumed"] == answer["records_read"]


def test_a_second_run_on_a_dataset_that_is_being_written_is_refused(
    home: Path, undisturbed: Path, tmp_path: Path
) -> None:
    write_paced(tmp_path)
    parameters = ("-p", f"input={home}/corpus/*.jsonl", "-p", "output=out", "--json")
    first = Marked(headrace("run", "paced.py", *parameters), tmp_path)
    process = first.start()
    try:
        until(lambda: count_entries(tmp_path / "out" / "ledger") >= 2, "the first run writes its ledger")
        second = ended(first.command, cwd=tmp_path)
        assert (second.returncode, second.stdout) == (1, "")
        assert "is being written by process" in second.stderr
        assert "Traceback" not in second.stderr
        (tmp_path / "pace").unlink()
        _, errors = process.communicate(timeout=DEADLINE_S)
    finally:
        first.kill()
    assert process.returncode == 0, errors.decode()
    assert fates(tmp_path / "out") == fates(undisturbed)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
