"""Batches as frames: Arrow IPC for the rows, msgpack for the rest; and what goes to the controller, as messages."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from headrace.protos import control_pb2 as pb
from headrace.stages.batch import Batch, no_verdicts
from headrace.store.entries import Fragment
from headrace.store.intervals import Gap
from headrace.transport.errors import FrameError
from headrace.transport.frame import Frame, FrameKind


def batch_to_frame(batch: Batch, epoch: int) -> Frame:
    """The frame of a batch: one copy of the rows into an IPC message."""
    verdicts = _to_ipc(batch.verdicts) if batch.verdicts.num_rows else b""
    facts = [batch.uri, batch.offset, batch.length, batch.edits, bytes(verdicts)]
    return Frame(
        kind=FrameKind.DATA,
        epoch=epoch,
        fragment=batch.fragment,
        first=batch.first,
        count=batch.count,
        metadata=msgpack.packb(facts, use_bin_type=True),
        body=_to_ipc(batch.rows),
    )


def frame_to_batch(frame: Frame) -> Batch:
    """The batch of a frame. Its memory is copied, so the frame may be released at once. FrameError if it is none."""
    try:
        uri, offset, length, edits, verdicts = msgpack.unpackb(frame.metadata, raw=False)
        return Batch(
            fragment=bytes(frame.fragment),
            uri=uri,
            first=frame.first,
            count=frame.count,
            offset=offset,
            length=length,
            rows=_from_ipc(bytes(frame.body)),
            verdicts=_from_ipc(verdicts) if verdicts else no_verdicts(),
            edits=edits,
        )
    except (ValueError, TypeError, KeyError, pa.ArrowException, msgpack.UnpackException) as error:
        raise FrameError(f"a data frame of {len(frame.body)} bytes holds no batch: {error}") from error


def sweep_frame(sweep: int, epoch: int) -> Frame:
    """The marker of a sweep."""
    return Frame(kind=FrameKind.SWEEP, epoch=epoch, fragment=bytes(16), first=sweep, count=0, metadata=b"", body=b"")


def _to_ipc(batch: pa.RecordBatch) -> Any:
    # Measured first, which copies nothing: a stream that grows would copy what it has, and touch twice as many pages.
    measure = pa.MockOutputStream()
    _write(batch, measure)
    # malloc's memory is warm. Arrow's own, which is given back when it is freed, would have to be mapped anew.
    buffer = np.empty(measure.size(), np.uint8).data
    _write(batch, pa.FixedSizeBufferWriter(pa.py_buffer(buffer)))
    return buffer


def _write(batch: pa.RecordBatch, sink: Any) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _from_ipc(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()


def gap_to(gap: Gap) -> pb.Gap:
    """A gap for the worker."""
    return pb.Gap(first=gap.first, end=gap.end, offset=gap.offset)


def fragment_to(f: Fragment) -> pb.Fragment:
    """A fragment for the worker."""
    return pb.Fragment(
        id=f.id, stage=f.stage, uri=f.uri, version=f.version, start=f.start, end=f.end, reader=f.reader, size=f.size
    )


def fragment_from(m: pb.Fragment) -> Fragment:
    """The inverse of `fragment_to`."""
    return Fragment(m.id, m.stage, m.uri, m.version, m.start, m.end, m.reader, m.size)
