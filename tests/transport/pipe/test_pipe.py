"""What only the pipe has: descriptors that are passed on, a rest that a thread writes, and processes that die."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.transport.contract import Receiver, Sender
from headrace.transport.core.errors import FrameError, LinkAborted, LinkClosed, LinkRefusedError
from headrace.transport.core.frame import Frame, FrameKind
from headrace.transport.pipe.pipe import PipeHandles, PipeReceived, PipeReceiver, PipeSender, create_pipe
from headrace.transport.wait import wait_any
from tests.kits.transport.links import PATIENCE_S, frame_of, readable

Ends = tuple[PipeSender, PipeReceiver]


@pytest.fixture
def ends() -> Iterator[Ends]:
    handles = create_pipe("a->b", 8 << 20)
    sender, receiver = PipeSender(handles), PipeReceiver(handles)
    yield sender, receiver
    sender.detach()
    receiver.detach()


def receive(receiver: Receiver) -> PipeReceived:
    deadline = time.monotonic() + PATIENCE_S
    while (received := receiver.try_receive()) is None:
        assert time.monotonic() < deadline
        wait_any([receiver], 1.0)
    assert isinstance(received, PipeReceived)
    return received


def ending(end: Sender | Receiver) -> Exception:
    """Use the end until it is over, and return how."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            end.credit_bytes() if isinstance(end, PipeSender) else end.try_receive()  # type: ignore[union-attr]
        except (LinkAborted, LinkClosed) as over:
            return over
        wait_any([end], 0.5)
    raise AssertionError("the link goes on")


def test_the_rest_of_a_frame_arrives_though_its_sender_never_comes_back(ends: Ends) -> None:
    sender, receiver = ends
    assert sender.try_send(frame_of(1, 5_000_000))
    assert receive(receiver).frame == frame_of(1, 5_000_000)


def test_a_frame_whose_predecessor_is_not_yet_written_finds_no_space(ends: Ends) -> None:
    sender, receiver = ends
    assert sender.try_send(frame_of(1, 3_000_000))
    assert not sender.try_send(frame_of(2))
    receive(receiver).release()
    assert wait_any([sender], PATIENCE_S)
    assert sender.try_send(frame_of(2))


def test_a_close_waits_for_the_rest(ends: Ends) -> None:
    sender, receiver = ends
    assert sender.try_send(frame_of(1, 3_000_000))
    sender.close()
    assert receive(receiver).frame == frame_of(1, 3_000_000)
    assert isinstance(ending(receiver), LinkClosed)


@pytest.mark.parametrize("leave", ["close", "abort", "detach"])
def test_a_sender_that_leaves_between_two_looks_of_its_receiver_is_understood(
    ends: Ends, leave: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = ends
    assert sender.try_send(frame_of(1))
    receive(receiver).release()
    leaving = {"close": sender.close, "abort": lambda: sender.abort("it gave up"), "detach": sender.detach}[leave]
    # What a receiver does between listening to the channel and reading the pipe.
    monkeypatch.setattr(receiver, "_pay", leaving)
    expected = {"close": LinkClosed, "abort": LinkAborted, "detach": LinkAborted}[leave]
    told = {"close": "after 1 frames", "abort": "sender: it gave up", "detach": "the sender is gone"}[leave]
    with pytest.raises(expected, match=told):
        receiver.try_receive()


@pytest.mark.parametrize("leave", ["close", "abort"])
@pytest.mark.parametrize("granted", ["before it left", "after it left"])
def test_the_word_of_a_gone_sender_is_heard_regardless_of_grants(ends: Ends, leave: str, granted: str) -> None:
    sender, receiver = ends
    # Half a window: what is released is granted at once, to a sender that listens no more.
    assert sender.try_send(frame_of(1, 5 << 20))
    received = receive(receiver)
    if granted == "before it left":
        received.release()
    sender.close() if leave == "close" else sender.abort("it gave up")
    sender.detach()
    received.release()
    over = ending(receiver)
    assert isinstance(over, LinkClosed) if leave == "close" else "sender: it gave up" in str(over)


def test_the_word_of_a_gone_receiver_is_heard_despite_unread_data(ends: Ends) -> None:
    sender, receiver = ends
    sender.close()
    receiver.abort("it gave up")
    receiver.detach()
    assert "receiver: it gave up" in str(ending(sender))


@pytest.mark.parametrize("gone", ["sender", "receiver", "receiver behind a close"])
def test_an_armed_sender_may_be_given_up_and_outlive_its_receiver(ends: Ends, gone: str) -> None:
    sender, receiver = ends
    assert sender.try_send(frame_of(1, 3_000_000))
    assert not sender.try_send(frame_of(2))
    assert sender.arm()
    if gone == "sender":
        sender.abort("it gave up")
    elif gone == "receiver":
        receiver.detach()
    else:
        sender.close()
        receiver.detach()
        sender.statistics()
    # The thread that writes the rest finds that nobody reads it, or that nobody wants it read.
    thread = next((one for one in threading.enumerate() if one.name == "pipe a->b"), None)
    if thread is not None:
        thread.join(PATIENCE_S)
    sender.disarm()
    assert not readable(sender.fileno())
    assert gone == "receiver behind a close" or isinstance(ending(sender), LinkAborted)


def test_memory_that_a_view_still_uses_is_not_used_again(ends: Ends) -> None:
    sender, receiver = ends
    assert sender.try_send(frame_of(1, 300_000))
    received = receive(receiver)
    view = memoryview(received.frame.body)[:10]
    received.release()
    for number in range(2, 6):
        assert sender.try_send(frame_of(number, 300_000))
        receive(receiver).release()
    assert bytes(view) == b"\x01" * 10


def test_memory_that_nobody_uses_is_used_again(ends: Ends) -> None:
    sender, receiver = ends
    memories = set()
    for number in range(5):
        assert sender.try_send(frame_of(number, 300_000))
        received = receive(receiver)
        memories.add(id(received._buffer.obj))
        received.release()
    assert len(memories) == 1


def test_bytes_that_are_no_frames_are_refused_by_name() -> None:
    handles = create_pipe("a->b")
    receiver = PipeReceiver(handles)
    os.write(handles.write_fd, b"GET / HTTP/1.1" * 10)
    with pytest.raises(FrameError, match="GET"):
        receiver.try_receive()
    handles.close_sender()
    receiver.detach()


def test_a_description_of_something_else_is_refused() -> None:
    with pytest.raises(LinkRefusedError):
        PipeHandles.from_description({"name": "a->b"})
    numbers = dict.fromkeys(PipeHandles.__dataclass_fields__, 1) | {"name": "a->b", "window_bytes": float("inf")}
    with pytest.raises(LinkRefusedError, match="no description"):
        PipeHandles.from_description(numbers)


def spawn(role: str, handles: PipeHandles, frames: int, body_bytes: int) -> "subprocess.Popen[str]":
    """Start the far end and wait until it has done what it was told; ours are the descriptors of the near end."""
    command = [sys.executable, "-m", "tests.kits.transport.pipe_peer", role, json.dumps(handles.describe())]
    process = subprocess.Popen(
        [*command, str(frames), str(body_bytes)],
        pass_fds=handles.descriptors(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    handles.close_sender() if role == "sender" else handles.close_receiver()
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait(PATIENCE_S)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()


@pytest.mark.parametrize(("frames", "body_bytes"), [(0, 0), (1, 0), (3, 1000), (1, 3_000_000)])
def test_a_killed_sender_is_known_gone_after_its_writes(frames: int, body_bytes: int) -> None:
    handles = create_pipe("a->b")
    receiver = PipeReceiver(handles)
    process = spawn("sender", handles, frames, body_bytes)
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    kill(process)
    whole = frames if body_bytes < 1 << 20 else 0
    for number in range(whole):
        assert receive(receiver).frame.first == number
    assert "the sender is gone" in str(ending(receiver))
    receiver.detach()


@pytest.mark.parametrize("frames", [0, 1, 3])
def test_a_receiver_that_is_killed_is_known_to_be_gone(frames: int) -> None:
    handles = create_pipe("a->b")
    sender = PipeSender(handles)
    process = spawn("receiver", handles, frames, 0)
    for number in range(frames):
        assert sender.try_send(Frame(FrameKind.DATA, 1, bytes(16), number, 1, b"", b""))
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    kill(process)
    assert "the receiver is gone" in str(ending(sender))
    with pytest.raises(LinkAborted):
        sender.try_send(frame_of(9))
    sender.detach()
