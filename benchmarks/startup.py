"""How long `headrace run` takes from the start of its process to the first batch.

    python benchmarks/startup.py INPUT.jsonl [--runs 7] [--json]

Method: runs examples/plain.py on the given input again and again, each into a new dataset. `first_batch_s` is what the
run says of itself, from the start of the command to the first report of a batch (tasks report every 0.2 s, so it is
late by up to that much), plus the time that the same interpreter needs to start and do nothing, measured in the same
loop, which the command cannot see. The limit is 2 s; `ratio` is the median over the limit.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 2.0
RUN_S_MAX = 120.0
PLAIN = Path(__file__).resolve().parent.parent / "examples" / "plain.py"


def interpreter_s() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - started


def first_batch_s(source: str, folder: str) -> float:
    command = [sys.executable, "-m", "headrace.cli", "run", str(PLAIN), "--json"]
    parameters = ["-p", f"input={source}", "-p", f"output={folder}"]
    done = subprocess.run([*command, *parameters], capture_output=True, text=True, timeout=RUN_S_MAX, check=True)
    return float(json.loads(done.stdout)["first_batch_s"]) + interpreter_s()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    seen: list[float] = []
    for _ in range(args.runs):
        with tempfile.TemporaryDirectory() as folder:
            seen.append(first_batch_s(args.input, folder))
    median = statistics.median(seen)
    result = {"first_batch_s": round(median, 3), "limit_s": LIMIT_S, "ratio": round(median / LIMIT_S, 3), "runs": seen}
    print(json.dumps(result) if args.json else f"{median:.2f} s to the first batch, the limit is {LIMIT_S:.0f} s")


if __name__ == "__main__":
    main()
