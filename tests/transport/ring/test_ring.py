"""What only the ring has: handles, generations, wraps, an owner, and memory that a bad peer can scribble on."""

import json
import mmap
import os
import select
import subprocess
from collections import deque

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings, strategies as st

from headrace.transport.core.errors import (
    FrameError,
    LinkAborted,
    LinkClosed,
    LinkCorruptError,
    LinkRefusedError,
    TransportError,
)
from headrace.transport.core.frame import Frame, FrameKind, encoded_size
from headrace.transport.ring import RingHandles, RingOwner, RingReceiver, RingSender, create_ring
from headrace.transport.ring.memory import HEADER_PAGE_BYTES, WORD_HEAD, WORD_TAIL
from headrace.transport.ring.ring import RingReceived
from headrace.transport.wait import wait_any
from tests.kits.transport.links import PATIENCE_S, Later, MakeRing, Spawn, fill, frame_of, take, take_frame
from tests.kits.transport.ring_peer import body_of

SIZES = st.one_of(st.integers(0, 200), st.integers(0, 200), st.integers(0, 3900))
ACTIONS = st.lists(st.one_of(SIZES.map(lambda size: ("send", size)), st.tuples(st.just("receive"), st.just(0)),
                             st.integers(0, 7).map(lambda index: ("release", index))), max_size=120)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.sampled_from([512, 2048, 4096]), st.sampled_from([300, 1000, 4096]))
def test_a_small_ring_behaves_as_a_queue_whatever_the_order_of_verbs(
    actions: list[tuple[str, int]], soft_bytes: int, window_bytes: int
) -> None:
    handles = create_ring("fuzz", 4096, window_bytes, soft_bytes=soft_bytes)
    sender, receiver = RingSender(handles), RingReceiver(handles)
    queued: deque[Frame] = deque()
    held: list[tuple[RingReceived, Frame]] = []

    def receive() -> None:
        received = receiver.try_receive()
        assert (received is None) == (not queued)
        if received is not None:
            held.append((received, queued.popleft()))

    def release(index: int) -> None:
        received, expected = held.pop(index)
        assert received.frame == expected
        received.release()

    try:
        for number, (verb, argument) in enumerate(actions):
            if verb == "send":
                frame = frame_of(number, argument)
                if encoded_size(frame) <= sender.limit_bytes and sender.try_send(frame):
                    queued.append(frame)
            elif verb == "receive":
                receive()
            elif held:
                release(argument % len(held))
            in_flight = sum(encoded_size(frame) for frame in queued) + sum(entry[0].size_bytes for entry in held)
            assert in_flight <= window_bytes or len(queued) + len(held) == 1
        while queued or held:
            receive()
            release(0)
        receiver.try_receive()
        # At rest all credit is back, and a frame as large as the ring passes: alone, or after its skip.
        assert sender.credit_bytes() == window_bytes
        largest = Frame(FrameKind.DATA, 0, bytes(16), 0, 0, b"", b"x" * (sender.limit_bytes - 128))
        assert sender.try_send(largest) or receiver.try_receive() or sender.try_send(largest)
        assert take_frame(receiver) == largest
    finally:
        sender.detach()
        receiver.detach()
        handles.close_descriptors()


def test_a_held_frame_keeps_its_memory_while_later_ones_go(make_ring: MakeRing) -> None:
    handles = make_ring(window_bytes=8192, capacity_bytes=8192, soft_bytes=8192)
    sender, receiver = RingSender(handles), RingReceiver(handles)
    held = [take(receiver) for _ in range(fill(sender))]
    for received in reversed(held[1:]):
        received.release()
    assert fill(sender, lambda number: frame_of(number + 50)) == 0
    assert held[0].frame == frame_of(0)
    held[0].release()
    assert fill(sender) == len(held)


def test_a_hundred_laps_of_frames_that_fit_badly_arrive(make_ring: MakeRing) -> None:
    handles = make_ring(window_bytes=8192, capacity_bytes=8192, soft_bytes=4096)
    sender, receiver = RingSender(handles), RingReceiver(handles)
    for number in range(400):
        frame = frame_of(number, number * 997 % 7000)
        assert sender.try_send(frame) or receiver.try_receive() or sender.try_send(frame)
        assert take_frame(receiver) == frame


def test_a_receiver_that_keeps_up_keeps_the_ring_low(make_ring: MakeRing) -> None:
    handles = make_ring(capacity_bytes=1 << 20, soft_bytes=1 << 16)
    sender, receiver = RingSender(handles), RingReceiver(handles)
    for number in range(200):
        assert sender.try_send(frame_of(number, 3000))
        take(receiver).release()
    allocated_bytes = os.fstat(handles.memory_fd).st_blocks * 512
    assert allocated_bytes <= HEADER_PAGE_BYTES + (1 << 16)


def test_a_slow_receiver_lets_the_ring_grow_beyond_its_soft_wrap_point(make_ring: MakeRing) -> None:
    handles = make_ring(window_bytes=1 << 20, capacity_bytes=1 << 20, soft_bytes=1 << 16)
    sender, receiver = RingSender(handles), RingReceiver(handles)
    sent = fill(sender, lambda number: frame_of(number, 10_000))
    assert sent * 10_000 > 1 << 19
    assert [take_frame(receiver).first for _ in range(sent)] == list(range(sent))


def test_the_body_of_a_frame_is_aligned_in_memory(make_ring: MakeRing) -> None:
    handles = make_ring()
    sender, receiver = RingSender(handles), RingReceiver(handles)
    for size in (1, 10, 100, 1000):
        assert sender.try_send(frame_of(size, size))
        assert pa.py_buffer(take(receiver).frame.body).address % 64 == 0


def test_arrow_batches_pass_and_are_read_in_place(make_ring: MakeRing) -> None:
    handles = make_ring()
    sender, receiver = RingSender(handles), RingReceiver(handles)
    batch = pa.record_batch({"text": ["one", "two", None], "ordinal": [1, 2, 3]})
    assert sender.try_send(Frame(FrameKind.DATA, 0, bytes(16), 0, 3, b"", memoryview(_serialized(batch))))
    received = take(receiver)
    reader = pa.ipc.open_stream(pa.py_buffer(received.frame.body))
    read = reader.read_next_batch()
    assert read.equals(batch)
    # The batch still refers to the memory: release must not mind.
    received.release()
    receiver.detach()
    del read, reader


def _serialized(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def test_a_frame_is_on_loan_while_arrow_refers_to_it(make_ring: MakeRing) -> None:
    handles = make_ring(window_bytes=10_000)
    sender, receiver = RingSender(handles), RingReceiver(handles)
    assert sender.try_send(frame_of(0, 3000))
    received = take(receiver)
    column = pa.Array.from_buffers(pa.uint8(), 1000, [None, pa.py_buffer(received.frame.body)]).slice(10)
    assert not received.try_release()
    assert not received.try_release()
    assert received.frame.first == 0
    assert sender.credit_bytes() < 10_000 - 3000
    del column
    assert received.try_release()
    assert sender.credit_bytes() == 10_000


def test_a_body_that_cannot_be_written_leaves_the_ring_as_it_was(make_ring: MakeRing) -> None:
    class Torn(Later):
        def write_into(self, place: memoryview) -> None:
            place[:10] = b"x" * 10
            raise RuntimeError("in the middle")

    handles = make_ring()
    sender, receiver = RingSender(handles), RingReceiver(handles)
    with pytest.raises(RuntimeError, match="in the middle"):
        sender.try_send(frame_of(0)._replace(unwritten=Torn(bytes(1000))))
    assert receiver.try_receive() is None
    assert sender.statistics().frames == 0
    assert sender.credit_bytes() == handles.window_bytes
    assert sender.try_send(frame_of(1))
    assert take_frame(receiver) == frame_of(1)


def test_a_received_body_cannot_be_written_to(make_ring: MakeRing) -> None:
    handles = make_ring()
    sender, receiver = RingSender(handles), RingReceiver(handles)
    assert sender.try_send(frame_of(0))
    body = take(receiver).frame.body
    assert isinstance(body, memoryview)
    assert body.readonly


def test_a_view_kept_after_release_is_unusable(make_ring: MakeRing) -> None:
    handles = make_ring()
    sender, receiver = RingSender(handles), RingReceiver(handles)
    assert sender.try_send(frame_of(0))
    received = take(receiver)
    body = received.frame.body
    received.release()
    with pytest.raises(ValueError, match="released memoryview"):
        bytes(body)


def test_another_generation_is_refused(make_ring: MakeRing) -> None:
    handles = make_ring(generation=5)
    stale = RingHandles.from_description(handles.describe() | {"generation": 4})
    for end in (RingSender, RingReceiver):
        with pytest.raises(LinkRefusedError, match="generation 5 in memory, the handles say 4"):
            end(stale)


@pytest.mark.parametrize(
    ("field", "message"), [("capacity_bytes", "memory of"), ("window_bytes", "window"), ("soft_bytes", "soft wrap")]
)
def test_handles_that_do_not_match_the_memory_are_refused(make_ring: MakeRing, field: str, message: str) -> None:
    description = make_ring().describe()
    description[field] += 64
    with pytest.raises(LinkRefusedError, match=message):
        RingSender(RingHandles.from_description(description))


def test_memory_that_is_no_ring_is_refused(make_ring: MakeRing) -> None:
    handles = make_ring()
    memory_fd = os.memfd_create("other", os.MFD_CLOEXEC)
    try:
        os.ftruncate(memory_fd, HEADER_PAGE_BYTES + handles.capacity_bytes)
        with pytest.raises(LinkRefusedError, match="can be shrunk"):
            RingSender(handles.with_descriptors(memory_fd, handles.sender_fd, handles.receiver_fd))
    finally:
        os.close(memory_fd)


@pytest.mark.parametrize("end", [RingSender, RingReceiver])
def test_an_end_can_be_taken_once_only(make_ring: MakeRing, end: type[RingSender] | type[RingReceiver]) -> None:
    handles = make_ring()
    end(handles)
    with pytest.raises(LinkRefusedError, match="a new task needs a new ring"):
        end(handles)


@pytest.mark.parametrize(("capacity_bytes", "window_bytes"), [(0, 1), (4097, 1), (64, 1), (4096, 0), (4096, 5000)])
def test_sizes_that_cannot_work_are_refused(capacity_bytes: int, window_bytes: int) -> None:
    with pytest.raises(LinkRefusedError):
        create_ring("r", capacity_bytes, window_bytes)


def test_a_description_that_is_none_is_refused() -> None:
    with pytest.raises(LinkRefusedError, match="no description"):
        RingHandles.from_description({"name": "r"})
    numbers = dict.fromkeys(RingHandles.__dataclass_fields__, 1) | {"name": "r", "soft_bytes": float("inf")}
    with pytest.raises(LinkRefusedError, match="no description"):
        RingHandles.from_description(numbers)


def test_an_abort_by_the_owner_reaches_both_ends_and_wakes_them(make_ring: MakeRing) -> None:
    handles = make_ring()
    sender, receiver, owner = RingSender(handles), RingReceiver(handles), RingOwner(handles)
    assert receiver.arm()
    owner.abort("task 7 was killed by signal 9")
    for end in (sender, receiver):
        assert select.select([end.fileno()], [], [], 0)[0]
        end.disarm()
        assert not end.arm()
    for verb in (lambda: sender.try_send(frame_of(0)), receiver.try_receive):
        with pytest.raises(LinkAborted, match="owner: task 7 was killed by signal 9"):
            verb()


def test_a_reason_longer_than_its_room_is_cut(make_ring: MakeRing) -> None:
    handles = make_ring()
    sender, receiver = RingSender(handles), RingReceiver(handles)
    sender.abort("\u00e9" * 1000)
    with pytest.raises(LinkAborted, match=r"\u00e9{200}"):
        receiver.try_receive()


class Scribbler:
    """A peer that writes what it likes into the memory of a ring."""

    def __init__(self, handles: RingHandles) -> None:
        self.map = mmap.mmap(handles.memory_fd, HEADER_PAGE_BYTES + handles.capacity_bytes)
        self.words = memoryview(self.map).cast("Q")

    def record(self, index: int, value: int) -> None:
        self.words[HEADER_PAGE_BYTES // 8 + index] = value


WORDS = st.integers(0, 2**64 - 1)
CURSORS = st.one_of(WORDS, st.integers(0, 200).map(lambda units: units * 64))


@given(head=CURSORS, tail=CURSORS, length=st.one_of(WORDS, st.integers(0, 9000)))
@settings(deadline=None)
def test_any_cursor_and_length_in_memory_give_a_named_error(head: int, tail: int, length: int) -> None:
    handles = create_ring("fuzz", 4096, 4096)
    sender, receiver, scribbler = RingSender(handles), RingReceiver(handles), Scribbler(handles)
    try:
        assert sender.try_send(frame_of(0, 0))
        scribbler.record(0, length)
        scribbler.words[WORD_HEAD], scribbler.words[WORD_TAIL] = head, tail
        for verb in (receiver.try_receive, sender.credit_bytes, lambda: sender.try_send(frame_of(1))):
            try:
                verb()
            except TransportError:
                continue
    finally:
        sender.detach()
        receiver.detach()
        handles.close_descriptors()


@pytest.mark.parametrize("head", [1 << 40, 32, 1 << 21])
def test_an_impossible_head_is_named(make_ring: MakeRing, head: int) -> None:
    handles = make_ring()
    receiver = RingReceiver(handles)
    Scribbler(handles).words[WORD_HEAD] = head
    with pytest.raises(LinkCorruptError, match="abort the link"):
        receiver.try_receive()


@pytest.mark.parametrize("tail", [1 << 40, 32, 128])
def test_an_impossible_tail_is_named(make_ring: MakeRing, tail: int) -> None:
    handles = make_ring()
    sender = RingSender(handles)
    Scribbler(handles).words[WORD_TAIL] = tail
    with pytest.raises(LinkCorruptError, match="abort the link"):
        sender.credit_bytes()


@pytest.mark.parametrize("length", [0, 71, 1 << 20, (1 << 64) - 1, 1 << 63])
def test_an_impossible_length_is_named(make_ring: MakeRing, length: int) -> None:
    handles = make_ring()
    sender, receiver = RingSender(handles), RingReceiver(handles)
    assert sender.try_send(frame_of(0))
    Scribbler(handles).record(0, length)
    with pytest.raises(LinkCorruptError):
        receiver.try_receive()


def test_a_frame_scribbled_over_in_the_ring_is_refused(make_ring: MakeRing) -> None:
    handles = make_ring()
    sender, receiver = RingSender(handles), RingReceiver(handles)
    assert sender.try_send(frame_of(0))
    Scribbler(handles).record(8 + 9, 12345)
    with pytest.raises(FrameError):
        receiver.try_receive()


def test_a_sender_in_another_process_delivers_every_frame(make_ring: MakeRing, spawn_peer: Spawn) -> None:
    handles = make_ring(window_bytes=200_000)
    receiver = RingReceiver(handles)
    process = spawn_peer("sender", handles, frames=2000)
    number = 0
    while (received := _next(receiver)) is not None:
        assert received.frame.first == number
        assert received.frame.body == body_of(number)
        received.release()
        number += 1
    assert number == 2000
    assert process.wait(PATIENCE_S) == 0


def test_a_receiver_in_another_process_gets_every_frame(make_ring: MakeRing, spawn_peer: Spawn) -> None:
    handles = make_ring(window_bytes=200_000)
    process = spawn_peer("receiver", handles)
    sender, digest = RingSender(handles), xxhash.xxh3_64()
    for number in range(2000):
        digest.update(body_of(number))
        while not sender.try_send(Frame(FrameKind.DATA, 1, bytes(16), number, 1, b"", body_of(number))):
            assert wait_any([sender], PATIENCE_S)
    sender.close()
    assert _report(process) == {"end": "closed", "frames": 2000, "digest": digest.hexdigest()}


def test_what_a_dead_sender_published_can_be_received_after_it_closed(make_ring: MakeRing, spawn_peer: Spawn) -> None:
    handles = make_ring(window_bytes=1 << 20)
    assert spawn_peer("sender", handles, frames=10).wait(PATIENCE_S) == 0
    receiver = RingReceiver(handles)
    assert [take_frame(receiver).body for _ in range(10)] == [body_of(number) for number in range(10)]
    with pytest.raises(LinkClosed):
        receiver.try_receive()


def test_a_receiver_asleep_in_another_process_is_woken_by_the_owner(make_ring: MakeRing, spawn_peer: Spawn) -> None:
    handles = make_ring()
    process = spawn_peer("receiver", handles)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    RingOwner(handles).abort("the sender died")
    assert _report(process) == {"end": "aborted", "by": "owner", "reason": "the sender died"}


def _next(receiver: RingReceiver) -> RingReceived | None:
    """Wait for the next frame; None at the end of the link."""
    try:
        while (received := receiver.try_receive()) is None:
            assert wait_any([receiver], PATIENCE_S), f"nothing came: {receiver.statistics()}"
    except LinkClosed:
        return None
    return received


def _report(process: subprocess.Popen[str]) -> dict[str, object]:
    output, _ = process.communicate(timeout=PATIENCE_S)
    return json.loads(output.splitlines()[-1])
