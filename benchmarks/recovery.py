"""How long a run takes to be back at full flow after a death; and whether a record is lost, twice, or read for nothing.

    python benchmarks/recovery.py [INPUT.jsonl] [--victim task|worker|controller] [--seed 0] [--seeds 20] [--json]
    make recovery                                                          # 200 seeds; about ten minutes

Method, flow: a controller and two workers of half the cores each, started by hand, run examples/plain.py at default
settings. The controller is asked every 0.05 s how many bytes the sources have read; tasks report every 0.2 s. When
four tenths of the input are read, one task, or one worker with its tasks, is killed (SIGKILL). `before_mb_s` is the
flow in the 2 s before, and `lowest_share` how far it fell in a second after, as a share. `recovery_s` is the time from
the kill until the flow over the next second is 90 % again; 0 if it never fell below. The limits are 2 s for a task and
10 s for a worker; `ratio` is the measurement over the limit. The input must last: with less than about 10 s of work the
flow ends before it is back. Where tasks share cores with others, those that live take what the dead one leaves, and the
dip is smaller than on a machine of their own.

Method, controller: two controllers of one root, the second a standby; the first is killed. `recovery_s` is the time
until the dataset's ledger has a new entry, which only the standby can have written; the limit is 10 s. `closed_s` is
the time until one closes records, and `outage_share` the flow from the kill until the standby tells of it, as a share
of `before_mb_s`: the tasks go on meanwhile.

Method, records: `read_again` is what all attempts read beyond the dataset's records, by their own reports. What may be
read again is what is open less what living sinks hold. Here a source and its sink are one process, so that is what the
sinks of the dead held by their last report (`held_by_dead`; a task reports before it proposes, so whatever else it had
reported is closed). More is a failure: the exit code is 1. What the dead had read in all is `dead_had_read`.

Method, seeds (chaos/live/clusters/standing_cluster.py): two controllers and two workers stand, and whoever dies is
started again. Run after run of a pipeline with many small shards goes through them, on an input of its own of 4,000
records. In turn they lose three tasks, two workers, the leading controller, or that and a worker at once; the seed
draws which, at which entries of the ledger, and whether stages are fused. Each dataset is compared record by record
with one made without faults: `lost`, `twice` and `otherwise` must be 0, and `read_again` at most what was open at the
kills; where stages are fused and no controller died, at most what the sinks of the dead held. `closed_s_max` is the
longest time from a kill to the next entry that closes records. Results: docs/performance.md.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.chaos.live.clusters import VICTIMS, Burnt, burn
from headrace.chaos.live.faults import Marked
from headrace.chaos.live.scenario import FaultTimeline
from headrace.cli.ui import input_bytes_read
from headrace.client import ENDED, Client, ControllerSilent, RunOptions, load
from headrace.daemon import as_text
from headrace.protos import control_pb2 as pb

LIMIT_S = {"task": 2.0, "worker": 10.0, "controller": 10.0}
SHARE = 0.9
BEFORE_S = 2.0
WINDOW_S = 1.0
#: Seconds after the kill in which a fall of the flow is the kill's.
DIP_S = 3.0
SAMPLE_S = 0.05
#: The share of the input that is read when the kill comes.
KILL_AT = 0.4
RUN_S_MAX = 600.0
START_S = 30.0
MB = 1e6
PLAIN = Path(__file__).resolve().parent.parent / "examples" / "plain.py"


@dataclass(frozen=True, slots=True)
class Sample:
    """What the sources had read at a moment."""

    at_s: float
    read: int


@contextlib.contextmanager
def daemons(folder: Path, *, standby: bool = False) -> Iterator[tuple[Client, list[Marked], list[Marked]]]:
    """One controller, or two of one root, and two workers: a client of the first, the workers, the controllers."""
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    with contextlib.ExitStack() as stack:
        controllers: list[Marked] = []
        addresses: list[str] = []
        for name in ("controller", "standby")[: 1 + standby]:
            log = stack.enter_context(open(folder / f"{name}.log", "wb"))
            root = ("--root", str(folder / "root")) if standby else ()
            controllers.append(
                Marked(_command("controller", "--listen", f"unix:{folder}/sockets/{name}.sock", *root), folder)
            )
            process = _started(stack, controllers[-1], log)
            addresses.append(_address(folder / f"{name}.log", process))
            _wait_for(Client(addresses[0]), 0)
        address = ",".join(addresses)
        workers: list[Marked] = []
        for name in ("one", "two"):
            arguments = ("worker", "--controller", address, "--name", name, "--cores", str(cores))
            workers.append(Marked(_command(*arguments), folder))
            _started(stack, workers[-1], stack.enter_context(open(folder / f"{name}.log", "wb")))
        client = stack.enter_context(Client(address))
        _wait_for(client, len(workers))
        yield client, workers, controllers


def _wait_for(client: Client, workers: int) -> None:
    """Until the first controller leads, and has so many workers."""
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(ControllerSilent):
            if len(client.status().workers) >= workers:
                return
        assert time.monotonic() < deadline, f"no leader with {workers} workers within {START_S:.0f} s"
        time.sleep(SAMPLE_S)


def flow(source: str, victim: str, seed: int) -> dict[str, Any]:
    """One run at default settings in which one process dies."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pipeline = load(PLAIN, [f"input={source}", f"output={folder}/out"])
        with daemons(folder) as (client, workers, _):
            client.apply(pipeline, RunOptions())
            samples, killed_s, had_read, status = watch(client, pipeline.name, workers, victim, random.Random(seed))
        total = sum(
            counts.kept + counts.filtered + counts.duplicate + counts.quarantined for counts in status.counts.values()
        )
    before = _flow(samples, killed_s - BEFORE_S, killed_s)
    lowest, recovery = dip([(at - killed_s, mb_s / before) for at, mb_s in _flows(samples, killed_s)])
    read = next(stage.records for stage in status.stages)
    return {
        "state": status.state,
        "before_mb_s": round(before, 2),
        "lowest_share": None if lowest is None else round(lowest, 3),
        "recovery_s": None if recovery is None else round(recovery, 2),
        "limit_s": LIMIT_S[victim],
        "ratio": None if recovery is None else round(recovery / LIMIT_S[victim], 3),
        "records": total,
        "read_again": read - total,
        "dead_had_read": had_read,
        "held_by_dead": status.held_by_dead,
    }


def failover(source: str) -> dict[str, Any]:
    """One run at default settings in which the leading controller dies and a standby takes over."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pipeline = load(PLAIN, [f"input={source}", f"output={folder}/out"])
        timeline, samples = FaultTimeline(folder / "out"), list[Sample]()
        killed_s = told_s = 0.0
        status: pb.PipelineStatus | None = None
        with daemons(folder, standby=True) as (client, _, controllers):
            client.apply(pipeline, RunOptions())
            deadline = time.monotonic() + RUN_S_MAX
            while status is None or status.state not in ENDED:
                assert time.monotonic() < deadline, f"the run did not end within {RUN_S_MAX:.0f} s"
                timeline.look(time.monotonic())
                with contextlib.suppress(ControllerSilent, IndexError):
                    status = client.status(pipeline.name).pipelines[0]
                    samples.append(Sample(time.monotonic(), input_bytes_read(status)))
                    if killed_s and not told_s and samples[-1].read > max(item.read for item in samples[:-1]):
                        told_s = samples[-1].at_s
                    if not killed_s and status.input_bytes and samples[-1].read >= KILL_AT * status.input_bytes:
                        killed_s = time.monotonic()
                        controllers[0].kill()
                time.sleep(SAMPLE_S)
            timeline.look(time.monotonic())
        assert killed_s, "the run was over before the kill; give it more input"
    before = _flow(samples, killed_s - BEFORE_S, killed_s)
    entry_s = next((commit.at_s for commit in timeline.commits if commit.at_s > killed_s), None)
    closed_s = timeline.next_close(killed_s)
    recovery = None if entry_s is None else entry_s - killed_s
    counts = next(iter(status.counts.values()))
    total = counts.kept + counts.filtered + counts.duplicate + counts.quarantined
    return {
        "state": status.state,
        "before_mb_s": round(before, 2),
        "outage_share": round(_flow(samples, killed_s - SAMPLE_S, told_s) / before, 3) if told_s else None,
        "recovery_s": None if recovery is None else round(recovery, 2),
        "closed_s": None if closed_s is None else round(closed_s - killed_s, 2),
        "limit_s": LIMIT_S["controller"],
        "ratio": None if recovery is None else round(recovery / LIMIT_S["controller"], 3),
        "records": total,
        "read_again": next(stage.records for stage in status.stages) - total,
        "held_by_dead": status.held_by_dead,
    }


def dip(shares: list[tuple[float, float]]) -> tuple[float | None, float | None]:
    """The lowest share of the flow before, and when it was back: from seconds since the kill and shares."""
    low = [at for at, share in shares if share < SHARE and at <= DIP_S]
    lowest = min((share for at, share in shares if at <= DIP_S), default=None)
    back = next((at for at, share in shares if at > low[0] and share >= SHARE), None) if low else 0.0
    return lowest, back if shares else None


def watch(
    client: Client, name: str, workers: list[Marked], victim: str, chance: random.Random
) -> tuple[list[Sample], float, int, pb.PipelineStatus]:
    """Sample a run to its end and kill on the way: samples, moment of the kill, what the dead had read, last status."""
    samples: list[Sample] = []
    killed_s, had_read = 0.0, 0
    deadline = time.monotonic() + RUN_S_MAX
    while True:
        status = client.status(name).pipelines[0]
        samples.append(Sample(time.monotonic(), input_bytes_read(status)))
        if status.state in ENDED:
            assert killed_s, "the run was over before the kill; give it more input"
            return samples, killed_s, had_read, status
        assert time.monotonic() < deadline, f"the run did not end within {RUN_S_MAX:.0f} s"
        if not killed_s and status.input_bytes and samples[-1].read >= KILL_AT * status.input_bytes:
            task = chance.choice(sorted(status.tasks, key=lambda task: task.task))
            dead = [
                item
                for item in status.tasks
                if item.task == task.task or (victim == "worker" and item.worker == task.worker)
            ]
            had_read = sum(stage.records for item in dead for stage in item.progress.stages[:1])
            worker = workers[("one", "two").index(task.worker)]
            killed_s = time.monotonic()
            kill(worker, None if victim == "worker" else f"{task.task} attempt {task.attempt}")
        time.sleep(SAMPLE_S)


def kill(worker: Marked, title: str | None) -> None:
    """SIGKILL to everything of a worker, or to the one task of this title."""
    if title is None:
        worker.kill()
        return
    (pid,) = [process.pid for process in worker.alive() if process.title.endswith(title)]
    os.kill(pid, signal.SIGKILL)


def seeded(first: int, seeds: int) -> dict[str, Any]:
    """Lost and twice over runs of which each loses tasks, a worker, the leading controller, or the last two at once."""
    burnt: list[Burnt] = []
    with tempfile.TemporaryDirectory() as name:
        for item in burn(Path(name), range(first, first + seeds)):
            burnt.append(item)
            if not item.passed:
                print(f"not as without faults: {item}", file=sys.stderr)
    victims = {
        victim: {
            "seeds": len(found := [item for item in burnt if item.victim == victim]),
            "kills": sum(item.kills for item in found),
            "lost": sum(item.lost for item in found),
            "twice": sum(item.twice for item in found),
            "otherwise": sum(item.otherwise for item in found),
            "read_again": sum(item.read_again for item in found),
            "read_again_most": sum(item.most for item in found),
            "failed": sum(not item.passed for item in found),
            "closed_s_max": round(max((item.closed_s for item in found if item.closed_s is not None), default=0.0), 2),
        }
        for victim in VICTIMS
    }
    names = ("seeds", "kills", "lost", "twice", "otherwise", "failed")
    return {**{name: sum(facts[name] for facts in victims.values()) for name in names}, "victims": victims}


def _flows(samples: list[Sample], killed_s: float) -> Iterator[tuple[float, float]]:
    """For each moment from the kill on, the flow over the next second, as long as the run lasts."""
    for sample in samples:
        if sample.at_s >= killed_s and sample.at_s + WINDOW_S <= samples[-1].at_s:
            yield sample.at_s, _flow(samples, sample.at_s, sample.at_s + WINDOW_S)


def _flow(samples: list[Sample], begin_s: float, end_s: float) -> float:
    """Megabytes a second between two moments."""
    inside = [sample for sample in samples if begin_s <= sample.at_s <= end_s]
    return (inside[-1].read - inside[0].read) / (inside[-1].at_s - inside[0].at_s) / MB if len(inside) > 1 else 0.0


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "headrace.cli", *arguments]


def _started(stack: contextlib.ExitStack, marked: Marked, log: Any) -> "subprocess.Popen[bytes]":
    process = marked.start(log, log)
    stack.callback(process.wait)
    stack.callback(marked.kill)
    return process


def _address(log: Path, controller: "subprocess.Popen[bytes]") -> str:
    """The controller says in its log where it serves."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and controller.poll() is None:
        found = [line for line in map(as_text, log.read_bytes().splitlines()) if "serves on" in line]
        if found:
            return found[0].split("serves on", 1)[1].strip()
        time.sleep(SAMPLE_S)
    raise AssertionError(f"the controller did not serve within {START_S:.0f} s: {log.read_text()}")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the daemons end with this process
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", nargs="?", help="JSON Lines, one file or a glob, for the flow; without it, seeds only")
    parser.add_argument("--victim", choices=sorted(LIMIT_S), default="task")
    parser.add_argument("--seed", type=int, default=0, help="draws which task is killed, and the first of --seeds")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    controller = args.victim == "controller"
    result: dict[str, Any] = {}
    if args.input:
        flowed = failover(args.input) if controller else flow(args.input, args.victim, args.seed)
        result |= {"victim": args.victim, **flowed}
    if args.seeds:
        result["seeded"] = seeded(args.seed, args.seeds)
    if args.json:
        print(json.dumps(result))
    else:
        tell(result)
    failed = bool(args.seeds) and result["seeded"]["failed"] > 0
    sys.exit(failed or result.get("read_again", 0) > result.get("held_by_dead", 0))


def tell(result: dict[str, Any]) -> None:
    """The result for people."""
    if result.get("victim") == "controller":
        print(f"an entry after {result['recovery_s']} s, records closed after {result['closed_s']} s", end="; ")
        print(f"flow meanwhile {result['outage_share']} of {result['before_mb_s']} MB/s")
        print(f"{result['read_again']} records read again")
    elif "victim" in result:
        back = (
            "not back at 90 %" if result["recovery_s"] is None else f"back at 90 % after {result['recovery_s']:.2f} s"
        )
        print(f"{back} of {result['before_mb_s']:.1f} MB/s (limit {result['limit_s']:.0f} s)")
        print(f"{result['read_again']} records read again, of {result['held_by_dead']} that the dead held", end=" ")
        print(f"and {result['dead_had_read']} that they had read")
    for victim, facts in result.get("seeded", {}).get("victims", {}).items():
        print(f"{victim}: {facts}")


if __name__ == "__main__":
    main()
