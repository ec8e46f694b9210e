"""A batch whose stages killed their task, run record by record in processes of its own (`docs/solitary.md`).

The child says which record it takes up before it does, so that its death, its silence or its hunger is that record's.
What killed it is quarantined with the story, and a fresh child goes on behind it. The parent runs no stage.

    python -m headrace.stages.solitary --order-fd N --answer-fd M
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import pyarrow as pa

from headrace.pipeline.graph import Pipeline
from headrace.stages.batch import QUARANTINED, ROW, Batch, join_verdicts, make_verdicts, no_verdicts, parts_of
from headrace.stages.build import as_json, build_stage, join_rows, process_safely
from headrace.stages.errors import StageContractError
from headrace.stages.records import cut_raw

#: Bytes of a child's message; a record's rows and verdicts fit many times.
MESSAGE_BYTES_MAX = 1 << 30
#: Deaths in one batch after which it is not the records that are at fault.
DEATHS_MAX = 100
#: The child says that it takes up a record, or what became of it, or what of its stages is wrong.
_TAKEN, _DONE, _BROKEN = b"T", b"D", b"B"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one record may take: seconds from its being taken up, and bytes that its process may have in all.

    `start_s` is for the child's imports and the stages' own construction.
    """

    deadline_s: float = 60.0
    memory_bytes: int = 4 << 30
    start_s: float = 120.0


def run_alone(pipeline: Pipeline, names: Sequence[str], batch: Batch, limits: Limits) -> Batch:
    """The batch behind the transforms `names`; each record that kills its process is quarantined with the story.

    Raises StageContractError where the stages fail whatever the record.
    """
    answers: list[Batch] = []
    verdicts = [batch.verdicts]
    rows = batch.rows
    deaths = 0
    while rows.num_rows:
        with _Child(pipeline, names, replace(batch, rows=rows, verdicts=no_verdicts(), edits={}), limits) as child:
            done, story = child.run()
        answers += done
        if not story:
            break
        deaths += 1
        if child.taken < 0 or deaths > DEATHS_MAX:
            chain = ", ".join(names)
            raise StageContractError(f"stages {chain} do not work alone either, {deaths} deaths; the last: {story}")
        place = child.taken
        verdicts.append(_quarantined(rows.slice(place, 1), names[-1] if len(names) == 1 else ", ".join(names), story))
        rows = rows.slice(place + 1)
    return _joined(batch, answers, verdicts, names)


def _joined(batch: Batch, answers: Sequence[Batch], verdicts: Sequence[pa.RecordBatch], names: Sequence[str]) -> Batch:
    edits = dict(batch.edits)
    for answer in answers:
        for name, count in answer.edits.items():
            edits[name] = edits.get(name, 0) + count
    rows = join_rows([answer.rows for answer in answers], names[-1]) if answers else batch.rows.slice(0, 0)
    everything = join_verdicts(*verdicts, *(answer.verdicts for answer in answers))
    return replace(batch, rows=rows, verdicts=everything, edits=edits)


def _quarantined(row: pa.RecordBatch, stage: str, story: str) -> pa.RecordBatch:
    raw = as_json(row)
    reason, kept = cut_raw(f"killed its process: {story}", raw, len(raw))
    return make_verdicts(
        rows=row.column(ROW),
        ids=row.column("id"),
        parts=parts_of(row),
        stage=stage,
        verdict=QUARANTINED,
        reasons=[reason],
        raw=[kept],
    )


class _Child:
    """One process that takes up record after record until it is through or dies."""

    def __init__(self, pipeline: Pipeline, names: Sequence[str], batch: Batch, limits: Limits) -> None:
        self._batch, self._limits = batch, limits
        #: The place among the rows of the record (or part) that the child took up last; -1: none yet.
        self.taken = -1
        self._done = 0
        order_read, order_write = os.pipe()
        self._answers, answer_write = os.pipe()
        command = [sys.executable, "-P", "-m", "headrace.stages.solitary"]
        command += ["--order-fd", str(order_read), "--answer-fd", str(answer_write)]
        self._process = subprocess.Popen(  # noqa: S603 (this interpreter, and arguments of our own)
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(order_read, answer_write)
        )
        os.close(order_read)
        os.close(answer_write)
        order = {"pipeline": pipeline.to_dict(), "stages": list(names), "memory": limits.memory_bytes}
        with os.fdopen(order_write, "wb") as file:
            try:
                _send(file, json.dumps({**order, "fragment": batch.fragment.hex(), "uri": batch.uri}).encode())
                _send(file, _pack(batch.rows))
            except BrokenPipeError:
                pass  # it died already: `run` tells of what

    def __enter__(self) -> _Child:  # noqa: PYI034 (private, and never derived from)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._answers)

    def run(self) -> tuple[list[Batch], str]:
        """What became of the records that did no harm, and the story of the death; empty if there was none."""
        done: list[Batch] = []
        deadline = time.monotonic() + self._limits.start_s
        while self._done < self._batch.rows.num_rows:
            message = self._next(deadline)
            if message is None:
                return done, self._story(deadline)
            kind, body = message[:1], message[1:]
            if kind == _TAKEN:
                (self.taken,) = struct.unpack("<q", body)
                deadline = time.monotonic() + self._limits.deadline_s
            elif kind == _DONE:
                done.append(_unpack_answer(self._batch, body))
                self._done += 1
            else:
                raise StageContractError(body.decode("utf-8", "replace"))
        return done, ""

    def _story(self, deadline: float) -> str:
        if self._process.poll() is None and time.monotonic() >= deadline:
            return f"it did not return within {self._limits.deadline_s:g} s"
        code = self._process.wait(self._limits.start_s)
        if code >= 0:
            return f"the process ended with exit code {code}"
        return f"the process was killed by signal {-code} ({signal.Signals(-code).name})"

    def _next(self, deadline: float) -> bytes | None:
        """The next message; None where the child is dead, or silent past the deadline."""
        head = self._read(8, deadline)
        if head is None:
            return None
        (size,) = struct.unpack("<Q", head)
        return self._read(size, deadline) if size <= MESSAGE_BYTES_MAX else None

    def _read(self, size: int, deadline: float) -> bytes | None:
        parts: list[bytes] = []
        while size:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                return None
            part = os.read(self._answers, min(size, 1 << 20))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _send(file: IO[bytes], data: bytes) -> None:
    file.write(struct.pack("<Q", len(data)) + data)
    file.flush()


def _pack(table: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_batch(table)
    return sink.getvalue().to_pybytes()


def _unpack(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def _pack_answer(answer: Batch) -> bytes:
    parts = [json.dumps(answer.edits).encode(), _pack(answer.rows), _pack(answer.verdicts)]
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def _unpack_answer(batch: Batch, data: bytes) -> Batch:
    parts: list[bytes] = []
    at = 0
    for _ in range(3):
        (size,) = struct.unpack_from("<Q", data, at)
        parts.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return replace(batch, edits=json.loads(parts[0]), rows=_unpack(parts[1]), verdicts=_unpack(parts[2]))


# -- the child --


def _receive(file: IO[bytes]) -> bytes:
    (size,) = struct.unpack("<Q", file.read(8))
    return file.read(size)


def _work(order: Mapping[str, Any], rows: pa.RecordBatch, answers: IO[bytes]) -> None:
    pipeline = Pipeline.from_dict(order["pipeline"])
    stages = [(name, build_stage(pipeline.stage(name), pipeline.modules)) for name in order["stages"]]
    resource.setrlimit(resource.RLIMIT_AS, (order["memory"], order["memory"]))
    ordinals: list[Any] = rows.column(ROW).to_pylist()
    for index, ordinal in enumerate(ordinals):
        _send(answers, _TAKEN + struct.pack("<q", index))
        one = rows.slice(index, 1)
        fragment = bytes.fromhex(order["fragment"])
        batch = Batch(fragment, order["uri"], ordinal, 1, -1, -1, one, no_verdicts())
        for name, stage in stages:
            batch = process_safely(stage, batch, name)
        _send(answers, _DONE + _pack_answer(batch))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages that the order names on its records, one at a time."""
    parser = argparse.ArgumentParser(prog="headrace solitary")
    parser.add_argument("--order-fd", type=int, required=True)
    parser.add_argument("--answer-fd", type=int, required=True)
    args = parser.parse_args(argv)
    with os.fdopen(args.order_fd, "rb") as orders, os.fdopen(args.answer_fd, "wb") as answers:
        order = json.loads(_receive(orders))
        rows = _unpack(_receive(orders))
        try:
            _work(order, rows, answers)
        except StageContractError as error:
            _send(answers, _BROKEN + str(error).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
