"""How long `headrace run` takes over many small files, each of one record, beside a plain loop that parses them.

    python benchmarks/small_files.py [--files 21000] [--text] [--json]

Method: writes the files (100 B to 4 KiB, their logarithms evenly spread; JSON Lines, or plain text with `--text`), and
runs examples/plain.py on them into a new dataset. `seconds` and `cpu_s` are those of the whole command and of all its
processes; `loop_s` is a loop in this process that opens, reads and parses each. `ms_a_file` is `cpu_s` without the
start of a run, over the files. There is no limit: the figures are for comparison. Last results: docs/performance.md.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bytecode import as_installed
from startup import PLAIN, children_s

BYTES_MIN, BYTES_MAX = 100, 4096
RUN_S_MAX = 600.0
#: Processor time of a run of a single small file.
START_CPU_S = 1.5


def write_files(folder: Path, files: int, *, text: bool) -> str:
    """Make the input; the glob that names it."""
    chance = random.Random(7)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(5000)]
    for number in range(files):
        size = int(BYTES_MIN * (BYTES_MAX / BYTES_MIN) ** chance.random())
        content = " ".join(chance.choices(words, k=size // 6))[: size - 40]
        name = f"{chance.randrange(1 << 32):08x}-{number}"
        if text:
            (folder / f"{name}.txt").write_text(content)
        else:
            (folder / f"{name}.jsonl").write_text(json.dumps({"id": name, "text": content}) + "\n")
    return f"{folder}/*.{'txt' if text else 'jsonl'}"


def loop_s(folder: Path, *, text: bool) -> float:
    started = time.perf_counter()
    for path in folder.iterdir():
        with open(path, encoding="utf-8") as file:
            content = file.read()
            if not text:
                json.loads(content)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=21_000)
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    as_installed()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "in"
        folder.mkdir()
        named = write_files(folder, args.files, text=args.text)
        loop = loop_s(folder, text=args.text)
        command = [sys.executable, "-P", "-m", "headrace.cli", "run", str(PLAIN), "--json"]
        parameters = ["-p", f"input={named}", "-p", f"output={home}/out"]
        cpu_s, started = children_s(), time.perf_counter()
        subprocess.run([*command, *parameters], capture_output=True, timeout=RUN_S_MAX, check=True)
        seconds, cpu_s = time.perf_counter() - started, children_s() - cpu_s
    result = {
        "files": args.files,
        "seconds": round(seconds, 2),
        "cpu_s": round(cpu_s, 2),
        "ms_a_file": round(1000 * max(0.0, cpu_s - START_CPU_S) / args.files, 3),
        "loop_s": round(loop, 2),
    }
    if args.json:
        print(json.dumps(result))
        return
    print(f"{args.files} files: {seconds:.1f} s, {cpu_s:.1f} s of processor time, a plain loop {loop:.1f} s")


if __name__ == "__main__":
    main()
