"""Batches as frames: Arrow IPC for the rows, msgpack for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import pyarrow as pa

from headrace.stages.runtime import ROW, VERDICTS, Batch, check_messages, no_verdicts, ordinals_of, sound
from headrace.transport import FrameError
from headrace.transport.core import Frame, FrameKind, body_size, body_view
from headrace.worker.task.core.held import ORDINAL_BITS

#: Without them Arrow asks the environment for them at each message.
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions()
_READ_OPTIONS = pa.ipc.IpcReadOptions()
#: Of the name of a fragment.
FRAGMENT_BYTES = 16
#: What a frame's metadata are: the URI, offset, length, edits, counters, verdicts.
_KINDS = (str, int, int, dict, dict, bytes)


class Rows:
    """Rows that are yet to be written as an IPC message: a link writes them where it wants them."""

    __slots__ = ("_batch", "nbytes")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        # Measured by a dry run, which copies nothing.
        measure = pa.MockOutputStream()
        _write(batch, measure)
        self.nbytes: int = measure.size()

    def write_into(self, place: memoryview) -> None:
        """Write the message into `place`, which has `nbytes` bytes."""
        _write(self._batch, pa.FixedSizeBufferWriter(pa.py_buffer(place)))


def batch_to_frame(batch: Batch, epoch: int) -> Frame:
    """The frame of a batch. Its rows are written when it is sent, and once for each link: no message is made before."""
    verdicts = _to_ipc(batch.verdicts) if batch.verdicts.num_rows else b""
    facts = [batch.uri, batch.offset, batch.length, batch.edits, batch.counters, verdicts]
    return Frame(
        kind=FrameKind.DATA,
        epoch=epoch,
        fragment=batch.fragment,
        first=batch.first,
        count=batch.count,
        metadata=msgpack.packb(facts, use_bin_type=True),
        body=b"",
        unwritten=Rows(batch.rows),
    )


def frame_to_batch(frame: Frame, *, borrow: bool = False) -> Batch:
    """The batch of a frame. FrameError if it is none.

    Its memory is copied, so that the frame may be released at once. `borrow` leaves the rows in the frame's memory
    where all that refers to it goes with the columns: then the frame may be released when they are gone.
    """
    try:
        facts = msgpack.unpackb(frame.metadata, raw=False)
        uri, offset, length, edits, counters, verdicts = facts
        _check_kinds(facts)
        rows = _from_ipc(body_view(frame)) if borrow else None
        if rows is None or not _plain(rows.schema):
            rows = _from_ipc(bytes(body_view(frame)))
        lost = _from_ipc(verdicts) if verdicts else no_verdicts()
        _check_columns(rows, lost)
        return Batch(
            fragment=bytes(frame.fragment),
            uri=uri,
            first=frame.first,
            count=frame.count,
            offset=offset,
            length=length,
            rows=rows,
            verdicts=lost,
            edits=edits,
            counters=counters,
        )
    except (ValueError, TypeError, KeyError, OSError, pa.ArrowException, msgpack.UnpackException) as error:
        raise FrameError(f"a data frame of {body_size(frame)} bytes holds no batch: {error}") from error


def _check_kinds(facts: Sequence[Any]) -> None:
    """Raise TypeError where what a frame says of a batch is of other kinds than `batch_to_frame` writes."""
    found = tuple(type(fact) for fact in facts)
    counted = [pair for fact in facts if isinstance(fact, dict) for pair in fact.items()]
    if found != _KINDS or any((type(name), type(count)) != (str, int) for name, count in counted):
        raise TypeError(f"it says {', '.join(kind.__name__ for kind in found)} of a batch")


def _check_columns(rows: pa.RecordBatch, lost: pa.RecordBatch) -> None:
    """Raise ValueError unless each row and each verdict says which record it is of."""
    if rows.schema.get_all_field_indices(ROW) == [] or not lost.schema.equals(VERDICTS):
        raise ValueError(f"it has columns of no batch: {rows.schema.names} and {lost.schema.names}")
    ordinals = rows.column(ROW)
    if ordinals.type != pa.int64() or ordinals.null_count or lost.column("row").null_count:
        raise ValueError("it has rows without a record")
    fragments, rows_named = lost.column("named_fragment"), lost.column("named_row")
    if fragments.null_count == lost.num_rows and rows_named.null_count == lost.num_rows:
        return
    if not fragments.is_valid().equals(rows_named.is_valid()):
        raise ValueError("it has duplicates that name half a record")
    if not lost.column("named_settled").is_valid().equals(fragments.is_valid()):
        raise ValueError("it has duplicates of records that are neither settled nor not")
    named = ordinals_of(rows_named.drop_null())
    if any(len(name or b"") != FRAGMENT_BYTES for name in fragments.drop_null().unique().to_pylist()):
        raise ValueError("it has duplicates that name no fragment")
    if not 0 <= int(named.min()) <= int(named.max()) < 1 << ORDINAL_BITS:
        raise ValueError(f"it has duplicates that name records {named.min()} to {named.max()}")


def sweep_frame(sweep: int, epoch: int) -> Frame:
    """The marker of a sweep."""
    return Frame(kind=FrameKind.SWEEP, epoch=epoch, fragment=bytes(16), first=sweep, count=0, metadata=b"", body=b"")


def _to_ipc(batch: pa.RecordBatch) -> bytes:
    rows = Rows(batch)
    message = bytearray(rows.nbytes)
    rows.write_into(memoryview(message))
    return bytes(message)


def _write(batch: pa.RecordBatch, sink: Any) -> None:
    with pa.ipc.new_stream(sink, batch.schema, options=_WRITE_OPTIONS) as writer:
        writer.write_batch(batch)


def _from_ipc(data: Any) -> pa.RecordBatch:
    check_messages(data)
    with pa.ipc.open_stream(pa.py_buffer(data), options=_READ_OPTIONS) as reader:
        for rows in reader:
            return sound(rows)
    raise ValueError("a stream of Arrow without a batch")


def _plain(schema: pa.Schema) -> bool:
    """Whether a copy of these columns refers to nothing of them: a dictionary, or a view, may go into the copy."""
    return all(_is_plain(field.type) for field in schema)


def _is_plain(kind: pa.DataType) -> bool:
    is_ = pa.types
    if is_.is_list(kind) or is_.is_large_list(kind):
        return _is_plain(kind.value_type)
    return bool(
        is_.is_primitive(kind)
        or is_.is_string(kind)
        or is_.is_large_string(kind)
        or is_.is_binary(kind)
        or is_.is_large_binary(kind)
    )
