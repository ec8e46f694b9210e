"""`headrace logs` and metrics: what a controller, two workers and their tasks tell of themselves."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.kits.metrics import asked_for, exported
from tests.kits.run.command import DEADLINE_S
from tests.kits.run.kill import headrace
from tests.kits.run.operators import House, a_house, begin


@pytest.fixture(scope="module")
def house(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A pipeline runs, and stands still half-way."""
    with a_house(home) as made:
        begin(made, tmp_path_factory.mktemp("out") / "out")
        made.good("pause", "small", "--wait")
        yield made


def lines_of(house: House, *arguments: str) -> list[dict[str, Any]]:
    told = house.good("logs", *arguments)
    assert told["missing"] == []
    return told["lines"]


def test_what_somebody_asked_for_is_followed_from_the_controller_to_the_tasks(house: House) -> None:
    asked = next(line for line in lines_of(house) if line["message"].endswith(" applies the pipeline"))
    story = lines_of(house, "--cause", asked["cause"])
    assert {line["process"] for line in story} == {
        "controller",
        "worker one",
        "worker two",
        "small/read.0",
        "small/read.1",
    }
    assert story == sorted(story, key=lambda line: line["time"])
    started = [line for line in story if line["message"] == "is started"]
    assert {(line["pipeline"], line["stages"]) for line in started} == {("small", "read+has_many_lines+tokenize+write")}


def test_a_death_and_what_was_done_about_it_are_one_story(house: House) -> None:
    ready = [line for line in lines_of(house, "--task", "small/read.0") if line["message"] == "is ready"]
    os.kill(pid_of(house, "small/read.0"), signal.SIGKILL)
    house.until("the next attempt", lambda: attempts(house) > len(ready))
    died = next(line for line in lines_of(house, "--level", "warning") if "signal 9" in line["message"])
    story = [(line["process"], line["message"]) for line in lines_of(house, "--cause", died["cause"])]
    worker = next(process for process, message in story if "ended with signal 9" in message)
    assert ("controller", "task small/read.0 ended by signal 9") in story
    assert (worker, "is started") in story
    assert ("small/read.0", "is ready") in story, "its next attempt is part of the story"
    assert died["cause"] == f"exit.{worker.split()[1]}.1"
    told = house.pipeline()["deaths"]
    assert told == [{"what": "task", "name": "small/read.0", "cause": "the process was killed by signal 9", "count": 1}]
    page = house.call("status", "small").stdout
    assert "died" in page
    assert "task small/read.0: the process was killed by signal 9" in page


def attempts(house: House) -> int:
    lines = lines_of(house, "--task", "small/read.0")
    return sum(line["message"] == "is ready" for line in lines)


def pid_of(house: House, task: str) -> int:
    """A task's process, by its title."""
    marks = {marked.mark for marked, _ in house.started}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                title, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"headrace task {task} ".encode() in title and any(mark.encode() in environment for mark in marks):
                return int(entry.name)
    raise AssertionError(f"no process of task {task}")


def test_what_comes_is_told_as_it_comes(house: House) -> None:
    command = headrace("logs", "--follow", "--json", "--pipeline", "small", "--controller", house.address)
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=house.home) as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["pipeline"] == "small"
        house.good("resume", "small")
        heard = (json.loads(line)["message"] for line in following.stdout)
        assert any(message == "reconfiguration requested: resume" for message in heard)
        following.terminate()
        following.wait(DEADLINE_S)


def test_a_stage_that_takes_seconds_for_a_batch_is_seen_at_it(house: House) -> None:
    seen: dict[str, Any] = {}

    def is_at_a_batch() -> bool:
        seen.update(next(stage for stage in house.pipeline()["stages"] if stage["stage"] == "has_many_lines"))
        return bool(seen["at_batch_s"] > 1)

    house.until("a batch that takes long", is_at_a_batch)
    assert seen["batch_records"] > 0
    rows = house.good("top", "small", "--once")["pipelines"]["small"]
    busy = next(row["busy"] for row in rows if row["stage"] == "has_many_lines")
    assert busy > 0.4, "it sleeps in its records for all of the time that its two tasks have, or half of it at least"


def samples_of(house: House, process: str) -> list[Sample]:
    """Every sample of a process, and one without labels for a family that has none."""
    at = next(
        line["message"].removeprefix("metrics on ")
        for line in lines_of(house)
        if line["process"] == process and line["message"].startswith("metrics on ")
    )
    with urllib.request.urlopen(f"http://{at}/metrics", timeout=DEADLINE_S) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return [sample for family in families for sample in family.samples or [exported(family.name, family.type)]]


def scraped(house: House, worker: str) -> dict[str, float]:
    """Every sample of a worker, by its name and labels."""
    return {
        f"{sample.name} {' '.join(sample.labels.values())}".strip(): sample.value
        for sample in samples_of(house, f"worker {worker}")
    }


def test_what_boards_and_alerts_ask_for_is_exported(house: House) -> None:
    asked = {name for name, _ in asked_for() if not name.startswith(("headrace:", "headrace_loader_"))}
    found = {sample.name for process in ("controller", "worker one") for sample in samples_of(house, process)}
    assert asked - found == set()
    assert len(asked) > 15


def open_ranges(house: House, worker: str) -> float:
    sums = scraped(house, worker)
    return sum(value for name, value in sums.items() if name.startswith("headrace_worker_open_ranges"))


def test_workers_count_what_the_ledger_holds(house: House) -> None:
    house.good("pause", "small", "--wait")
    # A task reports its progress now and then.
    house.until("closed ranges", lambda: not open_ranges(house, "one") and not open_ranges(house, "two"))
    seen = [scraped(house, "one"), scraped(house, "two")]
    counts = house.pipeline()["counts"]["write"]
    for verdict in ("kept", "filtered", "quarantined"):
        key = f"headrace_worker_closed_records_total small write {verdict}"
        assert sum(sums.get(key, 0) for sums in seen) == counts[verdict]
    for sums in seen:
        assert sums["headrace_worker_connected"] == 1
        assert sums["headrace_worker_tasks small ready"] == 1
        assert sums["headrace_worker_stage_records_total small read"] > 0
    deaths = [sums.get("headrace_worker_task_ends_total signal small", 0) for sums in seen]
    assert sum(deaths) == 1
    assert sum(sums["headrace_worker_task_starts_total small"] for sums in seen) == 3
    house.good("resume", "small")


def test_people_are_shown_a_line_each(house: House) -> None:
    shown = house.call("logs", "--lines", "3", "--since", "10m")
    assert shown.returncode == 0, shown.stderr
    assert len(shown.stdout.splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--since", "yesterday"), "give how long ago, such as 30s, 10m, 2h or 1d"),
        (("--level", "loud"), "give one of debug, info, warning, error"),
        (("--stage", "read"), "name its pipeline too"),
    ],
)
def test_wrong_usage_is_told(house: House, arguments: tuple[str, str], reason: str) -> None:
    told = house.call("logs", *arguments)
    assert told.returncode == 2
    assert reason in told.stderr
