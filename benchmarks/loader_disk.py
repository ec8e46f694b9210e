"""The part of `benchmarks/loader.py` that reads local shards which the page cache cannot hold.

A dataset of `SHARDS` shards of 31 MB is read in the default order by a process in a memory cgroup of `MEMORY_MB`, of
which the interpreter, numpy and the compiled loops take some 300. So every pass reads the disk. Measured is the first
pass, behind whose reader each shard is also read through once to be checked, and a second one; each token is summed.
The limit is a scan of the same files in the same cgroup, one after the other in reads of 1 MiB, which sums nothing: the
best that a disk gives, in an order that shuffles nothing. How much the kernel reads around a fault is a setting of
the disk (`read_ahead_kb`), which is reported and left alone. Needs root, for the cgroup.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loader_store import made_dataset

SHARDS = 60
MEMORY_MB = 700
BATCH = 32
READ_BYTES = 1 << 20
RUN_S_MAX = 300.0
CGROUPS = Path("/sys/fs/cgroup")


def from_disk() -> dict[str, Any] | str:
    """Bytes a second of a pass over shards that are not in memory, and of a scan; or why it was not measured."""
    try:
        with made_dataset(SHARDS) as dataset, limited(MEMORY_MB << 20) as members:
            subprocess.run(["sync"], check=True, timeout=RUN_S_MAX)
            Path("/proc/sys/vm/drop_caches").write_text("3")
            command = [sys.executable, __file__, dataset, str(members)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=RUN_S_MAX)
            device = os.stat(dataset).st_dev
            found: dict[str, Any] = json.loads(done.stdout)
    except PermissionError as error:
        return f"not measured: needs root for a memory cgroup ({error})"
    found["ratio"] = found["bytes_s"] / found["scan_bytes_s"]
    found["read_ahead_kb"] = read_ahead_kb(device)
    return found


@contextlib.contextmanager
def limited(size: int) -> Iterator[Path]:
    """The file into which a process writes its id to be held to this memory, in bytes, page cache included."""
    is_unified = (CGROUPS / "cgroup.controllers").exists()
    group = (CGROUPS if is_unified else CGROUPS / "memory") / f"headrace-benchmark-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.max" if is_unified else "memory.limit_in_bytes")).write_text(str(size))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def read_ahead_kb(device: int) -> int | None:
    """What the kernel reads around a fault on this device; None where nobody says."""
    path = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for folder in (path, path.resolve().parent):
        with contextlib.suppress(OSError):
            return int((folder / "queue/read_ahead_kb").read_text())
    return None


def read(dataset: str, members: str) -> dict[str, float]:
    """In a process of its own: two passes and a scan."""
    from headrace.loader import Loader
    from headrace.loader.batch import KERNELS

    assert KERNELS.wait(60.0), KERNELS.error
    Path(members).write_text(str(os.getpid()))
    paths = sorted(Path(dataset).glob("shards/1/*.safetensors"))
    size = sum(path.stat().st_size for path in paths)
    loader = Loader(dataset, batch_size=BATCH)
    found: dict[str, float] = {"dataset_mb": size / 1e6, "memory_mb": MEMORY_MB}
    for name in ("first_pass_bytes_s", "bytes_s"):
        began = time.perf_counter()
        for batch in loader:
            batch["tokens"].sum()
        found[name] = size / (time.perf_counter() - began)
    loader.close()
    buffer = bytearray(READ_BYTES)
    began = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    found["scan_bytes_s"] = size / (time.perf_counter() - began)
    return found


if __name__ == "__main__":
    print(json.dumps(read(*sys.argv[1:])))
