"""A process that holds one model for all tasks of this host: `python -m headrace.stages.quality.models.model_host`.

The first task that wants a model starts it; it loads the model once and forks a child for each task that connects, so
that tasks score side by side and the model's pages are shared (copy-on-write: no library writes to a loaded model).
It is found by a UNIX socket in the folder that only this user may enter (daemon/private_folder.py); the name holds
the hash of the model file and of what is asked of it, and of two that start at once one gets the name and the other
ends. It ends when nobody has been connected for LINGER_S, and at once where none of the workers lives whose tasks came.
Both ends check that the other runs as the same user. A child that dies takes its connection with it and nothing else.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import setproctitle
import xxhash

from headrace.daemon import claim, peer_user, short_path
from headrace.stages.quality.models.models import Model, load_model

#: Seconds without a task after which a host ends.
LINGER_S = 10.0
#: Seconds in which a process that has the name listens, and between two looks.
START_S = 20.0
_LOOK_S = 0.01
#: Bytes of one request or answer.
MESSAGE_BYTES_MAX = 1 << 30
_HASH_BYTES = 8 << 20
_RECEIVE_BYTES = 1 << 20
_LENGTH = struct.Struct("<Q")
_PR_SET_PDEATHSIG = 1
_CREDENTIALS_BYTES = struct.calcsize("3i")
#: Seconds between two looks where nothing happens.
_TURN_S = 0.5


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one message."""
    data = msgpack.packb(message, use_bin_type=True)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """Receive one message; None at the end. Raises ConnectionError where it is cut off or too large."""
    head = _read(connection, _LENGTH.size)
    if not head:
        return None
    (size,) = _LENGTH.unpack(head)
    if size > MESSAGE_BYTES_MAX:
        raise ConnectionError(f"a message of {size} bytes, the limit is {MESSAGE_BYTES_MAX}")
    data = _read(connection, size)
    try:
        found = msgpack.unpackb(data, max_bin_len=MESSAGE_BYTES_MAX, max_str_len=MESSAGE_BYTES_MAX)
    except (ValueError, msgpack.UnpackException) as error:
        raise ConnectionError(f"a message of {size} bytes that is none: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConnectionError(f"a message of {size} bytes that is no object: {type(found).__name__}")
    return found


def _read(connection: socket.socket, size: int) -> bytes:
    # As it comes: a length alone takes no memory.
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), _RECEIVE_BYTES))
        if not part:
            if not data and size == _LENGTH.size:
                return b""
            raise ConnectionError(f"the connection ended after {len(data)} of {size} bytes")
        data += part
    return bytes(data)


def is_ours(connection: socket.socket) -> bool:
    """Whether the other end runs as the same user."""
    return peer_user(connection) == os.geteuid()


def file_digest(path: str) -> str:
    """The xxh3-128 of a file, in hex. Raises OSError."""
    state = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(_HASH_BYTES):
            state.update(block)
    return state.hexdigest()


def main(arguments: list[str]) -> int:
    """Serve one model: arguments are the socket's path, and as JSON kind, path, digests by path, and options."""
    name, given = arguments
    order = json.loads(given)
    setproctitle.setproctitle(f"headrace model {os.path.basename(order['path'])} {Path(name).stem[-12:]}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim(Path(name))  # held until this process ends, and those that it forks
        listener.bind(short_path(Path(name)))
    except BlockingIOError:
        return _until_it_listens(name)
    except OSError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    listener.listen(128)
    # The task that started this waits for the name and no longer; the host outlives it, for the others.
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(_LOOK_S)
    # Its worker adopts it. Loading takes long, and looks at nothing: until then the host dies with its worker.
    _die_with_parent(signal.SIGKILL)
    model, problem = _load(order)
    _die_with_parent(0)
    gc.collect()
    gc.freeze()
    _serve(listener, model, problem)
    with suppress(OSError):
        os.unlink(name)  # this process has the place still: nobody else can have put one there
    return 0


def _until_it_listens(name: str) -> int:
    """Another process has the name: return 0 once it listens, 1 if it does not within START_S."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.connect(short_path(Path(name)))
            return 0
        time.sleep(_LOOK_S)
    return 1


def _load(order: dict[str, Any]) -> tuple[Model | None, str]:
    try:
        for path, digest in order["digests"].items():
            if file_digest(path) != digest:
                return None, f"{path} is not the file that the pipeline was declared with; put the same on every host"
        return load_model(order["kind"], order["path"], order["options"]), ""
    except Exception as error:  # noqa: BLE001 (whatever a library says of a file is told to the tasks that wait)
        return None, f"cannot load {order['path']}: {type(error).__name__}: {error}"


@dataclass(slots=True)
class _Guests:
    """Who is served: the child for each connection, by a descriptor of its end, and the workers of those who came."""

    children: dict[int, tuple[int, socket.socket]] = field(default_factory=dict[int, tuple[int, socket.socket]])
    workers: dict[int, int] = field(default_factory=dict[int, int])

    def came(self, connection: socket.socket, child: int) -> None:
        """Somebody is served by a child of this process."""
        self.children[os.pidfd_open(child)] = (child, connection)

    def note_worker(self, connection: socket.socket) -> None:
        """Remember the parent of who connects: the host waits for other tasks of its worker as long as that lives."""
        pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS_BYTES))[0]
        with suppress(OSError, ValueError):
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            worker = int(stat[stat.rindex(")") + 2 :].split()[1])
            if worker > 1 and worker not in self.workers:
                self.workers[worker] = os.pidfd_open(worker)

    def wait(self, listener: socket.socket, seconds: float) -> bool:
        """Wait for news; whether somebody knocks. Children whose task is gone are killed, and buried."""
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        for descriptor, (_, connection) in self.children.items():
            poll.register(descriptor, select.POLLIN)
            poll.register(connection, select.POLLRDHUP)
        for descriptor in self.workers.values():
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        for descriptor, (child, connection) in list(self.children.items()):
            if connection.fileno() in ready and descriptor not in ready:
                os.kill(child, signal.SIGKILL)  # it may be at a text for long, and nobody waits for the score
            if descriptor in ready or connection.fileno() in ready:
                os.waitpid(child, 0)
                os.close(descriptor)
                connection.close()
                del self.children[descriptor]
        for worker, descriptor in list(self.workers.items()):
            if descriptor in ready:
                os.close(descriptor)
                del self.workers[worker]
        return listener.fileno() in ready


def _serve(listener: socket.socket, model: Model | None, problem: str) -> None:
    guests = _Guests()
    idle_since, had_workers = time.monotonic(), False
    while guests.children or (time.monotonic() - idle_since < LINGER_S and bool(guests.workers) >= had_workers):
        if guests.wait(listener, _TURN_S):
            connection, _ = listener.accept()
            if is_ours(connection):
                guests.note_worker(connection)
                _welcome(connection, listener, model, problem, guests)
            else:
                connection.close()
        had_workers = had_workers or bool(guests.workers)
        if guests.children:
            idle_since = time.monotonic()


def _welcome(
    connection: socket.socket, listener: socket.socket, model: Model | None, problem: str, guests: _Guests
) -> None:
    if model is None:
        with connection, suppress(OSError):
            send(connection, {"problem": problem})
        return
    host = os.getpid()
    child = os.fork()
    if child:
        guests.came(connection, child)
        return
    code = 1
    try:
        listener.close()
        for _, other in guests.children.values():
            other.close()
        _die_with_parent(signal.SIGKILL)
        if os.getppid() == host:
            send(connection, {"problem": ""})
            _answer(connection, model)
        code = 0
    except ConnectionError:
        code = 0
    finally:
        os._exit(code)


def _die_with_parent(number: int) -> None:
    """Ask the kernel for this signal when the parent dies (prctl(2)); 0: for none."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _answer(connection: socket.socket, model: Model) -> None:
    while (request := receive(connection)) is not None:
        try:
            scores = np.array([model.score(text) for text in request["texts"]], np.float64)
            send(connection, {"scores": scores.tobytes()})
        except Exception as error:  # noqa: BLE001 (a record on which the library raises is the stage's to quarantine)
            send(connection, {"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
