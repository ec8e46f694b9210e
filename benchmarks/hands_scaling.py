"""Scaling by itself: decisions in simulated runs, and a makespan with sleeping slots.

- simulated: SEEDS runs as flows (headrace.chaos.sim.flow), drawn by seed: 1 to 2,000 workers, a part of them slow,
  stages that compute and wait, skew, counters that are off by up to 10 %; in half of them a cost changes after 15 min.
  Each for half an hour. `decisions` is the largest number until within 10 % of the best replicas that a search finds
  (-1: never), `oscillations` the sum of changes of direction.
- slots: the public case (ray#65540) at a tenth of its times: a stage that sleeps 17 ms, one that sleeps 21 ms and
  takes 5 s to start, RECORDS records in batches of 16 and fragments of 64 KiB. A slot is a task, of which a worker that
  offers CORES logical cores has 16 each: SLOTS and two. The ideal is 5 s and the records through SLOTS slots of 38 ms.
  The clock runs from `headrace apply --autoscale on` to the published version; daemons are there before. With --ray
  the same by Ray Data behind `ray.init`: SLOTS logical cores, blocks of a fragment, a function and a pool of actors.

    python benchmarks/hands_scaling.py --json [--only simulated,slots] [--ray PYTHON]

Limits: 3 decisions, 0 oscillations; makespan over ideal 1.10. What-if: hands_what_if.py.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headrace.chaos.sim.flow import Flow, FlowStage, FlowWorker, ScaledFlow
from headrace.client import Client, ControllerAt
from headrace.controller.core.scaling import Autoscaler, ScalingMode

SEEDS = 60
CORES, SLOTS, SLEEPS, START_S, RECORDS, BLOCK = 8, 126, (0.017, 0.021), 5.0, 210_000, 64
PIPELINE = """
import time
from headrace import Pipeline, map_records, read_jsonl, write_documents

started = []

def first(record):
    time.sleep({first})
    return record

def second(record):
    if not started:
        time.sleep({start})
        started.append(1)
    time.sleep({second})
    return record

def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain(
        "hands", output, read_jsonl(input, batch_records=16, fragment_bytes=64 << 10),
        map_records(first, name="first"), map_records(second, name="second"), write_documents(),
    )
"""
RAY = """
import json, sys, time
import ray

path, slots = sys.argv[1], int(sys.argv[2])
ray.init(num_cpus=slots, log_to_driver=False, include_dashboard=False)

def first(batch):
    time.sleep({first} * len(batch["id"]))
    return batch

class Second:
    def __init__(self):
        time.sleep({start})
    def __call__(self, batch):
        time.sleep({second} * len(batch["id"]))
        return batch

began = time.monotonic()
data = ray.data.read_json(path, override_num_blocks=int(sys.argv[3]))
data = data.map_batches(first, batch_size=16)
data = data.map_batches(Second, batch_size=16, compute=ray.data.ActorPoolStrategy(min_size=1, max_size=slots))
count = sum(len(batch["id"]) for batch in data.iter_batches(batch_size=None))
print(json.dumps({{"records": count, "seconds": time.monotonic() - began}}))
"""


def simulated() -> dict[str, float]:
    """Half-hours of drawn runs."""
    decisions, oscillations, changes, reached = [], 0, 0, []
    for seed in range(SEEDS):
        rng = random.Random(seed)
        many = rng.choice((1, 4, 40, 400, 2000)) if seed % 10 == 0 else rng.choice((1, 2, 4, 16))
        slow = rng.choice((1.0, 0.7, 0.3))
        workers = [FlowWorker(4, slow if rng.random() < 0.2 else 1.0) for _ in range(many)]
        stages = [FlowStage("read", rng.uniform(0.0002, 0.002))]
        for name in "abcd"[: rng.randint(1, 4)]:
            wait, kept = rng.choice((0.0, 0.0, rng.uniform(0.001, 0.03))), rng.uniform(0.3, 1.0)
            stages.append(FlowStage(name, rng.uniform(0.0, 0.01), wait, kept))
        first = [rng.randint(1, 2 * many) for _ in stages]
        noise, skew = rng.uniform(0, 0.1), rng.choice((0.0, 0.0, 0.3))
        flow = Flow(workers, tuple((stage,) for stage in stages), list(first), noise=noise, skew=skew, seed=seed)
        scaled = ScaledFlow(flow, Autoscaler(ScalingMode.ON))
        for half in range(2):
            scaled.run(900.0)
            decisions.append(scaled.decisions_until_best())
            oscillations += scaled.oscillations(first)
            changes += len(scaled.changes)
            reached.append(flow.rate() / flow.best())
            if half == 0 and seed % 2:
                first, scaled.changes = list(flow.replicas), []
                victim = rng.randrange(1, len(stages))
                stages[victim] = FlowStage(stages[victim].name, rng.uniform(0.01, 0.02), 0.0, stages[victim].kept)
                flow.chains = tuple((stage,) for stage in stages)
                flow.changed()
            elif half == 0:
                first, scaled.changes = list(flow.replicas), []
    return {
        "runs": SEEDS,
        "decisions": -1 if min(decisions) < 0 else max(decisions),
        "never": sum(item < 0 for item in decisions),
        "oscillations": oscillations,
        "changes": changes,
        "share_of_best_median": round(statistics.median(reached), 3),
        "share_of_best_worst": round(min(reached), 3),
    }


def write_corpus(folder: Path, records: int, size: int, files: int) -> None:
    folder.mkdir()
    text = ("some words " * (size // 11 + 1))[:size]
    for number in range(files):
        rows = range(number, records, files)
        lines = (json.dumps({"id": str(row), "text": text}) for row in rows)
        (folder / f"{number:05}.jsonl").write_text("\n".join(lines) + "\n")


def slots(folder: Path, ray: str) -> dict[str, object]:
    """The makespan over the ideal."""
    place, corpus = folder / "slots", folder / "records"
    place.mkdir(mode=0o700)
    write_corpus(corpus, RECORDS, 1000, 40)
    ideal = START_S + RECORDS * sum(SLEEPS) / SLOTS
    sleeps = {"first": SLEEPS[0], "second": SLEEPS[1], "start": START_S}
    (place / "hands.py").write_text(PIPELINE.format(**sleeps))
    base, address = [sys.executable, "-P", "-m", "headrace.cli"], f"unix:{place}/c.sock"
    at = ("--controller", address)
    daemons = [
        subprocess.Popen([*base, *item], cwd=place, stderr=subprocess.DEVNULL)
        for item in (("controller", "--listen", address), ("worker", *at, "--name", "one", "--cores", str(CORES)))
    ]
    try:
        given = ("-p", f"input={corpus}/*.jsonl", "-p", f"output={place}/out")
        time.sleep(5.0)
        began = time.monotonic()
        command = [*base, "apply", "hands.py", *given, *at, "--autoscale", "on", "--wait"]
        subprocess.run(
            command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=1200, check=True
        )
        seconds = time.monotonic() - began
        with Client(ControllerAt(address)) as client:
            (status,) = client.status("hands").pipelines
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(60)
    found: dict[str, object] = {
        "slots": SLOTS,
        "records": RECORDS,
        "kept": sum(counts.kept for counts in status.counts.values()),
        "ideal_s": round(ideal, 1),
        "makespan_s": round(seconds, 1),
        "makespan_over_ideal": round(seconds / ideal, 3),
    }
    if ray:
        (place / "beside.py").write_text(RAY.format(**sleeps))
        command = [ray, "beside.py", str(corpus), str(SLOTS), str(RECORDS // BLOCK)]
        beside = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=1800, check=False)
        said = [line for line in beside.stdout.splitlines() if line.startswith('{"records"')]
        if said:
            took = json.loads(said[0])
            found["ray"] = {**took, "makespan_over_ideal": round(took["seconds"] / ideal, 3)}
        else:
            found["ray"] = {"failed": beside.stderr[-500:]}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="simulated,slots")
    parser.add_argument("--ray", default="", help="a Python that has ray[data]")
    given = parser.parse_args()
    wanted, found = given.only.split(","), dict[str, object]()
    with tempfile.TemporaryDirectory() as folder:
        if "simulated" in wanted:
            found["simulated"] = simulated()
        if "slots" in wanted:
            found["slots"] = slots(Path(folder), given.ray)
    print(json.dumps(found) if given.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
