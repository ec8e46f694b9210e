"""A server that takes connections and answers nothing: a store or a controller that hangs."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

#: Bytes of a request that are looked at.
_HEAD_BYTES = 4096


class Silent:
    """Listens on loopback, and at sockets of this host if asked to. Close it."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._socket.getsockname()[1]
        self.asked = threading.Event()
        self._heads: list[bytes] = []
        self._held: list[socket.socket] = []
        self._listening = [self._socket]
        threading.Thread(target=self._take, args=(self._socket, b""), daemon=True).start()

    def store(self, bucket: str) -> str:
        """The URI of a dataset there."""
        return f"s3://{bucket}/out?endpoint=http://127.0.0.1:{self.port}&anonymous=true"

    def controller(self, path: Path) -> str:
        """Listen at a socket too; its address. `was_asked(path.name)` says when somebody came."""
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen()
        self._listening.append(listening)
        threading.Thread(target=self._take, args=(listening, path.name.encode()), daemon=True).start()
        return f"unix:{path}"

    def was_asked(self, word: str) -> bool:
        """Whether a request came in whose head has this word, or somebody at the socket of that name."""
        return any(word.encode() in head for head in tuple(self._heads))

    def close(self) -> None:
        """Let go of all."""
        for item in (*self._listening, *self._held):
            item.close()

    def _take(self, listening: socket.socket, name: bytes) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                self._held.append(connection)
                if name:
                    self._heads.append(name)
                threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while head := connection.recv(_HEAD_BYTES):
                self._heads.append(head)
                self.asked.set()


def below(pid: int) -> dict[int, str]:
    """The processes below one, and what each is called."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
            parents[int(name)] = int(text[text.rindex(")") + 2 :].split()[1])
    found: dict[int, str] = {}
    pending = [pid]
    while pending:
        above = pending.pop()
        children = [child for child, parent in parents.items() if parent == above]
        pending += children
        for child in children:
            with contextlib.suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


def left_after(descriptors: Mapping[int, str], seconds: float) -> list[str]:
    """Which of these, by their pidfds, live still after so long."""
    poll, deadline = select.poll(), time.monotonic() + seconds
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    left = dict(descriptors)
    while left and (remains := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(remains * 1000):
            poll.unregister(descriptor)
            left.pop(descriptor)
    return list(left.values())


def wait_until(come_true: Callable[[], bool], seconds: float, what: str) -> None:
    """Look until it is so."""
    deadline, never = time.monotonic() + seconds, threading.Event()
    while not come_true():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        never.wait(0.01)
