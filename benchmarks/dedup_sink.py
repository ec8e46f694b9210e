"""What a duplicate costs behind the decider: the CPU of its verdict in a sink, over that of a record filtered out.

    python benchmarks/dedup_sink.py [--json] [--rounds 5]

Method: two sinks of one pipeline in this process take BATCHES batches of RECORDS records in turn, of which KEPT are
kept, and write shards of documents to a folder. In one run each batch has the kept records alone, in one the others are
filtered out before dedup, in one they are duplicates, each of a record drawn from all that were kept so far: a part of
them waits for a record that the other sink holds. A controller in the same process answers questions and
proposals; its time does not count. What counts is the CPU of the sinks' thread and of their writers, the least of all
rounds. A record costs what its run takes beyond the run with the kept alone.

Last result, two cores of an AMD EPYC that others used too: a filtered record 1.2 us, a duplicate 3.0, 2.4 times. While
each duplicate that waited was a batch of its own, it was 182 us.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.pipeline import Pipeline
from headrace.protos import codec, control_pb2 as pb
from headrace.stages.dedup import KEYS
from headrace.stages.library import dedup, read_jsonl, write_documents
from headrace.stages.runtime import DUPLICATE, FILTERED, ROW, Batch, build_stage, make_verdicts, no_verdicts
from headrace.store import open_store
from headrace.store.shards import RecordName
from headrace.worker.task import DuplicateDependencies, KeyWriter, SealAsked, SealPolicy, TaskSink
from headrace.worker.task.batch import InFlightPage

BATCHES, RECORDS, KEPT, FRAGMENTS = 400, 160, 40, 8
KINDS = ("kept", FILTERED, DUPLICATE)
#: Documents of a shard, and the text of each.
SHARD_DOCUMENTS, TEXT = 2560, "a few words of text " * 10
#: Of an exact scheme.
KEY_BYTES = 16
PATIENCE_S = 60.0


def batches(kind: str) -> list[Batch]:
    """The batches of one run."""
    chance, made, names = random.Random(3), list[Batch](), list[RecordName]()
    count = KEPT if kind == "kept" else RECORDS
    for number in range(BATCHES):
        fragment = bytes([number % FRAGMENTS]) * 16
        first = number // FRAGMENTS * count
        kept = np.sort(np.array(chance.sample(range(count), KEPT), np.int64)) + first
        lost = np.setdiff1d(np.arange(first, first + count), kept)
        names += [RecordName(fragment, row) for row in kept.tolist()]
        verdicts = no_verdicts()
        if kind == FILTERED:
            reasons = [("too short", "few stop words")[row % 2] for row in lost.tolist()]
            verdicts = make_verdicts(
                rows=pa.array(lost), ids=ids_of(lost), stage="quality", verdict=kind, reasons=reasons
            )
        elif kind == DUPLICATE:
            verdicts = make_verdicts(
                rows=pa.array(lost), ids=ids_of(lost), stage="dedup", verdict=kind, reasons=["equal text"] * len(lost),
                duplicates_of=[chance.choice(names) for _ in lost],
            )  # fmt: skip
        rows = pa.RecordBatch.from_pydict(
            {
                ROW: pa.array(kept),
                "id": ids_of(kept),
                "metadata": pa.array(['{"source": "x"}'] * KEPT, pa.string()),
                "text": pa.array([TEXT] * KEPT, pa.string()),
                KEYS: pa.array([chance.randbytes(KEY_BYTES) for _ in range(KEPT)], pa.binary(KEY_BYTES)),
            }
        )
        made.append(Batch(fragment, f"file:///{fragment.hex()}", first, count, 10 * first, 10 * count, rows, verdicts))
    return made


def ids_of(rows: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array[Any]:
    """An id for each record."""
    return pa.array([f"{row:016d}" for row in rows.tolist()], pa.string())


class Clocked:
    """The CPU of what this thread does in the sinks."""

    def __init__(self) -> None:
        self.cpu_s = 0.0

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do it, and count its time."""
        begun = time.thread_time()
        answer = work(*arguments)
        self.cpu_s += time.thread_time() - begun
        return answer


class Controller:
    """Answers what sinks ask."""

    def __init__(self) -> None:
        self.closed: defaultdict[bytes, set[int]] = defaultdict(set)
        self.waited = 0

    def needs(self, asked: pb.NeedsAsked) -> pb.TaskCommand:
        """Those records that are not closed yet."""
        rows = ((item.fragment, set(item.rows) - self.closed[item.fragment]) for item in asked.records)
        still_open = codec.records_to((name, sorted(left)) for name, left in rows if left)
        self.waited += sum(len(item.rows) for item in still_open)
        return pb.TaskCommand(needs=pb.NeedsAnswer(proposal=asked.proposal, open=still_open))

    def accept(self, proposal: pb.Proposed) -> pb.TaskCommand:
        """Close a shard."""
        for item in proposal.ranges:
            self.closed[item.fragment].update(range(item.first, item.first + item.count))
        return pb.TaskCommand(answer=pb.Answer(proposal=proposal.proposal, outcome=pb.Answer.ACCEPTED))


def run(kind: str) -> tuple[float, int]:
    """CPU seconds of one run, and how many records verdicts waited for."""
    given, clock, controller = batches(kind), Clocked(), Controller()
    pipeline = Pipeline.chain("sinks", "memory", read_jsonl("/in"), *dedup(near=False), write_documents())
    name = pipeline.stages[-1].name
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"file://{folder}")
        policy = SealPolicy(target_bytes=len(TEXT) * SHARD_DOCUMENTS)
        sinks: list[TaskSink] = []
        for _ in range(2):
            sink = build_stage(pipeline.stage(name), {})
            sink.begin("sinks", "version")
            dependencies = DuplicateDependencies.of(pipeline, name)
            sinks.append(
                TaskSink(
                    name, sink, store, version="version", epoch=1, policy=policy, in_flight=InFlightPage.private(),
                    dependencies=dependencies, key_writer=KeyWriter.of(pipeline, name),
                )
            )  # fmt: skip
        for number, batch in enumerate(given):
            clock(sinks[(number // FRAGMENTS + number) % 2].add, batch)
            serve(sinks, controller, clock)
        while any(sink.core.gathering.held_bytes for sink in sinks):
            for sink in sinks:
                clock(sink.do, SealAsked("end"))
            serve(sinks, controller, clock)
            time.sleep(0.05)
        for sink in sinks:
            sink.close()
        return clock.cpu_s + sum(sink.writer.cpu_s for sink in sinks), controller.waited


def serve(sinks: list[TaskSink], controller: Controller, clock: Clocked) -> None:
    """Answer until nothing is asked and nothing is being written."""
    busy = True
    while busy:
        busy = False
        for sink in sinks:
            if sink.is_writing:
                assert select.select([sink.wake_fd], [], [], PATIENCE_S)[0]
                os.eventfd_read(sink.wake_fd)
            clock(sink.tick)
            asked, proposals = clock(sink.take_questions), clock(sink.take_proposals)
            for answer in (*map(controller.needs, asked), *map(controller.accept, proposals)):
                clock(sink.obey, answer)
            busy = busy or bool(asked or proposals or sink.is_writing)


def sink_costs(rounds: int) -> dict[str, float]:
    """Microseconds of CPU a record, by what became of it."""
    # In turn, so that who else uses the machine meets all of them.
    turns = [{kind: run(kind) for kind in KINDS} for _ in range(rounds)]
    least = {kind: min(turn[kind] for turn in turns) for kind in KINDS}
    lost = BATCHES * (RECORDS - KEPT)
    filtered_us, duplicate_us = (1e6 * (least[kind][0] - least["kept"][0]) / lost for kind in (FILTERED, DUPLICATE))
    return {
        "filtered_us": filtered_us,
        "duplicate_us": duplicate_us,
        "duplicate_over_filtered": duplicate_us / filtered_us,
        "waited": least[DUPLICATE][1],
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    answer = sink_costs(arguments.rounds)
    if arguments.json:
        print(json.dumps(answer))
        return 0
    for name, value in answer.items():
        print(f"{name:24} {value:10,.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
