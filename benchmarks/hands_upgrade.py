"""A rolling upgrade under flow: what is lost, what is written twice, and how far the flow falls.

Method: two controllers of one root and WORKERS workers of two cores run a pipeline of one stage that sleeps, SLOTS
tasks of it, with read and write in tasks of their own. Each worker in turn is drained, ended, started again as another
release of Headrace that speaks a later protocol too (tests/kits/run/another_release.py), and admitted. Then the standby
is replaced by one of that release, and the leader is ended. What is still running at the end is all of the later
release.

The stage appends a byte to a file for each record, so the flow is known whoever leads. `before` is the flow over the
BEFORE_S before the first act; `lowest` the lowest over a second, from then until SETTLE_S after the last, as a share of
it; `by_act` the same while each act lasted. Records are compared by id: `lost` are those of the input that the dataset
has not, `twice` those that it has more than once.

    python benchmarks/hands_upgrade.py --json

Limits: 0, 0, 0.6.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import zstandard

from headrace.client import RunOptions
from tests.kits.run.another_release import make_release
from tests.kits.run.daemons import Cluster, cluster, until

WORKERS, SLOTS, SLEEP_S, RECORDS = 3, 12, 0.05, 16_000
BEFORE_S, SETTLE_S, WINDOW_S, LOOK_S = 5.0, 5.0, 1.0, 0.05
#: Records as large as texts of the web are: what is on its way is bounded in bytes.
TEXT = "some words " * 1500
LIMITS = {"lost": 0, "twice": 0, "lowest": 0.6}
PIPELINE = """
import os, time
from headrace import Pipeline, map_records, read_jsonl, write_jsonl

FLOW = os.open({flow!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

def slow(record):
    time.sleep({sleep})
    os.write(FLOW, b".")
    return record

def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain(
        "upgrade", output, read_jsonl(input, batch_records=8).placed(replicas=2),
        map_records(slow, name="slow").placed(replicas={slots}), write_jsonl().placed(replicas=3),
    )
"""


@dataclass
class Flow:
    """How many records had gone through, by time."""

    file: Path
    points: list[tuple[float, int]] = field(default_factory=list)
    acts: dict[str, tuple[float, float]] = field(default_factory=dict)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look again and again while the block runs."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOK_S):
                self.points.append((time.monotonic(), self.file.stat().st_size if self.file.exists() else 0))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @contextmanager
    def act(self, name: str) -> Iterator[None]:
        """Something is done."""
        began = time.monotonic()
        yield
        self.acts[name] = began, time.monotonic()
        print(f"hands_upgrade: {name} took {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def rate(self, begin: float, end: float) -> float:
        """Records a second between two moments."""
        inside = [point for point in self.points if begin <= point[0] <= end]
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]) if len(inside) > 1 else 0.0

    def lowest(self, begin: float, end: float) -> float:
        """The lowest rate over a window that begins between two moments and has ended by now."""
        last = self.points[-1][0] - WINDOW_S
        return min(self.rate(at, at + WINDOW_S) for at, _ in self.points if begin <= at <= min(max(begin, end), last))


def headrace(house: Cluster, *words: str) -> None:
    command = [sys.executable, "-P", "-m", "headrace.cli", *words, "--controller", house.known()]
    subprocess.run(command, check=True, cwd=house.home, stdout=subprocess.DEVNULL, timeout=120)


def end(daemon_process: subprocess.Popen[bytes]) -> None:
    daemon_process.send_signal(signal.SIGTERM)
    daemon_process.wait(60)


def upgrade(house: Cluster, flow: Flow, later: dict[str, str]) -> None:
    """Every process is replaced, one after the other."""
    for name in list(house.workers):
        with flow.act(f"drain {name}"):
            headrace(house, "drain", name, "--wait")
        with flow.act(f"replace {name}"):
            process = house.workers[name].process
            assert process is not None
            end(process)
            house.add_worker(name, 2, environment=later)
            headrace(house, "drain", name, "--back")
            house.wait_for_workers()
    leader = house.leader()
    standby = next(name for name in house.controllers if name != leader)
    for name in (standby, leader):
        with flow.act(f"replace the {'leader' if name == leader else 'standby'}"):
            process = house.controllers[name].process
            assert process is not None
            end(process)
            if name == leader:
                until(lambda: house.leads(standby), "the standby leads")
            house.add_controller(name, environment=later)
            until(lambda name=name: house.ask(name), "it answers")


def ids_of(output: Path) -> Counter[str]:
    files = (output / "shards").rglob("*.jsonl.zst")
    texts = (zstandard.ZstdDecompressor().stream_reader(io.BytesIO(file.read_bytes())).read() for file in files)
    return Counter(json.loads(line)["id"] for text in texts for line in text.splitlines())


def measure(folder: Path) -> dict[str, object]:
    home = folder / "home"
    (home / "in").mkdir(parents=True)
    for part in range(120):
        lines = (json.dumps({"id": f"r{number}", "text": TEXT + str(number)}) for number in range(part, RECORDS, 120))
        (home / "in" / f"{part:03}.jsonl").write_text("\n".join(lines) + "\n")
    flow, output = Flow(folder / "flow"), folder / "out"
    (home / "pipe.py").write_text(PIPELINE.format(flow=str(flow.file), sleep=SLEEP_S, slots=SLOTS))
    later = make_release(folder / "later", "0.9.9", newest=2, oldest=1)
    with cluster(home, folder, str(folder / "root"), workers=0) as house:
        for number in range(WORKERS):
            house.add_worker(f"w{number}", 2)
        house.wait_for_workers()
        house.apply("pipe.py", f"input={home}/in/*.jsonl", f"output={output}", options=RunOptions())
        with flow.watched():
            until(lambda: flow.file.exists() and flow.file.stat().st_size > RECORDS // 50, "records flow")
            time.sleep(BEFORE_S)
            began = time.monotonic()
            upgrade(house, flow, later)
            time.sleep(SETTLE_S)
            ended = time.monotonic()
            left = RECORDS - flow.file.stat().st_size
        status = house.wait_for_end("upgrade")
    assert left > 0, "the input was read before the last act: give it more"
    found = ids_of(output)
    before = flow.rate(began - BEFORE_S, began)
    return {
        "state": status.state,
        "before_records_s": round(before, 1),
        "lowest": round(flow.lowest(began, ended - WINDOW_S) / before, 3),
        "by_act": {
            name: round(flow.lowest(act[0] - 2 * LOOK_S, act[1]) / before, 3) for name, act in flow.acts.items()
        },
        "mean": round(flow.rate(began, ended) / before, 3),
        "upgrade_s": round(ended - began - SETTLE_S, 1),
        "lost": RECORDS - len(found),
        "twice": sum(count - 1 for count in found.values()),
        "processed_again": flow.file.stat().st_size - RECORDS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {"upgrade": measure(Path(folder)), "limits": LIMITS, "cores": len(os.sched_getaffinity(0))}
    print(json.dumps(found) if given.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
