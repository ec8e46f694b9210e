"""What a changed late filter costs with a base, of a full run: processor time of all processes, results equal.

Method: RECORDS texts of a few hundred words, of which quality filters remove some, go through three filters of quality,
a language filter and a late filter to documents (`--tokenizer FILE`: to tokens). The late filter is changed. The new
recipe runs in full, and `--from` the old dataset; every record is then compared with `differences`. Limit: 0.15.

    python benchmarks/history_recompute.py --json
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.store.datasets import Dataset
from headrace.store.history import differences

RECORDS = 200_000
FILES = 8
SHARE_MAX = 0.15
PIPELINE = """
import headrace as hr


def late(record):
    return record["text"].count("s") % 10 != 0


def later(record):
    return record["text"].count("s") % 10 != 1


def build(output: str, new: bool, tokenizer: str = "") -> hr.Pipeline:
    tokens = [hr.tokenize(tokenizer)] if tokenizer else []
    sink = hr.write_tokens(tokens[0], seq_len=2048) if tokens else hr.write_documents()
    return hr.Pipeline.chain(
        "recompute", output, hr.read_jsonl("in/*.jsonl"),
        hr.gopher_repetition(), hr.gopher_quality(), hr.fineweb_quality(), hr.language(["en"]),
        hr.filter_records(later if new else late, name="late"), *tokens, sink,
    )
"""
STOPS = ("the", "be", "to", "of", "and", "that", "have", "with")


def write_input(folder: Path, records: int) -> None:
    """Texts of words that modules of the standard library use in their docstrings."""
    random.seed(20)
    words = sorted({
        word for module in (argparse, json, random, resource, subprocess, tempfile)
        for word in (Path(str(module.__file__)).read_text().split() if str(module.__file__).endswith(".py") else ())
        if word.isalpha() and word.islower()
    })  # fmt: skip
    folder.mkdir()
    for number in range(FILES):
        with open(folder / f"{number}.jsonl", "w", encoding="utf-8") as file:
            for row in range(records // FILES):
                lines = [
                    " ".join(random.choices(words, k=12) + random.sample(STOPS, 3)).capitalize() + "."
                    for _ in range(random.randint(1, 30))
                ]
                file.write(json.dumps({"id": f"{number}-{row}", "text": "\n".join(lines)}) + "\n")


def run(place: Path, output: str, *more: str) -> float:
    """Seconds of processor time of a run and all that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", "p.py", "-p", f"output={output}", *more, "--json"]
    subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(tokenizer: str = "", records: int = RECORDS) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "p.py").write_text(PIPELINE)
        write_input(place / "in", records)
        more = ("-p", f"tokenizer={tokenizer}") if tokenizer else ()
        run(place, "old", "-p", "new=false", *more)
        full = run(place, "full", "-p", "new=true", *more)
        based = run(place, "new", "-p", "new=true", *more, "--from", "old@1")
        same = differences(Dataset.open(str(place / "full")), Dataset.open(str(place / "new")))
        balance = Dataset.open(str(place / "new")).balance()
    if same.changed or not balance.balanced or balance.records_closed != records:
        raise SystemExit(f"the results differ: {same.changed}")
    return {
        "recompute_records": records,
        "recompute_kept": balance.counts.kept,
        "recompute_full_cpu_s": round(full, 1),
        "recompute_cpu_s": round(based, 1),
        "recompute_share": round(based / full, 3),
        "recompute_within": based / full <= SHARE_MAX,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tokenizer", default="", help="to tokens by this tokenizer.json, not to documents")
    parser.add_argument("--records", type=int, default=RECORDS)
    given = parser.parse_args()
    found = measure(given.tokenizer, given.records)
    print(json.dumps(found) if given.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    return 0 if found["recompute_within"] else 1


if __name__ == "__main__":
    sys.exit(main())
