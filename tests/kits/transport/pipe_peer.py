"""The far end of a pipe, in a process of its own, to be killed: `pipe_peer.py ROLE HANDLES_JSON FRAMES BODY_BYTES`.

It sends, or receives without releasing, so many frames, says so on standard output and then does nothing more.
"""

import json
import sys

from headrace.transport.core.frame import Frame, FrameKind
from headrace.transport.pipe.pipe import PipeHandles, PipeReceiver, PipeSender
from headrace.transport.wait import wait_any

PATIENCE_S = 120.0


def main() -> None:
    role, description, frames, body_bytes = sys.argv[1:]
    handles = PipeHandles.from_description(json.loads(description))
    held = []
    if role == "sender":
        handles.close_receiver()
        sender = PipeSender(handles)
        for number in range(int(frames)):
            frame = Frame(FrameKind.DATA, 1, bytes(16), number, 1, b"", b"x" * int(body_bytes))
            while not sender.try_send(frame):
                assert wait_any([sender], PATIENCE_S)
    else:
        handles.close_sender()
        receiver = PipeReceiver(handles)
        while len(held) < int(frames):
            if (received := receiver.try_receive()) is not None:
                held.append(received)
            else:
                assert wait_any([receiver], PATIENCE_S)
    print("done", flush=True)
    # Until it is killed, or whoever started it is gone.
    sys.stdin.read()


if __name__ == "__main__":
    main()
