"""How planning, the ledger and the commit path grow.

    python benchmarks/scale.py [--part plan|ledger|commit]... [--store URI|s3] [--svg FILE] [--json]

plan    A pipeline of three stages with 10 tasks a worker is planned on 100 to 10,000 workers of racks of 100, and again
        after a rack is lost; process time of one thread, which looks for cyclic garbage as seldom as the controller
        does, the median of `--rounds`, of more where a plan is small. Wanted: 2 s and 0.5 s at 10,000 workers and
        100,000 tasks; the growth from 100 to 10,000 no worse than n log n.
ledger  10,260 fragments of 100,000 records, closed in ranges of 1,000, fifty ranges a shard, out of order, so that
        every second range of a fragment stays apart from its neighbours until the end; one fragment of ten is left
        with such holes. The fold is written as a snapshot and opened from it in a process of its own. Wanted: under
        1 GB (peak resident set of that process) and under 5 s, interpreter and imports included.
commit  Proposals of 1,000 records in ten ranges, as their bytes come from the wire, from `--sinks` sinks that each wait
        for the answer before they propose again: decoded, judged, queued, written as entries by group commit into a
        real store and folded. The controller's own classes; gRPC's transport is left out. Wanted: 500 shards/s on
        file://, 100/s on S3: `--store s3` starts a SeaweedFS on this machine, `--store s3://...` takes another.

Last result: docs/performance.md.
"""

import argparse
import asyncio
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PARTS = ("plan", "ledger", "commit")
WORKERS = (100, 300, 1_000, 3_000, 10_000)
PLAN_S_MAX, AGAIN_S_MAX = 2.0, 0.5
#: One fragment of ten keeps a quarter of its records open, so that a billion are closed.
FRAGMENTS, FRAGMENT_RECORDS, RANGE_RECORDS = 10_260, 100_000, 1_000
OPEN_S_MAX, RSS_BYTES_MAX = 5.0, 1e9
WANTED_PER_S = {"file": 500.0, "s3": 100.0}
MIB = 1 << 20


def plan_part(rounds: int) -> dict[str, Any]:
    from headrace.controller import look_for_cycles_seldom

    look_for_cycles_seldom()
    rows = [_planned(count, rounds * max(1, 1000 // count)) for count in WORKERS]
    first, last = rows[0], rows[-1]

    def growth(name: str) -> float:
        n, m = first["tasks"], last["tasks"]
        return (last[name] / first[name]) / (m * math.log(m) / (n * math.log(n)))

    return {
        "rows": rows,
        "plan_s": last["plan_s"],
        "plan_s_max": PLAN_S_MAX,
        "again_s": last["again_s"],
        "again_s_max": AGAIN_S_MAX,
        "growth_over_n_log_n": {name: round(growth(name), 3) for name in ("plan_s", "again_s")},
    }


def _planned(count: int, rounds: int) -> dict[str, Any]:
    from headrace.controller.core.plan import WorkerFacts, move, plan
    from headrace.pipeline import Pipeline, Stage, StageKind

    workers = [
        WorkerFacts(f"w{i:05}", 5, f"h{i}", (f"rack=r{i // 100}", f"zone=z{i // 1000}"), ("x",), 64 << 30)
        for i in range(count)
    ]
    stages = (
        Stage("read", StageKind.SOURCE, "m:read", replicas=count),
        Stage("keep", StageKind.TRANSFORM, "m:keep", after=("read",), cores=1.0, replicas=5 * count),
        Stage("write", StageKind.SINK, "m:write", after=("keep",), replicas=4 * count),
    )
    pipeline = Pipeline("scale", "file:///scale", stages)
    lost = [worker.name for worker in workers[: min(100, count // 2)]]
    planned: list[float] = []
    again: list[float] = []
    for _ in range(rounds):
        started = time.process_time()
        current = plan(pipeline, workers)
        planned.append(time.process_time() - started)
        started = time.process_time()
        move(current, lost, workers)
        again.append(time.process_time() - started)
    return {
        "workers": count,
        "tasks": len(current.tasks),
        "links": len(current.links),
        "plan_s": round(statistics.median(planned), 4),
        "again_s": round(statistics.median(again), 4),
    }


def ledger_part() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        made = json.loads(_child("--make", folder))
        opened = json.loads(_child("--open", folder))
    return {**made, **opened, "open_s_max": OPEN_S_MAX, "rss_bytes_max": RSS_BYTES_MAX}


def _child(*arguments: str) -> str:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    return json.dumps({**answer, f"{arguments[0].strip('-')}_process_s": round(time.perf_counter() - started, 2)})


def make_ledger(folder: str) -> dict[str, Any]:
    """Fold a billion records' entries, and put the snapshot into the folder."""
    from headrace.store.ledger import (
        Closed,
        Counts,
        Entry,
        Fragment,
        FragmentsListed,
        Led,
        LedgerState,
        Range,
        StoredObject,
        encode_snapshot,
    )

    state = LedgerState()
    fragments = [
        Fragment.named("read", f"s3://corpus/{i:06}.jsonl.zst", "e", start=0, end=-1, reader="jsonl", size=10**8)
        for i in range(FRAGMENTS)
    ]
    state.apply(0, Entry(1, (Led(1, {}), FragmentsListed(tuple(fragments)))))
    started = time.perf_counter()
    firsts = list(range(0, FRAGMENT_RECORDS, RANGE_RECORDS))
    closed = 0
    for number, fragment in enumerate(fragments):
        # Even ranges first, then odd ones: each of the first half is a run of its own until the second half comes.
        for half in (firsts[::2], firsts[1::2] if number % 10 else firsts[1::4]):
            ranges = tuple(Range(fragment.id, at, RANGE_RECORDS, at * 1000, RANGE_RECORDS * 1000) for at in half)
            name = f"{2 * number + half[0] // RANGE_RECORDS:032x}"
            objects = tuple(
                StoredObject(role, f"shards/1/{name}.{role}", f"xxh3-128:{name}", 30 * MIB)
                for role in ("tokens", "documents", "verdicts")
            )
            records = len(ranges) * RANGE_RECORDS
            counts = Counts(kept=records, filtered_by={"keep/short": 0}, tokens=records * 500)
            state.apply(state.number + 1, Entry(1, (Closed("write", "v", 0, ranges, objects, counts),)))
            closed += records
    folded_s = time.perf_counter() - started
    data = encode_snapshot(state)
    (Path(folder) / "snapshot").write_bytes(data)
    ranges_in_all = sum(len(shard.closed.ranges) for shard in state.shards)
    return {
        "records": closed,
        "ranges": ranges_in_all,
        "shards": len(state.shards),
        "snapshot_bytes": len(data),
        "fold_s": round(folded_s, 2),
    }


def open_ledger(folder: str) -> dict[str, Any]:
    started = time.perf_counter()
    from headrace.store.ledger import LedgerState, decode_snapshot

    state = decode_snapshot((Path(folder) / "snapshot").read_bytes())
    elapsed = time.perf_counter() - started
    assert isinstance(state, LedgerState)
    return {"open_s": round(elapsed, 2), "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def commit_part(uri: str, sinks: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        uri = _served() if uri == "s3" else uri
        kind = "s3" if uri.startswith("s3:") else "file"
        answer = asyncio.run(_commit(uri or f"{folder}/dataset", sinks, seconds))
    return {"store": kind, "sinks": sinks, **answer, "shards_per_s_wanted": WANTED_PER_S[kind]}


def _served() -> str:
    """A place in a real S3 server that is started here and ends with this process."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.kits.store.s3_server import shared_server

    return shared_server().uri("scale")


async def _commit(uri: str, sinks: int, seconds: float) -> dict[str, Any]:
    from headrace.controller import Logs, identity
    from headrace.controller.core.log import Leadership, LeaderState, LogLimits
    from headrace.controller.core.messages import ReadLog, WriteEntry
    from headrace.controller.core.run import Committer
    from headrace.store import open_store
    from headrace.store.ledger import Closed, EpochRaised, Fragment, FragmentsListed, LedgerState, PipelineApplied

    uri = open_store(uri).uri
    logs, leadership = Logs(), Leadership(uri, identity(), LedgerState(), limits=LogLimits(1 << 30))
    committer = Committer(leadership.ledger)
    fragments = [
        Fragment.named("read", f"file:///corpus/{i}", "e", start=0, end=-1, reader="jsonl", size=10**9)
        for i in range(sinks)
    ]
    offered = _offers(fragments)
    asked_at: dict[int, float] = {}
    waits: list[float] = []
    accepted = entries = 0

    def propose(sink: int) -> None:
        event = offered(sink, leadership.ledger.epoch)
        asked_at[sink] = time.perf_counter()
        judgement = committer.judge(event, "v", leadership.ledger.epoch)
        assert judgement.closed is not None, judgement
        leadership.submit(judgement.closed)

    pending: list[Any] = list(leadership.open())
    opened = False
    deadline = math.inf
    started = time.perf_counter()
    while time.perf_counter() < deadline:
        while pending:
            command = pending.pop(0)
            if isinstance(command, ReadLog):
                pending += leadership.handle(await logs.read(command), time.monotonic())
            elif isinstance(command, WriteEntry):
                pending += leadership.handle(await logs.write(command), time.monotonic())
        for _, entry in leadership.committed():
            for change in entry.changes:
                for waiter in committer.durable(change) if isinstance(change, Closed) else ():
                    waits.append(time.perf_counter() - asked_at[waiter.proposal])
                    accepted += 1
                    propose(waiter.proposal)
            entries += isinstance(entry.changes[-1], Closed)
        if leadership.state is LeaderState.LEADING and not opened:
            opened = True
            leadership.submit(PipelineApplied("v", {}), EpochRaised("created"), FragmentsListed(tuple(fragments)))
        elif leadership.ledger.epoch and deadline == math.inf:
            started = time.perf_counter()
            deadline = started + seconds
            for sink in range(sinks):
                propose(sink)
        pending += leadership.flush(time.monotonic())
    elapsed = time.perf_counter() - started
    logs.close()
    return {
        "shards": accepted,
        "shards_per_s": round(accepted / elapsed, 1),
        "shards_per_entry": round(accepted / max(1, entries), 1),
        "answer_s_median": round(statistics.median(waits), 4),
        "answer_s_p99": round(sorted(waits)[int(len(waits) * 0.99)], 4),
    }


def _offers(fragments: list[Any]) -> Any:
    """A function that gives the next proposal of a sink, decoded from the bytes of its message."""
    from headrace.controller import task_event
    from headrace.protos import control_pb2 as pb

    positions = [0] * len(fragments)
    bits, none = ((1 << 100) - 1).to_bytes(13, "little"), bytes(13)

    def next_of(sink: int, epoch: int) -> Any:
        message = pb.Proposed(proposal=sink, sink="write", version="v", epoch=epoch)
        for _ in range(10):
            first = positions[sink]
            positions[sink] += 100
            message.ranges.append(
                pb.Range(
                    fragment=fragments[sink].id, first=first, count=100, offset=first, length=100, kept=bits,
                    verdicts=none,
                )
            )  # fmt: skip
        name = f"{sink:016x}{positions[sink]:016x}"
        for role in ("tokens", "documents", "verdicts"):
            key = f"shards/{epoch}/{name}.{role}"
            message.objects.append(pb.StoredObject(role=role, key=key, checksum=f"xxh3-128:{name}", size=MIB))
        message.counts.kept = 1000
        data = pb.TaskEvent(task="scale/write.0", attempt=1, proposed=message).SerializeToString()
        return task_event(pb.TaskEvent.FromString(data))

    return next_of


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 620, 360, 70, 130, 30, 40
COLOURS = {"plan_s": "#1f6f8b", "again_s": "#c2571a", "n log n": "#777777"}
WORDS = {"plan_s": "planned", "again_s": "a rack lost"}


def plot(rows: list[dict[str, Any]]) -> str:
    """An SVG of both costs over the tasks, on logarithmic axes, beside n log n."""
    tasks = [row["tasks"] for row in rows]
    lines = {name: [row[name] for row in rows] for name in WORDS}
    base = lines["plan_s"][0] / (tasks[0] * math.log(tasks[0]))
    lines["n log n"] = [base * n * math.log(n) for n in tasks]
    values = [value for line in lines.values() for value in line]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def x(n: float) -> float:
        return LEFT + math.log10(n / tasks[0]) / math.log10(tasks[-1] / tasks[0]) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">']
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    for power in range(low, high + 1):
        level = f'y1="{y(10**power):.1f}" y2="{y(10**power):.1f}"'
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" {level} stroke="#dddddd"/>')
        parts.append(_text(LEFT - 6, y(10**power) + 4, f"{10.0**power:g}", "end"))
    parts += [_text(x(n), HEIGHT - 20, f"{n:,}", "middle") for n in tasks]
    for name, line in lines.items():
        points = " ".join(f"{x(n):.1f},{y(value):.1f}" for n, value in zip(tasks, line, strict=True))
        dash = "" if name in WORDS else ' stroke-dasharray="5 4"'
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"{dash}/>')
        label = f"{WORDS[name]}: {line[-1]:.2f} s" if name in WORDS else "n log n"
        aside = 4 if name in WORDS else -10
        parts.append(_text(x(tasks[-1]) + 6, y(line[-1]) + aside, label, "start", COLOURS[name]))
    parts.append(_text(LEFT, 16, "seconds of one core", "start"))
    parts.append(_text((WIDTH - RIGHT + LEFT) / 2, HEIGHT - 4, "tasks", "middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#222222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" fill="{colour}">{text}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--store", default="", help="where the commit path writes; a temporary folder by default")
    parser.add_argument("--sinks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--svg", default="", help="write the plot of planning there")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--make", default="", help=argparse.SUPPRESS)
    parser.add_argument("--open", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make or args.open:
        print(json.dumps(make_ledger(args.make) if args.make else open_ledger(args.open)))
        return
    found: dict[str, Any] = {}
    for part in args.part or PARTS:
        if part == "plan":
            found[part] = plan_part(args.rounds)
            if args.svg:
                Path(args.svg).write_text(plot(found[part]["rows"]))
        elif part == "ledger":
            found[part] = ledger_part()
        else:
            found[part] = commit_part(args.store, args.sinks, args.seconds)
    if args.json:
        print(json.dumps(found))
        return
    for part, facts in found.items():
        print(part)
        for name, value in facts.items():
            for row in value if name == "rows" else [f"{name} {value}"]:
                print(f"  {row}")


if __name__ == "__main__":
    main()
