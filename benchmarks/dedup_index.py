"""The index of keys alone: memory a record, records a second, and how fast a saved one opens.

    python benchmarks/dedup_index.py --records N [--mode memory|disk] [--json]

Method: N synthetic records, each with a key of its text and the default bands, go through an index by batches of 512.
One in twenty is an earlier record again. What the index takes is measured as the growth of the process: RssAnon, as the
worker counts a task's memory; mapped pages of runs, which the kernel takes back when it likes, stand beside it. Seconds
are those of the CPU within the index, those of the clock stand beside them. On disk the index is then saved, the file's
pages are dropped, and it is opened by another index, which must find 10,000 records of both ends. A record whose bands
meet a false holder counts as nominated falsely: a judge would refuse it.

Limits: 200 bytes a record in memory, 25 with the index on disk; 300,000 records a second a core; opened in 5 s.

The most memory a record is of all sizes from half of the records on, measured after every 16th batch: before and after
parts of the filter grow, the table is sealed, and runs are merged.

Last result with 20 bands on one core of an EPYC that others used, with 24 GiB of memory:

    mode, records    bytes a record, most  records/s CPU  opened cold  longest batch
    memory, 10^6             195.4  199.4        417,000
    memory, 10^7             195.0  196.1        341,000
    disk, 10^7                23.6   24.2        314,000 to 329,000
    disk, 3*10^7              23.2   23.5        358,000       0.26 s         0.31 s
    disk, 10^8                22.0   26.3        226,000       1.33 s         2.46 s

At 10^8 the runs and what is merged of them do not fit the memory: of a sample of the time 40 % was the kernel's.
The parts of the filter grew at nearly one time there, which they no longer do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from headrace.stages.dedup import DEFAULTS, KeyIndex, Keys, Scheme, compile_index
from headrace.stages.dedup.index import open_saved, save

BATCH = 512
SCHEME = Scheme(*DEFAULTS[True])
FRAGMENT_RECORDS = 1 << 20
REPEATED = 20
CHECKED = 10_000
#: Batches between two measures of memory.
SAMPLED = 16
#: Records of which an index compiles all loops.
WARMED = 300_000


def keys_of(numbers: Any) -> Keys:
    """The keys of records by their numbers: splitmix64."""
    words = np.arange(SCHEME.words, dtype=np.uint64)
    with np.errstate(over="ignore"):
        state = (numbers.astype(np.uint64)[:, None] * np.uint64(SCHEME.words) + words + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Keys = (state ^ (state >> np.uint64(31))) | np.uint64(1)
    return found


def resident() -> dict[str, int]:
    """Bytes of this process in memory: of its own, and of mapped files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = {
        line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "RssFile"))
    }
    return {"own": found["RssAnon"], "mapped": found["RssFile"]}


def fill(index: KeyIndex, records: int) -> dict[str, float]:
    """Put records into an index, and measure."""
    before, begun, cpu, longest = resident(), time.perf_counter(), 0.0, 0.0
    clock, planted, found, false, most = 0.0, 0, 0, 0, 0.0
    for first in range(0, records, BATCH):
        numbers = np.arange(first, min(first + BATCH, records))
        texts = np.where((numbers % REPEATED == REPEATED - 1) & (numbers > BATCH), numbers // 2, numbers)
        texts = np.where(texts % REPEATED == REPEATED - 1, texts - 1, texts)
        keys, planted = keys_of(texts), planted + int((texts != numbers).sum())
        fragment = (first // FRAGMENT_RECORDS).to_bytes(16, "big")
        at, used = time.perf_counter(), time.thread_time()
        answers = index.decide(fragment, numbers % FRAGMENT_RECORDS, keys)
        cpu += time.thread_time() - used
        took = time.perf_counter() - at
        clock, longest = clock + took, max(longest, took)
        for place in np.flatnonzero([answer is not None for answer in answers]).tolist():
            match = answers[place]
            assert match is not None
            false += match.near
            if not match.near:
                number = int.from_bytes(match.name.fragment, "big") * FRAGMENT_RECORDS + match.name.row
                found += number == int(texts[place])
        if first % (BATCH * SAMPLED) == 0:
            own = (resident()["own"] - before["own"]) / index.records
            most = max(most, own * (2 * first >= records))
            if first % (BATCH * 16384) == 0:
                took = time.perf_counter() - begun
                print(f"{first:,}: {took:,.0f} s, CPU {cpu:,.0f} s, {own:.1f} B", file=sys.stderr)
    # What meets a false holder is not kept, and nothing is a duplicate of it.
    if planted - found > false:
        raise SystemExit(f"of {planted} records that were there before {found} were found")
    after, kept = resident(), index.records
    own = (after["own"] - before["own"]) / kept
    return {
        "records": records,
        "kept": kept,
        "duplicates_found": found,
        "nominated_falsely": false,
        "records_s_cpu": records / cpu,
        "records_s_clock": records / clock,
        "longest_batch_s": longest,
        "memory_bytes_a_record": own,
        "memory_bytes_a_record_most": max(most, own),
        "mapped_bytes_a_record": (after["mapped"] - before["mapped"]) / kept,
    }


def reopen(index: KeyIndex, folder: Path) -> dict[str, float]:
    """Save an index, and open it."""
    begun = time.perf_counter()
    path = save(index, folder, ["benchmark"], [index.records])
    saved_s = time.perf_counter() - begun
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    times: list[float] = []
    for _ in range(2):
        again, begun = KeyIndex(SCHEME, str(folder)), time.perf_counter()
        if open_saved(again, folder, ["benchmark"]) != [index.records]:
            raise SystemExit("the index that was saved does not open")
        times.append(time.perf_counter() - begun)
    for first in (0, index.records - CHECKED):
        numbers = np.arange(max(0, first), index.records)[:CHECKED]
        names = again.names(numbers)
        places = [int.from_bytes(name.fragment, "big") * FRAGMENT_RECORDS + name.row for name in names]
        found, _ = again.find(keys_of(np.array(places)))
        if (found[:, 0] != numbers).any():
            raise SystemExit("an index that was opened has lost records")
    return {
        "saved_s": saved_s,
        "opened_cold_s": times[0],
        "opened_warm_s": times[1],
        "disk_bytes_a_record": size / index.records,
    }


def warm(mode: str) -> None:
    """Have the loops compiled, by a process of its own: what compiling leaves in memory is not the index's."""
    subprocess.run(
        [sys.executable, __file__, "--records", str(WARMED), "--mode", mode], check=True, capture_output=True
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--mode", choices=("memory", "disk"), default="disk")
    parser.add_argument("--folder", help="where runs and the saved index go; a temporary folder")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.records > WARMED:
        warm(arguments.mode)
    compile_index()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        index = KeyIndex(SCHEME, folder if arguments.mode == "disk" else None)
        answer: dict[str, Any] = {"mode": arguments.mode, **fill(index, arguments.records)}
        if index.folder is not None:
            answer |= reopen(index, Path(folder))
    if arguments.json:
        print(json.dumps(answer))
        return 0
    for name, value in answer.items():
        print(f"{name:28} {value:>16,.3f}" if isinstance(value, float) else f"{name:28} {value!s:>16}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
