"""What a change of graph or plan costs the flow: a stage replaced, scaled, a worker drained; beside it, by a pause.

Method: a controller and a worker of all cores (or two of half of them) as processes of this host; MEGABYTES of this
interpreter's modules as JSON Lines, in files of 4 MB, through gopher-quality, gopher-repetition and a tokenizer into
shards. Every LOOK_S the records that the tokenizer has had are read from the status; flow is their number over a window
of a second. Tasks report five times a second: between two reports the number is taken to have grown evenly, or a window
would be judged by how many reports fell into it. The flow before is the median of BEFORE_S seconds. Then: `replace` a
stage; `scale --wait` to one task more than there are cores; `drain --wait` one of two workers, so that half of the
tasks give way; for `pause`
`stop --wait` and `apply --amend`; for `decider`, with a dedup stage, `move --wait` of that to the other of two workers;
for `index` `replace` the stage before a dedup stage, so that another index takes over.
`lowest` is the lowest window of BEHIND_S seconds from the command on, as a share of the flow before; `below` the
seconds whose window is under 90 % of it; `calm` the lowest window of the time before: this is what the machine itself
does to the flow; `still` the longest time without a record. Each way is tried ROUNDS times, and the median of each
figure counts. Limits, of all but `pause`: lowest at least 0.6, below at most 5 s.

    python benchmarks/history_surgery.py TOKENIZER.json --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from bisect import bisect_left
from pathlib import Path

from headrace.client import Client, ControllerAt, pipeline_of

MEGABYTES = 2600
FILE_BYTES = 4 << 20
LOOK_S, WINDOW_S, BEFORE_S, BEHIND_S = 0.05, 1.0, 10.0, 15.0
LOWEST_MIN, BELOW_S_MAX = 0.6, 5.0
ROUNDS = 3
WAYS = ("replace", "scale", "drain", "pause", "decider", "index")
PIPELINE = """
from headrace import Pipeline, dedup, gopher_quality, gopher_repetition, read, tokenize, write_tokens

def build(input: str, output: str, tokenizer: str, words: int = 10, decides: bool = False) -> Pipeline:
    tokens = tokenize(tokenizer)
    quality = gopher_quality(words_min=words, word_length_max=100.0, symbols_per_word_max=10.0,
                             alphabetic_words_min=0.0, stop_words_min=0)
    return Pipeline.chain("flow", output, read(input), quality, gopher_repetition(tag=True),
                          *(dedup(near=False) if decides else ()), tokens,
                          write_tokens(tokens, shard_bytes=8 << 20))
"""
EXPRESSION = (
    "gopher_quality(words_min=12, word_length_max=100.0, symbols_per_word_max=10.0, alphabetic_words_min=0.0, "
    "stop_words_min=0)"
)


def write_corpus(folder: Path) -> None:
    """MEGABYTES of text, each file other than the others by a number in its lines."""
    texts = [path.read_text(errors="replace") for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
    written = number = 0
    while written < MEGABYTES << 20:
        lines: list[str] = []
        size = 0
        while size < FILE_BYTES:
            text = texts[number % len(texts)].replace("self", f"self{number // len(texts):06}")
            lines.append(json.dumps({"id": str(number), "text": text}))
            size, number = size + len(lines[-1]), number + 1
        (folder / f"{number:09}.jsonl").write_text("\n".join(lines))
        written += size


class Flow:
    """The records that the tokenizer has had, as time goes by."""

    def __init__(self, address: str) -> None:
        self._address, self._stop = address, threading.Event()
        self.times: list[float] = []
        self.counts: list[int] = []
        self._before = self._last = 0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        with Client(ControllerAt(self._address)) as client:
            while not self._stop.wait(LOOK_S):
                status = pipeline_of(client.status("flow"), "flow")
                count = sum(stage.records for stage in status.stages if stage.stage == "tokenize") if status else 0
                # A run that was applied again counts from zero.
                self._before += self._last if count < self._last else 0
                self._last = count
                self.times.append(time.monotonic())
                self.counts.append(self._before + count)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def still(self, first: float, last: float) -> float:
        """The longest time between these moments in which no record came."""
        longest, since = 0.0, first
        for at in range(bisect_left(self.times, first) + 1, bisect_left(self.times, last)):
            if self.counts[at] != self.counts[at - 1]:
                longest, since = max(longest, self.times[at] - since), self.times[at]
        return longest

    def windows(self, first: float, last: float) -> list[float]:
        """Records a second of each window that begins between these moments."""
        reported = [at for at in range(len(self.counts)) if not at or self.counts[at] != self.counts[at - 1]]
        times, counts = [self.times[at] for at in reported], [self.counts[at] for at in reported]

        def had(moment: float) -> float:
            at = min(max(1, bisect_left(times, moment)), len(times) - 1)
            share = (moment - times[at - 1]) / (times[at] - times[at - 1])
            return counts[at - 1] + min(share, 1.0) * (counts[at] - counts[at - 1])

        begins = self.times[bisect_left(self.times, first) : bisect_left(self.times, last)]
        return [(had(begin + WINDOW_S) - had(begin)) / WINDOW_S for begin in begins if begin + WINDOW_S <= times[-1]]


def measure(tokenizer: str, corpus: Path, place: Path, way: str) -> dict[str, float]:
    """One run, changed in one way."""
    place.mkdir(mode=0o700)
    (place / "flow.py").write_text(PIPELINE)
    address = f"unix:{place}/controller.sock"
    base = [sys.executable, "-P", "-m", "headrace.cli"]

    def call(*arguments: str) -> None:
        subprocess.run([*base, *arguments, "--controller", address], cwd=place, check=True, stdout=subprocess.DEVNULL)

    def apply(*more: str) -> None:
        given = ("-p", f"input={corpus}/*.jsonl", "-p", f"output={place}/out", "-p", f"tokenizer={tokenizer}")
        call("apply", "flow.py", *given, *more)

    workers = ("one", "two") if way in ("drain", "decider") else ("one",)
    commands = [("controller", "--listen", address)]
    cores = str(max(1, len(os.sched_getaffinity(0)) // len(workers)))
    commands += [("worker", "--controller", address, "--name", name, "--cores", cores) for name in workers]
    daemons = [subprocess.Popen([*base, *command], cwd=place, stderr=subprocess.DEVNULL) for command in commands]
    try:
        time.sleep(3.0)
        apply(*(("-p", "decides=true") if way in ("decider", "index") else ()))
        flow = Flow(address)
        while not flow.counts or flow.counts[-1] < 200:
            time.sleep(LOOK_S)
        time.sleep(BEFORE_S + 3.0)
        begun = time.monotonic()
        if way in ("replace", "index"):
            call("replace", "flow", "gopher-quality", EXPRESSION)
        elif way == "scale":
            call("scale", "flow", "tokenize", str(len(os.sched_getaffinity(0)) + 1), "--wait")
        elif way == "drain":
            call("drain", "one", "--wait")
        elif way == "decider":
            with Client(ControllerAt(address)) as client:
                status = pipeline_of(client.status("flow"), "flow")
            places = {task.worker for task in status.tasks if "dedup" in task.stages} if status else set()
            call("move", "flow", "dedup", "two" if places == {"one"} else "one", "--wait")
        else:
            call("stop", "flow", "--wait")
            apply("-p", "words=12", "--amend")
        took = time.monotonic() - begun
        time.sleep(max(0.0, BEHIND_S + WINDOW_S - took))
        with Client(ControllerAt(address)) as client:
            status = pipeline_of(client.status("flow"), "flow")
        if status is None or status.state != "running":
            raise SystemExit("the input has ended before the last window: raise MEGABYTES")
        call("cancel", "flow", "--wait")
        flow.close()
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(30)
    calm = flow.windows(begun - BEFORE_S - WINDOW_S, begun - WINDOW_S)
    changed = flow.windows(begun - WINDOW_S, begun + BEHIND_S)
    before = statistics.median(calm)
    return {
        "flow": round(before),
        "calm": round(min(calm) / before, 2),
        "lowest": round(min(changed) / before, 2),
        "below_s": round(sum(item < 0.9 * before for item in changed) * (BEHIND_S + WINDOW_S) / len(changed), 1),
        "calm_below_s": round(sum(item < 0.9 * before for item in calm) * BEFORE_S / len(calm), 1),
        "still_s": round(flow.still(begun, begun + BEHIND_S), 1),
        "command_s": round(took, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", help="path of a tokenizer.json")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each is measured")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="the changes to measure")
    arguments = parser.parse_args()
    tokenizer = str(Path(arguments.tokenizer).resolve())
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        write_corpus(corpus)
        rounds = {
            way: [measure(tokenizer, corpus, Path(folder) / f"{way}-{at}", way) for at in range(arguments.rounds)]
            for way in arguments.ways
        }
    found = {
        way: {name: statistics.median(one[name] for one in them) for name in them[0]} for way, them in rounds.items()
    }
    flowing = [item for way, item in found.items() if way != "pause"]
    passed = all(item["lowest"] >= LOWEST_MIN and item["below_s"] <= BELOW_S_MAX for item in flowing)
    result = {**found, "rounds": rounds, "lowest_min": LOWEST_MIN, "below_s_max": BELOW_S_MAX, "passed": passed}
    print(json.dumps(result) if arguments.json else "\n".join(f"{name:12} {value}" for name, value in result.items()))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
