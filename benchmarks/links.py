"""The links between two processes, against what memory, kernel and protocol allow.

    python benchmarks/links.py [--json] [--rounds N]

Method. Two processes, sender and receiver, batches of 1 MiB. Each way is measured beside its limit in the same round;
a round of ring or pipe during which other processes took more than a twentieth of all cores is made again (`quiet`), up
to AGAIN_MAX times, and `again` says how often that was. Rounds alternate, speeds are medians, ratios are the medians of
the rounds' ratios. All buffers are faulted in first: each way runs a warm-up of 64 batches and only then starts the
clock.

- ring: the sender writes fresh bytes into a batch of its own (another 64-bit value each time) and sends it, the
  receiver reads every byte (a sum over 64-bit words, checked). Its limit: memcpy into slots of shared memory that both
  have mapped, written and read in the same way, with no header, checksum, cursor, credit or waking, and neither waits
  for the other; as many slots as the ring keeps warm. The slower of the two processes, running at once, is the limit.
- ring_4k: frames with a body of 4 KiB, neither filled nor read, which is the cost of the frame and the verbs.
- pipe: frames through `transport.pipe`, checksums on; its limit `os.write` and `readinto` of as many bytes on a pipe of
  1 MiB, blocking. Neither fills nor reads the batch, so that the limit is the kernel's alone.
- quic: see `links_quic`.

Last result (x86-64, Python 3.11, two cores), nine rounds on a machine that did nothing else:

    what          here             limit            ratio    wanted
    ring, 1 MiB   25,221 MB/s      27,056 MB/s      0.930    0.90
    ring, 4 KiB   275,755 frames/s                           100,000
    pipe, 1 MiB   4,038 MB/s       4,046 MB/s       0.985    0.85
    QUIC, 1400    169.0 MB/s       adapter 26.5     6.4      2.8
                                   core 45.2        3.8      0.80
    QUIC, 8900    449.3 MB/s       adapter 60.0     7.4      4
                                   core 239.1       1.8      0.75

Of the ring alone two runs of nine rounds gave 0.940 and 0.904; docs/performance.md says where its time goes. A run of
all of it while others worked on the machine (18 rounds of the ring and 15 of the pipe were made again) gave 0.909 for
the ring, 0.70 for the pipe (0.49 to 1.16), and 4.1, 3.5, 6.4 and 1.7 for QUIC.
The core is aioquic's as it comes, both ends on one core of the machine; ours has two, and writes and reads bulk data
by the batch (`transport/quic/bulk.py`), which took 12 to 15 microseconds of each end's time for a packet of 1,400
bytes down to 6 to 7. Before that it was 2.0 to 3.1 of the adapter at 1,400 bytes. While up to ten processes wanted
the two cores, ring and pipe were anywhere between 0.56 and 1.36: such a run says who was preempted, and not more.

Of the ring, the checksum over the body was most of what was missing to the limit (0.60 with it, 0.74 without), then
memory that was no longer in the cache (soft wrap at 16 MiB and not 4), then sleeping at each batch (`wait.SPIN_S`).
"""

import argparse
import fcntl
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from links_quic import measure_quic
from quiet import Meanwhile, undisturbed

from headrace.transport import LinkClosed, Receiver, Sender, wait_any
from headrace.transport.core import Frame, FrameKind
from headrace.transport.pipe import PIPE_BYTES, PipeHandles, PipeReceiver, PipeSender, create_pipe
from headrace.transport.ring import DEFAULT_SOFT_BYTES, RingHandles, RingReceiver, RingSender, create_ring

BATCH_BYTES = 1 << 20
SLOTS = DEFAULT_SOFT_BYTES // BATCH_BYTES
BATCHES = 6000
PIPE_BATCHES = 1500
QUIC_ROUNDS_MAX = 3
#: How often a disturbed round is made again.
AGAIN_MAX = 5
WARM_UP = 64
SMALL_BYTES = 4096
SMALL_FRAMES = 60_000
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """What one process of a pair does, as plain data for its command line."""

    role: str
    fds: tuple[int, ...]
    handles: dict[str, Any]
    batches: int
    batch_bytes: int
    touch: bool


def expected_sum(number: int) -> int:
    return number * (BATCH_BYTES // 8)


def limit_send(job: Job) -> float:
    slots = np.frombuffer(mmap.mmap(job.fds[0], SLOTS * BATCH_BYTES), dtype=np.uint64).reshape(SLOTS, -1)
    batch = np.empty(BATCH_BYTES // 8, dtype=np.uint64)
    slots.fill(0)
    for number in range(WARM_UP):
        batch.fill(number)
        slots[number % SLOTS] = batch
    meet(job)
    start = time.perf_counter()
    for number in range(job.batches):
        batch.fill(number)
        slots[number % SLOTS] = batch
    return time.perf_counter() - start


def limit_receive(job: Job) -> float:
    slots = np.frombuffer(mmap.mmap(job.fds[0], SLOTS * BATCH_BYTES), dtype=np.uint64).reshape(SLOTS, -1)
    total = int(slots.sum())
    meet(job)
    start = time.perf_counter()
    for number in range(job.batches):
        total += int(slots[number % SLOTS].sum())
    return time.perf_counter() - start if total >= 0 else 0.0


def meet(job: Job) -> None:
    """Wait until the other process is ready as well."""
    mine, theirs = (job.fds[1], job.fds[2]) if job.role.endswith("send") else (job.fds[2], job.fds[1])
    os.eventfd_write(mine, 1)
    os.eventfd_read(theirs)


def ring_send(job: Job) -> float:
    return send_all(RingSender(RingHandles.from_description(job.handles)), job)


def ring_receive(job: Job) -> float:
    return receive_all(RingReceiver(RingHandles.from_description(job.handles)), job)


def send_all(sender: Sender, job: Job) -> float:
    batch = np.zeros(job.batch_bytes // 8, dtype=np.uint64)
    body = memoryview(batch).cast("B")
    kind, fragment = FrameKind.DATA, bytes(16)
    start = 0.0
    for number in range(WARM_UP + job.batches):
        if number == WARM_UP:
            start = time.perf_counter()
        if job.touch:
            batch.fill(number)
        frame = Frame(kind, 1, fragment, number, 1, b"", body)
        while not sender.try_send(frame):
            assert wait_any([sender], PATIENCE_S), "the receiver stalled"
    sender.close()
    seconds = time.perf_counter() - start
    sender.detach()
    return seconds


def receive_all(receiver: Receiver, job: Job) -> float:
    start, number = 0.0, 0
    while True:
        try:
            received = receiver.try_receive()
        except LinkClosed:
            assert number == WARM_UP + job.batches
            return time.perf_counter() - start
        if received is None:
            assert wait_any([receiver], PATIENCE_S), "the sender stalled"
            continue
        if number == WARM_UP:
            start = time.perf_counter()
        if job.touch:
            assert int(np.frombuffer(received.frame.body, dtype=np.uint64).sum()) == expected_sum(number)
        received.release()
        number += 1


def raw_send(job: Job) -> float:
    batch = np.zeros(job.batch_bytes // 8, dtype=np.uint64)
    body = memoryview(batch).cast("B")
    start = 0.0
    for number in range(WARM_UP + job.batches):
        if number == WARM_UP:
            start = time.perf_counter()
        if job.touch:
            batch.fill(number)
        rest = body
        while rest:
            rest = rest[os.write(job.fds[1], rest) :]
    return time.perf_counter() - start


def raw_receive(job: Job) -> float:
    batch = np.zeros(job.batch_bytes // 8, dtype=np.uint64)
    body = memoryview(batch).cast("B")
    start = 0.0
    with os.fdopen(job.fds[0], "rb", buffering=0) as pipe:
        for number in range(WARM_UP + job.batches):
            if number == WARM_UP:
                start = time.perf_counter()
            filled = 0
            while filled < len(body):
                filled += pipe.readinto(body[filled:])
            if job.touch:
                assert int(batch.sum()) == expected_sum(number)
    return time.perf_counter() - start


def pipe_send(job: Job) -> float:
    handles = PipeHandles.from_description(job.handles)
    handles.close_receiver()
    return send_all(PipeSender(handles), job)


def pipe_receive(job: Job) -> float:
    handles = PipeHandles.from_description(job.handles)
    handles.close_sender()
    return receive_all(PipeReceiver(handles), job)


ROLES = {
    f.__name__: f
    for f in (limit_send, limit_receive, ring_send, ring_receive, raw_send, raw_receive, pipe_send, pipe_receive)
}


def run_pair(roles: tuple[str, str], fds: tuple[int, ...], handles: dict[str, Any], **sizes: int) -> float:
    """Run both processes and return the seconds of the slower one."""
    started: list[subprocess.Popen[str]] = []
    for role in roles:
        job = {"role": role, "fds": fds, "handles": handles, **sizes}
        command = [sys.executable, __file__, "--job", json.dumps(job)]
        started.append(subprocess.Popen(command, pass_fds=fds, stdout=subprocess.PIPE, text=True))
    return max(float(process.communicate(timeout=PATIENCE_S)[0]) for process in started)


def limit_seconds(batches: int) -> float:
    fds = (os.memfd_create("limit"), os.eventfd(0), os.eventfd(0))
    os.ftruncate(fds[0], SLOTS * BATCH_BYTES)
    try:
        return run_pair(("limit_send", "limit_receive"), fds, {}, batches=batches, batch_bytes=BATCH_BYTES, touch=1)
    finally:
        for fd in fds:
            os.close(fd)


def ring_seconds(batches: int, batch_bytes: int, touch: int) -> float:
    handles = create_ring("benchmark")
    try:
        description, fds = handles.describe(), handles.descriptors()
        roles = ("ring_send", "ring_receive")
        return run_pair(roles, fds, description, batches=batches, batch_bytes=batch_bytes, touch=touch)
    finally:
        handles.close_descriptors()


def raw_seconds(batches: int, touch: int) -> float:
    fds = os.pipe()
    fcntl.fcntl(fds[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        return run_pair(("raw_send", "raw_receive"), fds, {}, batches=batches, batch_bytes=BATCH_BYTES, touch=touch)
    finally:
        for fd in fds:
            os.close(fd)


def pipe_seconds(batches: int, touch: int) -> float:
    handles = create_pipe("benchmark")
    try:
        description, fds = handles.describe(), handles.descriptors()
        roles = ("pipe_send", "pipe_receive")
        return run_pair(roles, fds, description, batches=batches, batch_bytes=BATCH_BYTES, touch=touch)
    finally:
        handles.close_sender()
        handles.close_receiver()


def compared(rounds: list[tuple[tuple[float, float], Meanwhile]], batches: int) -> dict[str, float]:
    """Return speeds (medians) and the median of the rounds' ratios, from the seconds of limit and link."""
    ratios = sorted(limit / taken for (limit, taken), _ in rounds)
    limit, speed = (
        batches * BATCH_BYTES / 1e6 / statistics.median(seconds)
        for seconds in zip(*(pair for pair, _ in rounds), strict=True)
    )
    return {
        "mb_s": round(speed),
        "limit_mb_s": round(limit),
        "ratio": round(statistics.median(ratios), 3),
        "lowest": round(ratios[0], 3),
        "highest": round(ratios[-1], 3),
        "again": sum(meanwhile.again for _, meanwhile in rounds),
        "others_share": round(statistics.median(meanwhile.others_share for _, meanwhile in rounds), 3),
    }


def ring_round() -> tuple[float, float]:
    return limit_seconds(BATCHES), ring_seconds(BATCHES, BATCH_BYTES, 1)


def pipe_round() -> tuple[float, float]:
    return raw_seconds(PIPE_BATCHES, 0), pipe_seconds(PIPE_BATCHES, 0)


def measure(rounds: int, only: str) -> dict[str, dict[str, float]]:
    rings, pipes, small = [], [], []
    for _ in range(rounds):
        rings.append(undisturbed(ring_round, AGAIN_MAX))
        if only != "ring":
            pipes.append(undisturbed(pipe_round, AGAIN_MAX))
            small.append(ring_seconds(SMALL_FRAMES, SMALL_BYTES, 0))
    result = {"ring": compared(rings, BATCHES)}
    if only == "ring":
        return result
    return result | {
        "ring_4k": {"frames_s": round(SMALL_FRAMES / statistics.median(small))},
        "pipe": compared(pipes, PIPE_BATCHES),
        "quic_1400": quic_of(1400, 15 << 20, 60 << 20, rounds),
        "quic_8900": quic_of(8900, 60 << 20, 250 << 20, rounds),
    }


def quic_of(datagram_bytes: int, adapter_bytes: int, total_bytes: int, rounds: int) -> dict[str, float]:
    results = [measure_quic(datagram_bytes, adapter_bytes, total_bytes) for _ in range(min(rounds, QUIC_ROUNDS_MAX))]
    return {name: statistics.median(result[name] for result in results) for name in results[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput of the links")
    parser.add_argument("--json", action="store_true", help="print one object and nothing else")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["ring"], default="", help="measure the ring with batches of 1 MiB alone")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        job = Job(**json.loads(arguments.job))
        print(ROLES[job.role](job))
        return
    result = measure(arguments.rounds, arguments.only)
    if arguments.json:
        print(json.dumps(result))
        return
    for name, label in (("ring", "ring, 1 MiB"), ("pipe", "pipe, 1 MiB")):
        if name in result:
            one = result[name]
            print(f"{label}   {one['mb_s']:>8,.0f} MB/s of {one['limit_mb_s']:,.0f} (ratio {one['ratio']:.2f})")
    if arguments.only:
        return
    print(f"ring, 4 KiB   {result['ring_4k']['frames_s']:>8,.0f} frames/s")
    for size in ("1400", "8900"):
        one = result[f"quic_{size}"]
        others = ", ".join(
            f"{name} {one[f'{name}_mb_s']:,.1f} (ratio {one[ratio]:.2f})"
            for name, ratio in (("adapter", "ratio"), ("core", "core_ratio"))
        )
        print(f"QUIC, {size}    {one['mb_s']:>8,.1f} MB/s, {others}")


if __name__ == "__main__":
    main()
