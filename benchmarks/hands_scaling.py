"""Scaling by itself and what-if: decisions in simulated runs, predictions against what was reached, sleeping slots.

- simulated: SEEDS runs as flows (headrace.chaos.sim.flow), drawn by seed: 1 to 2,000 workers, a part of them slow,
  stages that compute and wait, skew, counters that are off by up to 10 %; in half of them a cost changes after 15 min.
  Each for half an hour. `decisions` is the largest number until within 10 % of the best replicas that a search finds
  (-1: never), `oscillations` the sum of changes of direction.
- what_if: a controller and a worker of two cores; a source, two stages that sleep for WAIT_S and a sink, each of its
  own tasks. CHANGES times: measure SECONDS, ask the model for other replicas, drawn by seed, have them made, measure
  SECONDS. `errors` are abs(predicted / reached - 1).
- slots: `headrace run --autoscale on` of read, a stage that sleeps 17 ms, one that sleeps 21 ms and takes 5 s to start,
  and write, from two tasks on. A slot is a task, of which a worker of two cores has 32: the ideal is 5 s and the
  records through 32 slots of 38 ms. (The public case has 126 slots. Tasks are processes here, 16 a core at most.)
  With --ray the same by Ray Data: 32 logical cores, a function and a pool of actors.

    python benchmarks/hands_scaling.py --json [--only simulated,what_if,slots] [--ray PYTHON]

Limits: 3 decisions, 0 oscillations; median error 0.08, worst 0.25; makespan over ideal 1.10.
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
from headrace.controller.core.scaling import (
    Autoscaler,
    Reading,
    ReadingError,
    ScalingMode,
    WhatIf,
    model_of,
    what_if,
    window_of,
)
from headrace.controller.scaling import reading_of
from headrace.protos import control_pb2 as pb

SEEDS = 60
WAIT_S = (0.085, 0.105)
CHANGES, SECONDS, SETTLE_S = 20, 8.0, 4.0
SLOTS, SLEEPS, START_S, RECORDS = 32, (0.017, 0.021), 5.0, 210_000
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
        "hands", output, read_jsonl(input, batch_records={batch}, fragment_bytes={fragment}),
        map_records(first, name="first"){a}, map_records(second, name="second"){b}, write_documents(){c},
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


class Cluster:
    """A controller and a worker of two cores, and the pipeline on them."""

    def __init__(self, place: Path, corpus: Path) -> None:
        self._address = f"unix:{place}/c.sock"
        self._base = [sys.executable, "-P", "-m", "headrace.cli"]
        daemons = (
            ("controller", "--listen", self._address),
            ("worker", "--controller", self._address, "--name", "one", "--cores", "2"),
        )
        self._daemons = [
            subprocess.Popen([*self._base, *item], cwd=place, stderr=subprocess.DEVNULL) for item in daemons
        ]
        time.sleep(5.0)
        given = ("-p", f"input={corpus}/*.jsonl", "-p", f"output={place}/out")
        command = [*self._base, "apply", "hands.py", *given, "--controller", self._address]
        subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(60)

    def reading(self) -> Reading:
        with Client(ControllerAt(self._address)) as client:
            return reading_of(client.status("hands"), "hands", time.monotonic())

    def scale(self, replicas: dict[str, int]) -> None:
        """Have them made, and wait until the run flows with them."""
        with Client(ControllerAt(self._address)) as client:
            client.steer(pb.SteerRequest(pipeline="hands", replicas=replicas))
            deadline = time.monotonic() + 120.0
            while time.monotonic() < deadline:
                (status,) = client.status("hands").pipelines
                ready = all(task.state == "ready" for task in status.tasks)
                if status.state == "running" and ready and not status.changes:
                    return
                time.sleep(0.2)
        raise SystemExit("a change was not made within 120 s")


def measured(cluster: Cluster) -> tuple[Reading, Reading]:
    time.sleep(SETTLE_S)
    before = cluster.reading()
    time.sleep(SECONDS)
    return before, cluster.reading()


def asked_and_reached(folder: Path) -> dict[str, object]:
    """CHANGES predictions."""
    place, corpus = folder / "what-if", folder / "texts"
    place.mkdir(mode=0o700)
    write_corpus(corpus, 40_000, 32 << 10, 400)
    placed = {key: f".placed(replicas={count})" for key, count in (("a", 2), ("b", 3), ("c", 1))}
    (place / "hands.py").write_text(
        PIPELINE.format(first=WAIT_S[0], second=WAIT_S[1], start=0, batch=2, fragment=64 << 20, **placed)
    )
    rng, cluster, rows = random.Random(5), Cluster(place, corpus), []
    try:
        time.sleep(10.0)
        pair = measured(cluster)
        while len(rows) < CHANGES:
            now = {group.stages[-1]: group.replicas for group in pair[1].groups}
            wanted = {"first": rng.randint(2, 12), "second": rng.randint(2, 12)}
            # Equal numbers would fuse chains, and so ask for another graph.
            if wanted["first"] == wanted["second"] or wanted == {key: now.get(key) for key in wanted}:
                continue
            try:
                model = model_of(pair[1], window_of(*pair))
                said = what_if(model, WhatIf(replicas=wanted), 0.0).then.prediction
                cluster.scale(wanted)
                pair = measured(cluster)
                reached = window_of(*pair).records_s
            except ReadingError as error:
                print(f"hands_scaling: {error}", file=sys.stderr)
                pair = measured(cluster)
                continue
            rows.append({"replicas": wanted, "predicted": round(said.records_s, 1), "reached": round(reached, 1)})
            print(f"hands_scaling: {rows[-1]}", file=sys.stderr, flush=True)
    finally:
        cluster.close()
    errors = sorted(abs(row["predicted"] / row["reached"] - 1) for row in rows)
    return {"median": round(statistics.median(errors), 3), "worst": round(errors[-1], 3), "changes": rows}


def slots(folder: Path, ray: str) -> dict[str, object]:
    """The makespan over the ideal."""
    place, corpus = folder / "slots", folder / "records"
    place.mkdir(mode=0o700)
    write_corpus(corpus, RECORDS, 1000, 640)
    ideal = START_S + RECORDS * sum(SLEEPS) / SLOTS
    sleeps = {"first": SLEEPS[0], "second": SLEEPS[1], "start": START_S}
    (place / "hands.py").write_text(PIPELINE.format(**sleeps, batch=16, fragment=64 << 20, a="", b="", c=""))
    base = [sys.executable, "-P", "-m", "headrace.cli", "run", "hands.py", "--autoscale", "on", "--json"]
    began = time.monotonic()
    run = subprocess.run(
        [*base, "-p", f"input={corpus}/*.jsonl", "-p", f"output={place}/out"],
        cwd=place, capture_output=True, text=True, timeout=1200, check=True,
    )  # fmt: skip
    seconds = time.monotonic() - began
    said = json.loads(run.stdout)
    found: dict[str, object] = {
        "slots": SLOTS,
        "records": RECORDS,
        "ideal_s": round(ideal, 1),
        "makespan_s": round(seconds, 1),
        "makespan_over_ideal": round(seconds / ideal, 3),
        "decisions": [words for words in said["warnings"] if words.startswith("scaling:")],
    }
    if ray:
        (place / "beside.py").write_text(RAY.format(**sleeps))
        command = [ray, "beside.py", str(corpus), str(SLOTS), "640"]
        beside = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=1800, check=False)
        if beside.returncode == 0:
            took = json.loads(beside.stdout.splitlines()[-1])
            found["ray"] = {**took, "makespan_over_ideal": round(took["seconds"] / ideal, 3)}
        else:
            found["ray"] = {"failed": beside.stderr[-500:]}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="simulated,what_if,slots")
    parser.add_argument("--ray", default="", help="a Python that has ray[data]")
    given = parser.parse_args()
    wanted, found = given.only.split(","), dict[str, object]()
    with tempfile.TemporaryDirectory() as folder:
        if "simulated" in wanted:
            found["simulated"] = simulated()
        if "what_if" in wanted:
            found["what_if"] = asked_and_reached(Path(folder))
        if "slots" in wanted:
            found["slots"] = slots(Path(folder), given.ray)
    print(json.dumps(found) if given.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
