"""Disk, network and store of this host, each measured in about the seconds given."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.daemon import threads
from headrace.store import ObjectStore, StoreError, open_store
from headrace.store.files import Scratch

#: Bytes that are written at once, and those of an object in a store.
PIECE_BYTES = 4 << 20
OBJECT_BYTES = 8 << 20
#: A file is at most as large, and takes at most this share of what the disk has free.
FILE_BYTES_MAX = 2 << 30
FREE_SHARE_MAX = 0.25
#: Objects that a store holds for us at once.
OBJECTS_MAX = 64
#: Small waits of which the median is taken, at least and at most.
WAITS_MIN, WAITS_MAX = 3, 200
#: Bytes that go there and back.
ROUND_BYTES = 64
#: A peer is waited for so long where it does not answer.
PEER_S = 10.0
#: The word that a peer gives, in characters.
WORD_CHARACTERS = 32


class MeasureError(Exception):
    """Why something cannot be measured, in one line."""


def measure_disk(folder: Path, seconds: float) -> dict[str, float]:
    """Write, read and synchronise a file without a name in `folder`. Raises MeasureError."""
    try:
        disk = os.statvfs(folder)
        room = int(min(FILE_BYTES_MAX, FREE_SHARE_MAX * disk.f_bavail * disk.f_frsize))
        if room < PIECE_BYTES:
            raise MeasureError(f"{folder}: the disk is full; give another folder with --folder")
        file = Scratch.on_disk(str(folder))
        piece, began = secrets.token_bytes(PIECE_BYTES), time.perf_counter()
        while file.size + PIECE_BYTES <= room and time.perf_counter() - began < seconds / 2:
            file.append(piece)
            # what a cache took is no speed of a disk
            os.fdatasync(file.fileno())
        wrote = file.size / (time.perf_counter() - began)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        target, at, began = memoryview(bytearray(PIECE_BYTES)), 0, time.perf_counter()
        while at < file.size and time.perf_counter() - began < seconds / 4:
            file.read_into(target, at)
            at += PIECE_BYTES
        read = at / (time.perf_counter() - began)

        def synchronised() -> None:
            file.patch(piece[:4096], 0)
            os.fdatasync(file.fileno())

        waited = _median(synchronised, seconds / 4)
    except OSError as error:
        raise MeasureError(f"{folder}: {error.strerror}; give another folder with --folder") from error
    return {"disk_write_bytes_s": wrote, "disk_read_bytes_s": read, "disk_sync_s": waited}


def measure_store(uri: str, seconds: float) -> dict[str, float]:
    """Write, read and delete objects below a name of their own in the store at `uri`. Raises MeasureError."""
    prefix = f"headrace-bench-{secrets.token_hex(8)}"
    made: list[str] = []
    store: ObjectStore | None = None
    try:
        store = open_store(uri)
        body, began = secrets.token_bytes(OBJECT_BYTES), time.perf_counter()
        while len(made) < OBJECTS_MAX and (not made or time.perf_counter() - began < seconds / 2):
            made.append(f"{prefix}/{len(made)}")
            store.create(made[-1], [body])
        wrote = len(made) * OBJECT_BYTES / (time.perf_counter() - began)
        read, began = 0, time.perf_counter()
        for key in made:
            if read and time.perf_counter() - began >= seconds / 4:
                break
            read += len(store.get(key))
        rate, asked = read / (time.perf_counter() - began), store
        waited = _median(lambda: asked.get(made[0], 0, ROUND_BYTES), seconds / 4)
    except (StoreError, OSError, ValueError) as error:
        raise MeasureError(str(error)) from error
    finally:
        with contextlib.suppress(StoreError, OSError):
            if store is not None:
                for key in made:
                    store.delete(key)
    return {"store_write_bytes_s": wrote, "store_read_bytes_s": rate, "store_wait_s": waited}


def measure_network(peer: tuple[str, int, str] | None, seconds: float) -> dict[str, float]:
    """Rate and round trip to a peer (host, port, its word); without one, over this host's loopback.

    Raises MeasureError.
    """
    if peer is not None:
        return _to_peer(peer, seconds)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        word = secrets.token_hex(WORD_CHARACTERS // 2)
        threads.start("bench peer", lambda: _serve_quietly(server, word, seconds + PEER_S), lambda: None)
        return _to_peer(("127.0.0.1", server.getsockname()[1], word), seconds)


def serve_peer(server: socket.socket, word: str, wait_s: float) -> None:
    """Answer one peer that knows the word, then return; raises MeasureError where none came within `wait_s`.

    Of one that does not know it nothing is read but the word's length.
    """
    deadline = time.monotonic() + wait_s
    while (left := deadline - time.monotonic()) > 0:
        server.settimeout(left)
        try:
            peer, _ = server.accept()
        except TimeoutError:
            break
        with contextlib.closing(peer), contextlib.suppress(OSError, EOFError):
            peer.settimeout(PEER_S)
            if hmac.compare_digest(_exactly(peer, WORD_CHARACTERS), word.encode()):
                _answer(peer)
                return
    raise MeasureError(f"no peer came within {wait_s:.0f} s")


def _serve_quietly(server: socket.socket, word: str, wait_s: float) -> None:
    with contextlib.suppress(MeasureError, OSError):
        serve_peer(server, word, wait_s)


def _answer(peer: socket.socket) -> None:
    """Send back small messages, until one is of zeros; then take all that comes, and say how much it was."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.sendall(b"y")
    while any(data := _exactly(peer, ROUND_BYTES)):
        peer.sendall(data)
    taken, target = 0, bytearray(PIECE_BYTES)
    while count := peer.recv_into(target):
        taken += count
    peer.sendall(taken.to_bytes(8, "big"))


def _to_peer(peer: tuple[str, int, str], seconds: float) -> dict[str, float]:
    host, port, word = peer
    try:
        with socket.create_connection((host, port), PEER_S) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.sendall(word.encode())
            _exactly(link, 1)

            def there_and_back() -> None:
                link.sendall(b"\1" * ROUND_BYTES)
                _exactly(link, ROUND_BYTES)

            waited = _median(there_and_back, seconds / 4)
            link.sendall(bytes(ROUND_BYTES))
            piece, began = bytes(1 << 20), time.perf_counter()
            while time.perf_counter() - began < seconds * 3 / 4:
                link.sendall(piece)
            link.shutdown(socket.SHUT_WR)
            taken = int.from_bytes(_exactly(link, 8), "big")
            rate = taken / (time.perf_counter() - began)
    except EOFError:
        raise MeasureError(f"{host}:{port} knows another word, or serves another peer") from None
    except OSError as error:
        raise MeasureError(f"{host}:{port}: {error.strerror or error}") from error
    return {"net_bytes_s": rate, "net_round_s": waited}


def _exactly(link: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = link.recv(count - len(found))
        if not piece:
            raise EOFError
        found += piece
    return found


def _median(work: Callable[[], object], seconds: float) -> float:
    return statistics.median(_timed(work, seconds))


def _timed(work: Callable[[], object], seconds: float) -> Iterator[float]:
    began = time.perf_counter()
    for number in range(WAITS_MAX):
        start = time.perf_counter()
        if number >= WAITS_MIN and start - began >= seconds:
            break
        work()
        # a clock's tick is the least that can be told
        yield max(time.perf_counter() - start, 1e-9)
