"""The first minutes: from an empty environment to the first batch and the balance, Headrace beside datatrove.

    python benchmarks/first_hour.py [--json] [--megabytes 30] [--rounds 3] [--lazy] [--uv PATH] [--cache FOLDER]

Method. Both sides filter the same JSON Lines (documentation of the packages of this interpreter and the standard
library's sources, cut to --megabytes) by FineWeb's four families with the published parameters, and write what is
kept as JSON Lines: Headrace by `headrace run` on two files, datatrove by its LocalPipelineExecutor with two tasks and
two workers. Clocks start at an empty environment made by uv. It installs from a cache of its own that has the wheels
already, so no network is measured, and makes byte code as pip does; with `--lazy` the first run makes it, as uv leaves
it by default. Headrace's wheel is built from this tree before, with compiled loops. Nothing that Headrace kept is there
at the start of a round. Rounds of both alternate; a figure is their median, and a ratio the median of theirs.
`first_output_s` is when a file of the output has its first byte, looked for every 20 ms; `balance_s` is when the
command ends, with its counts printed, of datatrove in one round. `run_` and `warm_s` leave the installation out;
`warm_s` is one more run with what the last one kept. Megabytes are those of the environment. `loader` is a training
host: `headrace-loader` alone.

Needs uv (`pip install uv`), and packages that it can install.

Last result (two quiet cores, medians of two rounds; seconds):

                 installed   install   first output   balance   run alone, first batch   warm
    headrace        469 MB       7.4            9.7       9.8                      1.3    0.8
    datatrove       361 MB       6.6            9.0      50.2
    headrace-loader  79 MB       2.7

So datatrove takes 0.93 times as long as Headrace to the first output (by round 0.96, 0.90), and 5.1 times to the
balance. Three quarters of Headrace's time are the installation, most of it byte code: 42 MB of Python, datatrove 37.
With the method of `--lazy`, on a busy machine, Headrace had its first output 1.69 times sooner (1.69, 1.25, 1.70).
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
MB = 1_000_000
PEER = "datatrove==0.10.1", "xxhash<4", "spacy", "orjson", "regex"
FILES = 2
#: Limit on one command, in seconds.
COMMAND_S_MAX = 900
#: Seconds between two looks at the output.
LOOK_S = 0.02
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lazy", action="store_true", help="leave byte code to the first run, as uv does by default")
    parser.add_argument("--uv", default=shutil.which("uv") or "uv")
    parser.add_argument("--cache", type=pathlib.Path, help="uv's cache, where it is to be kept for the next time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(pathlib.Path(name), given.uv, given.megabytes, given.cache, given.rounds, lazy=given.lazy)
        found = {
            "megabytes_of_text": given.megabytes,
            "byte_code_at_install": not given.lazy,
            "cores": len(os.sched_getaffinity(0)),
            **bench.run(),
        }
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

    def __init__(
        self, folder: pathlib.Path, uv: str, megabytes: float, cache: pathlib.Path | None, rounds: int, *, lazy: bool
    ) -> None:
        self.folder, self.uv, self.cache = folder, uv, cache or folder / "uv"
        self.rounds = rounds
        self.how = [] if lazy else ["--compile-bytecode"]
        self.text = folder / "text"
        write_text(self.text, int(megabytes * MB))
        build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder / "wheels")]
        # Compiled where that is not done yet; a wheel brings them.
        loops = ROOT / "build" / "loops"
        self.call([sys.executable, "-m", "headrace.stages.text.machine.build", str(loops)])
        shutil.copytree(loops, folder / "tree" / "build" / "loops")
        for source in (copied(folder / "tree"), folder / "tree" / "wheels" / "loader"):
            self.call(["env", "HEADRACE_LOOPS=1", *build, str(source)])
        self.wheels = {path.name.partition("-")[0]: path for path in (folder / "wheels").glob("*.whl")}

    def run(self) -> dict[str, Any]:
        """All figures."""
        (self.folder / "first.py").write_text(HEADRACE)
        (self.folder / "peer.py").write_text(DATATROVE)
        wanted: dict[str, Any] = {"headrace": [str(self.wheels["headrace"])], "datatrove": PEER}
        for name, packages in wanted.items():  # so that their wheels are in the cache
            self.install(name, packages)
        rounds = [
            {name: self.round(name, packages, number) for name, packages in wanted.items()}
            for number in range(self.rounds)
        ]
        sides = {name: middle([each[name] for each in rounds]) for name in wanted}
        for name, side in sides.items():
            first_s, ended_s, said = self.timed(name, "warm")
            side["warm_s"] = {"first_output": first_s, "balance": ended_s, **said}
        firsts = [each["datatrove"]["first_output_s"] / each["headrace"]["first_output_s"] for each in rounds]
        return {
            **sides,
            "loader": self.loader(),
            "times_first": round(statistics.median(firsts), 2),
            "times_first_rounds": [round(each, 2) for each in firsts],
            "times_balance": round(sides["datatrove"]["balance_s"] / sides["headrace"]["balance_s"], 2),
        }

    def round(self, name: str, packages: Any, number: int) -> dict[str, Any]:
        """One side in a new environment, with nothing kept: installed, and run. Whole only once: it takes minutes."""
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        begun = time.monotonic()
        self.install(name, packages)
        installed_s = time.monotonic() - begun
        size = sum(file.stat().st_size for file in self.environment(name).rglob("*") if file.is_file())
        first_s, ended_s, said = self.timed(name, str(number), whole=number == 0 or name == "headrace")
        return {
            "installed_mb": round(size / MB, 1),
            "install_s": round(installed_s, 2),
            "first_output_s": round(installed_s + first_s, 2),
            "run_first_output_s": first_s,
            **({} if ended_s is None else {"balance_s": round(installed_s + ended_s, 2), "run_balance_s": ended_s}),
            **said,
        }

    def loader(self) -> dict[str, Any]:
        """A training host."""
        begun = time.monotonic()
        self.install("loader", [str(self.wheels["headrace_loader"])])
        installed_s = time.monotonic() - begun
        size = round(
            sum(file.stat().st_size for file in self.environment("loader").rglob("*") if file.is_file()) / MB, 1
        )
        self.call([self.python("loader"), "-c", LOADER])
        return {"installed_mb": size, "install_s": round(installed_s, 2)}

    def install(self, name: str, wanted: Any) -> None:
        """A new environment with what is wanted."""
        shutil.rmtree(self.environment(name), ignore_errors=True)
        self.call([self.uv, "venv", "-q", "-p", sys.executable, str(self.environment(name))])
        where = ["--cache-dir", str(self.cache), "-p", self.python(name)]
        self.call([self.uv, "pip", "install", "-q", *self.how, *where, *wanted])

    def environment(self, name: str) -> pathlib.Path:
        return self.folder / f"env-{name}"

    def python(self, name: str) -> str:
        return str(self.environment(name) / "bin" / "python")

    def command(self, name: str, out: pathlib.Path) -> list[str]:
        """What runs a side, with its output there."""
        if name == "datatrove":
            return [self.python(name), str(self.folder / "peer.py"), str(self.text), str(out), str(out) + "-logs"]
        text = f"input={self.text}/*.jsonl"
        command = str(pathlib.Path(self.python(name)).with_name("headrace"))
        return [command, "run", str(self.folder / "first.py"), "-p", text, "-p", f"output={out}", "--json"]

    def call(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")

    def timed(self, name: str, run: str, *, whole: bool = True) -> tuple[float, float | None, dict[str, float]]:
        """Seconds to the first byte of the output and, if awaited, to the end; and what is said of the first batch."""
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        env = {**kept, "XDG_CACHE_HOME": str(self.folder / "cache"), "HOME": str(self.folder)}
        out = self.folder / f"{name}-{run}"
        begun = time.monotonic()
        with open(self.folder / "errors", "w+") as errors, open(self.folder / "said", "w+") as said:
            command = self.command(name, out)
            process = subprocess.Popen(command, stdout=said, stderr=errors, env=env, start_new_session=True)
            first_s = None
            while process.poll() is None and (whole or first_s is None):
                if first_s is None and any(file.stat().st_size for file in out.rglob("*.jsonl*") if file.is_file()):
                    first_s = round(time.monotonic() - begun, 2)
                if time.monotonic() - begun > COMMAND_S_MAX:
                    raise SystemExit(f"{name} takes longer than {COMMAND_S_MAX} s")
                time.sleep(LOOK_S)
            ended_s = round(time.monotonic() - begun, 2)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return first_s or ended_s, None, {}
            if process.returncode:
                raise SystemExit((self.folder / "errors").read_text())
            text = (self.folder / "said").read_text()
            batch = {"first_batch_s": json.loads(text)["first_batch_s"]} if text.startswith("{") else {}
        return first_s or ended_s, ended_s, batch


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, over the rounds that have it."""
    names = dict.fromkeys(name for each in rounds for name in each)
    return {name: round(statistics.median(each[name] for each in rounds if name in each), 2) for name in names}


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
