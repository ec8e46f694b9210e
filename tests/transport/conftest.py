"""Pairs of ends to test: one per transport, and the far end of a ring in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.transport.contract import Receiver, Sender
from headrace.transport.inline import create_inline
from headrace.transport.pipe import PipeReceiver, PipeSender, create_pipe
from headrace.transport.ring import RingHandles, RingReceiver, RingSender, create_ring

# The tests have no packages: this is how their modules find the kit beside them.
sys.path.insert(0, str(Path(__file__).parent))

from link_kit import PATIENCE_S, MakePair, MakeRing, SettledPair, Spawn


@pytest.fixture
def make_ring() -> Iterator[MakeRing]:
    made: list[RingHandles] = []

    def make(
        window_bytes: int = 1 << 16, capacity_bytes: int = 1 << 20, soft_bytes: int = 1 << 19, generation: int = 1
    ) -> RingHandles:
        handles = create_ring("a->b", capacity_bytes, window_bytes, generation, soft_bytes=soft_bytes)
        made.append(handles)
        return handles

    yield make
    for handles in made:
        handles.close_descriptors()


@pytest.fixture(params=["inline", "ring", "pipe"])
def make_pair(request: pytest.FixtureRequest, make_ring: MakeRing) -> MakePair:
    def inline(window_bytes: int = 1 << 16, capacity_bytes: int = 1 << 20) -> tuple[Sender, Receiver]:
        return create_inline("a->b", window_bytes, limit_bytes=capacity_bytes - 64)

    def ring(window_bytes: int = 1 << 16, capacity_bytes: int = 1 << 20) -> tuple[Sender, Receiver]:
        handles = make_ring(window_bytes, capacity_bytes)
        return RingSender(handles), RingReceiver(handles)

    def pipe(window_bytes: int = 1 << 16, capacity_bytes: int = 1 << 20) -> tuple[Sender, Receiver]:
        handles = create_pipe("a->b", window_bytes, limit_bytes=capacity_bytes - 64)
        pair = SettledPair(PipeSender(handles), PipeReceiver(handles), window_bytes)
        request.addfinalizer(pair.sender.detach)
        request.addfinalizer(pair.receiver.detach)
        return pair.ends()

    return {"inline": inline, "ring": ring, "pipe": pipe}[request.param]


@pytest.fixture
def spawn_peer() -> Iterator[Spawn]:
    """Start `ring_peer.py` in the role of the sender or the receiver of a ring."""
    started: list[subprocess.Popen[str]] = []

    def spawn(role: str, handles: RingHandles, *, frames: int = 0) -> "subprocess.Popen[str]":
        command = [sys.executable, str(Path(__file__).with_name("ring_peer.py")), role]
        process = subprocess.Popen(
            [*command, json.dumps(handles.describe()), str(frames)],
            pass_fds=handles.descriptors(),
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield spawn
    for process in started:
        process.kill()
        process.wait(PATIENCE_S)
        if process.stdout:
            process.stdout.close()
