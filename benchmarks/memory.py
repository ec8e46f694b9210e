"""Peak memory of a run by the size of its input.

    python benchmarks/memory.py CORPUS [--json] [--megabytes 64 500] [--no-fuse] [--sink tokens|documents|lines]

Method. `headrace run examples/plain.py` (of `--sink documents` and `lines`: read and `write_documents()`, or
`write_jsonl()`, and nothing else) on the first `--megabytes` of CORPUS, twice. While it runs, each SAMPLE_S the
proportional set size (`smaps_rollup`) of the command and all its descendants is summed: memory that processes share,
such as that of links, is counted once. The peak of the sums is the result, and `ratio` that of the larger input over
the smaller: what a run holds shall follow from its settings and not from its input. A sum is not taken at one instant,
so that a peak shorter than SAMPLE_S may be missed. One during which a process began or ended does not count: what the
others share with it would be in the sum twice, or not at all.

Of more samples the highest is higher, also where a run holds no more. A run of 64 MB is over after some 50 and one of
500 MB after 150 to 180, so the smaller is run again until it has had as many (RUNS_MAX times at most), and its highest
counts. `ratio_once` is against its first run alone.

Last result: docs/performance.md.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

from plain import EXAMPLE, MB, RUN_S_MAX, take

SAMPLE_S = 0.02
RUNS_MAX = 8
TEXT_SINKS = {"documents": "write_documents", "lines": "write_jsonl"}
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read, {write}


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("text", output, read(input), {write}())
"""


class Peak:
    """Samples the memory of a process and its descendants until it is closed."""

    def __init__(self, pid: int) -> None:
        self.bytes, self.processes, self.samples = 0, 0, 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(10)

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            family = descendants(self._pid)
            total = sum(proportional_bytes(pid) for pid in family)
            if descendants(self._pid) != family:
                continue
            self.samples += 1
            if total > self.bytes:
                self.bytes, self.processes = total, len(family)


def descendants(root: int) -> list[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for path in pathlib.Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found, pending = [], [root]
    while pending:
        pid = pending.pop()
        found.append(pid)
        pending += children.get(pid, [])
    return found


def proportional_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("Pss:")), 0)
    except OSError:
        return 0


def measure(files: Sequence[pathlib.Path], corpus: pathlib.Path, sink: str, options: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=corpus, prefix=".memory-") as folder:
        pipeline = EXAMPLE
        if sink in TEXT_SINKS:
            pipeline = pathlib.Path(folder, "text.py")
            pipeline.write_text(PIPELINE.format(write=TEXT_SINKS[sink]), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "headrace.cli", "run", str(pipeline), "--json", *options]
        command += ["-p", f"input={','.join(map(str, files))}", "-p", f"output={folder}/out"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        peak = Peak(process.pid)
        _, said = process.communicate(timeout=RUN_S_MAX)
        peak.close()
    if process.returncode:
        raise SystemExit(f"headrace run ended with {process.returncode}:\n{said}")
    size = sum(path.stat().st_size for path in files)
    return {
        "megabytes": size / MB,
        "peak_mib": peak.bytes / (1 << 20),
        "processes": peak.processes,
        "samples": peak.samples,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--json", action="store_true", help="print one object and nothing else")
    parser.add_argument("--megabytes", type=int, nargs=2, default=[64, 500])
    parser.add_argument("--no-fuse", action="store_true")
    parser.add_argument("--sink", choices=("tokens", *TEXT_SINKS), default="tokens")
    args = parser.parse_args(argv)
    options = ("--no-fuse",) if args.no_fuse else ()
    small, large = (take(args.corpus, size * MB) for size in sorted(args.megabytes))
    runs = [measure(files, args.corpus, args.sink, options) for files in (small, large)]
    again = [runs[0]]
    while sum(run["samples"] for run in again) < runs[1]["samples"] and len(again) < RUNS_MAX:
        again.append(measure(small, args.corpus, args.sink, options))
    peaks = [run["peak_mib"] for run in again]
    report = {
        "runs": [{**runs[0], "peak_mib": max(peaks), "peaks_mib": peaks}, runs[1]],
        "ratio": runs[1]["peak_mib"] / max(peaks),
        "ratio_once": runs[1]["peak_mib"] / peaks[0],
        "fused": not args.no_fuse,
        "sink": args.sink,
    }
    if args.json:
        print(json.dumps(report))
        return 0
    for run in runs:
        print(f"{run['megabytes']:6.0f} MB of input: peak {run['peak_mib']:.0f} MiB in {run['processes']} processes")
    print(f"ratio {report['ratio']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
