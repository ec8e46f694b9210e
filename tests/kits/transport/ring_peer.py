"""The far end of a ring, in a process of its own: `ring_peer.py ROLE HANDLES_JSON FRAMES`."""

import json
import sys

import xxhash

from headrace.transport.core.errors import LinkAborted, LinkClosed
from headrace.transport.core.frame import Frame, FrameKind
from headrace.transport.ring.ring import RingHandles, RingReceiver, RingSender
from headrace.transport.wait import wait_any

PATIENCE_S = 120.0


def body_of(number: int) -> bytes:
    """Sizes from 0 to some 60,000 bytes, in an order that meets every alignment."""
    return (number * 7919).to_bytes(8, "little") * ((number * 613) % 7500)


def send(handles: RingHandles, frames: int) -> None:
    sender = RingSender(handles)
    for number in range(frames):
        frame = Frame(FrameKind.DATA, 1, bytes(16), number, 1, b"", body_of(number))
        while not sender.try_send(frame):
            assert wait_any([sender], PATIENCE_S)
    sender.close()


def receive(handles: RingHandles) -> None:
    receiver = RingReceiver(handles)
    digest, frames = xxhash.xxh3_64(), 0
    print("ready", flush=True)
    try:
        while True:
            received = receiver.try_receive()
            if received is None:
                assert wait_any([receiver], PATIENCE_S)
                continue
            assert received.frame.first == frames
            digest.update(received.frame.body)
            frames += 1
            received.release()
    except LinkClosed:
        print(json.dumps({"end": "closed", "frames": frames, "digest": digest.hexdigest()}))
    except LinkAborted as aborted:
        print(json.dumps({"end": "aborted", "by": aborted.by, "reason": aborted.reason}))


def main() -> None:
    role, description, frames = sys.argv[1:]
    handles = RingHandles.from_description(json.loads(description))
    if role == "sender":
        send(handles, int(frames))
    else:
        receive(handles)


if __name__ == "__main__":
    main()
