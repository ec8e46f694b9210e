"""How long `headrace run` takes from the start of its process to the first batch, and what its start costs.

    python benchmarks/startup.py INPUT.jsonl [--runs 7] [--json]

Method: runs examples/plain.py on the given input again and again, each into a new dataset. `first_batch_s` is what
the run says of itself, from the start of the command to the report of the first batch, which a task sends when it has
read it, plus the time that the same interpreter needs to start and do nothing, measured in the same loop, which the
command cannot see. `seconds` and `cpu_s` are those of the whole command and of all its processes, `rest_s` from the
first batch to the end. Headrace has its modules as byte code, as an installation has them (benchmarks/bytecode.py).
All are medians. The limit is 2 s; `ratio` is the median of the first batch over the limit.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bytecode import as_installed

LIMIT_S = 2.0
RUN_S_MAX = 120.0
PLAIN = Path(__file__).resolve().parent.parent / "examples" / "plain.py"


@dataclass(frozen=True)
class Started:
    """One run: seconds to the first batch, in all, and of processor time."""

    first_batch_s: float
    seconds: float
    cpu_s: float


def interpreter_s() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - started


def run_once(source: str, folder: str, options: Sequence[str]) -> Started:
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", str(PLAIN), "--json", *options]
    parameters = ["-p", f"input={source}", "-p", f"output={folder}"]
    cpu_s, started = children_s(), time.perf_counter()
    done = subprocess.run([*command, *parameters], capture_output=True, text=True, timeout=RUN_S_MAX, check=True)
    seconds, cpu_s = time.perf_counter() - started, children_s() - cpu_s
    return Started(float(json.loads(done.stdout)["first_batch_s"]) + interpreter_s(), seconds, cpu_s)


def children_s() -> float:
    """Processor time of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-fuse", action="store_true")
    args = parser.parse_args()
    as_installed()
    seen: list[Started] = []
    for _ in range(args.runs):
        with tempfile.TemporaryDirectory() as folder:
            seen.append(run_once(args.input, folder, ["--no-fuse"] if args.no_fuse else []))
    first = statistics.median(item.first_batch_s for item in seen)
    result = {
        "first_batch_s": round(first, 3),
        "limit_s": LIMIT_S,
        "ratio": round(first / LIMIT_S, 3),
        "seconds": round(statistics.median(item.seconds for item in seen), 3),
        "rest_s": round(statistics.median(item.seconds - item.first_batch_s for item in seen), 3),
        "cpu_s": round(statistics.median(item.cpu_s for item in seen), 3),
        "runs": [item.first_batch_s for item in seen],
    }
    if args.json:
        print(json.dumps(result))
        return
    print(f"{first:.2f} s to the first batch, the limit is {LIMIT_S:.0f} s")
    print(f"{result['seconds']:.2f} s in all, {result['cpu_s']:.2f} s of processor time")


if __name__ == "__main__":
    main()
