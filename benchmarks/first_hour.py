"""The first minutes: from an empty environment to the first batch and the balance, Headrace beside datatrove.

    python benchmarks/first_hour.py [--json] [--megabytes 30] [--uv PATH] [--cache FOLDER]

Method. Both sides filter the same JSON Lines (documentation of the packages of this interpreter and the standard
library's sources, cut to --megabytes) by FineWeb's four families with the published parameters, and write what is
kept as JSON Lines: Headrace by `headrace run` on two files, datatrove by its LocalPipelineExecutor with two tasks and
two workers. Clocks start at an empty environment made by uv. It installs from a cache of its own that has the wheels
already, so no network is measured; Headrace's wheel is built from this tree before. The machine code that Headrace
keeps goes to an empty folder. `first_output_s` is when a file of the output has its first byte, seen every 20 ms;
`balance_s` is when the command ends, with its counts printed. `run_s` and `warm_s` leave the installation out;
`warm_s` is a second run with what the first one kept. Megabytes are those of the environment. `loader` is a training
host: `headrace-loader` alone.

Needs uv (`pip install uv`), and packages that it can install.

Last result (two cores, a load of about 4, its own included; seconds):

                 installed   install   first output   balance   run alone, first batch   warm
    headrace        678 MB       8.5           18.2      18.4                      8.3    1.4
    datatrove       361 MB      13.1           18.0      58.9
    headrace-loader  79 MB       2.3

So datatrove takes 0.99 times as long as Headrace to the first output and 3.2 times to the balance: Headrace
compiles first, and a sink writes when its shard is sealed.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
MB = 1_000_000
PEER = "datatrove==0.9.0", "xxhash<4", "spacy", "orjson", "regex"
FILES = 2
#: Limit on one command, in seconds.
COMMAND_S_MAX = 900
HEADRACE = """
from headrace import Pipeline, c4_quality, fineweb_quality, gopher_quality, gopher_repetition, read_jsonl, write_jsonl


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain(
        "first", output, read_jsonl(input), gopher_repetition(), gopher_quality(),
        c4_quality(terminal_punctuation=False), fineweb_quality(), write_jsonl(),
    )
"""
DATATROVE = """
import importlib.metadata, sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import *
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter

if __name__ == "__main__":
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(sys.argv[1]), GopherRepetitionFilter(), GopherQualityFilter(),
            C4QualityFilter(filter_no_terminal_punct=False), FineWebQualityFilter(),
            JsonlWriter(sys.argv[2], compression=None),
        ],
        tasks=2, workers=2, logging_dir=sys.argv[3],
    ).run()
"""
LOADER = "from headrace.loader import Loader; from headrace.loader.dataset import open_dataset"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--megabytes", type=float, default=30.0)
    parser.add_argument("--uv", default=shutil.which("uv") or "uv")
    parser.add_argument("--cache", type=pathlib.Path, help="uv's cache, where it is to be kept for the next time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(pathlib.Path(name), given.uv, given.megabytes, given.cache)
        found = {"megabytes_of_text": given.megabytes, "cores": len(os.sched_getaffinity(0)), **bench.run()}
    if given.json:
        print(json.dumps(found))
        return
    for side in ("headrace", "datatrove", "loader"):
        print(side, found[side])
    print(
        "datatrove by Headrace, to the first output and to the balance:", found["times_first"], found["times_balance"]
    )


class Bench:
    """A folder with the text, the wheels and an environment for each side."""

    def __init__(self, folder: pathlib.Path, uv: str, megabytes: float, cache: pathlib.Path | None) -> None:
        self.folder, self.uv, self.cache = folder, uv, cache or folder / "uv"
        self.text = folder / "text"
        write_text(self.text, int(megabytes * MB))
        build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder / "wheels")]
        for source in (copied(folder / "tree"), folder / "tree" / "wheels" / "loader"):
            self.call([*build, str(source)])
        self.wheels = {path.name.partition("-")[0]: path for path in (folder / "wheels").glob("*.whl")}

    def run(self) -> dict[str, Any]:
        """All figures."""
        (self.folder / "first.py").write_text(HEADRACE)
        (self.folder / "peer.py").write_text(DATATROVE)
        sides = {
            "headrace": self.side("headrace", [str(self.wheels["headrace"])], self.headrace),
            "datatrove": self.side("datatrove", PEER, self.datatrove),
        }
        ours, peers = sides["headrace"], sides["datatrove"]
        return {
            **sides,
            "loader": self.loader(),
            "times_first": round(peers["first_output_s"] / ours["first_output_s"], 2),
            "times_balance": round(peers["balance_s"] / ours["balance_s"], 2),
        }

    def side(self, name: str, wanted: Any, run: Callable[[str, pathlib.Path], list[str]]) -> dict[str, Any]:
        """One side: installed once so that the wheels are there, then again, and run twice."""
        self.install(name, wanted)
        begun = time.monotonic()
        size = self.install(name, wanted)
        installed_s = time.monotonic() - begun
        cold, warm = (self.timed(run(name, out), out) for out in (self.folder / f"{name}-{n}" for n in (1, 2)))
        return {
            "installed_mb": size,
            "install_s": round(installed_s, 2),
            "first_output_s": round(installed_s + cold[0], 2),
            "balance_s": round(installed_s + cold[1], 2),
            "run_s": {"first_output": round(cold[0], 2), "balance": round(cold[1], 2), **cold[2]},
            "warm_s": {"first_output": round(warm[0], 2), "balance": round(warm[1], 2), **warm[2]},
        }

    def loader(self) -> dict[str, Any]:
        """A training host."""
        begun = time.monotonic()
        size = self.install("loader", [str(self.wheels["headrace_loader"])])
        installed_s = time.monotonic() - begun
        self.call([self.python("loader"), "-c", LOADER])
        return {"installed_mb": size, "install_s": round(installed_s, 2)}

    def install(self, name: str, wanted: Any) -> float:
        """A new environment with what is wanted; its megabytes."""
        environment = self.folder / f"env-{name}"
        shutil.rmtree(environment, ignore_errors=True)
        self.call([self.uv, "venv", "-q", "-p", sys.executable, str(environment)])
        where = ["--cache-dir", str(self.cache), "-p", self.python(name)]
        self.call([self.uv, "pip", "install", "-q", "--compile-bytecode", *where, *wanted])
        return round(sum(file.stat().st_size for file in environment.rglob("*") if file.is_file()) / MB, 1)

    def python(self, name: str) -> str:
        return str(self.folder / f"env-{name}" / "bin" / "python")

    def headrace(self, name: str, out: pathlib.Path) -> list[str]:
        text = f"input={self.text}/*.jsonl"
        command = str(pathlib.Path(self.python(name)).with_name("headrace"))
        return [command, "run", str(self.folder / "first.py"), "-p", text, "-p", f"output={out}", "--json"]

    def datatrove(self, name: str, out: pathlib.Path) -> list[str]:
        return [self.python(name), str(self.folder / "peer.py"), str(self.text), str(out), str(out) + "-logs"]

    def call(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")

    def timed(self, command: list[str], out: pathlib.Path) -> tuple[float, float, dict[str, float]]:
        """Seconds to the first byte of the output and to the end, and what the command says of its first batch."""
        env = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"), "HOME": str(self.folder)}
        first: list[float] = []
        over = threading.Event()
        begun = time.monotonic()

        def look() -> None:
            while not over.wait(0.02) and not first:
                if any(file.stat().st_size for file in out.rglob("*.jsonl*") if file.is_file()):
                    first.append(time.monotonic() - begun)

        watcher = threading.Thread(target=look)
        watcher.start()
        with open(self.folder / "errors", "w+") as errors:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env, timeout=COMMAND_S_MAX, check=False
            )
            ended = time.monotonic() - begun
            over.set()
            watcher.join()
            if done.returncode:
                raise SystemExit((self.folder / "errors").read_text())
        said = {}
        if done.stdout.startswith("{"):
            said = {"first_batch": json.loads(done.stdout)["first_batch_s"]}
        return (first[0] if first else ended), ended, said


def copied(tree: pathlib.Path) -> pathlib.Path:
    """The tree as git has it, so that no build leaves traces in it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0")[:-1]:
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    return tree


def write_text(folder: pathlib.Path, size: int) -> None:
    """JSON Lines of what is on any machine with Python, in FILES files."""
    folder.mkdir()
    lines: list[list[str]] = [[] for _ in range(FILES)]
    library, site = (pathlib.Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    found = [*sorted(site.rglob("*.md")), *sorted(site.rglob("*.rst")), *sorted(site.rglob("METADATA"))]
    written = 0
    for number, path in enumerate([*found, *sorted(library.rglob("*.py"))]):
        text = path.read_text(encoding="utf-8", errors="ignore")
        line = json.dumps({"id": str(number), "text": text[:100_000]})
        lines[number % FILES].append(line)
        written += len(line)
        if written >= size:
            break
    for number, held in enumerate(lines):
        (folder / f"{number}.jsonl").write_text("\n".join(held) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
