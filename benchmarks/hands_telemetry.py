"""What traces, metrics and lineage cost a run: processor seconds of all its processes, with them over without.

Method: `headrace run` on the same text, on outputs of its own, in ROUNDS rounds of two runs each, whose order turns
from round to round. One is plain; the other has 1 % of its batches traced to a collector and its lineage written to a
folder, both of this process, and its controller and worker count for metrics as ever. The processor time is that of
the command and all that it waited for (`RUSAGE_CHILDREN`). The cost is the median over rounds of the ratio less 1.

    python benchmarks/hands_telemetry.py --json

Limit: 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.kits.run.collector import CollectorServer
from tests.kits.run.command import pipeline, run_command

ROUNDS = 8
MIB = 48
LIMIT = 0.01
RUN_S_MAX = 300.0


def corpus(folder: Path) -> None:
    """Text of the standard library, over and over."""
    texts = [
        file.read_text(encoding="utf-8", errors="replace") for file in sorted(Path(os.__file__).parent.glob("*.py"))
    ]
    for shard in range(4):
        size = number = 0
        with (folder / f"{shard}.jsonl").open("w") as out:
            while size < MIB << 18:
                text = texts[(number := number + 1) % len(texts)]
                size += out.write(json.dumps({"id": f"{shard}-{number}", "text": text}) + "\n")


def processor_s(home: Path, more: dict[str, str]) -> float:
    """A run's processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = run_command(home, str(home / "out"))
    subprocess.run(command, cwd=home, env=os.environ | more, check=True, capture_output=True, timeout=RUN_S_MAX)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(home / "out")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, CollectorServer() as collector:
        home = Path(folder)
        (home / "small.py").write_text(pipeline())
        (home / "corpus").mkdir()
        corpus(home / "corpus")
        told = {"HEADRACE_TRACES": f"http://127.0.0.1:{collector.port}", "HEADRACE_LINEAGE": str(home / "lineage")}
        processor_s(home, {})
        ratios: list[float] = []
        for number in range(rounds):
            kinds = ("plain", "told") if number % 2 else ("told", "plain")
            seconds = {kind: processor_s(home, told if kind == "told" else {}) for kind in kinds}
            ratios.append(seconds["told"] / seconds["plain"])
            print(f"round {number}: {seconds}", file=sys.stderr)
        spans = len(collector.spans())
    cost = statistics.median(ratios) - 1
    return {"cost": cost, "limit": LIMIT, "ratios": ratios, "spans": spans, "within": cost <= LIMIT}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    found = measure(given.rounds)
    print(json.dumps(found, indent=2) if given.json else f"cost {found['cost']:.2%} of a run's processor time")
    return 0 if found["within"] else 1


if __name__ == "__main__":
    sys.exit(main())
