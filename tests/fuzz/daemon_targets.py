"""Targets of what daemons are told: spools by clients and disks, workers by tasks and doors, controllers by workers."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable
from random import Random
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import orjson
import pyarrow as pa
from google.protobuf.message import DecodeError

from headrace.controller import convert
from headrace.controller.core.messages import messages as core
from headrace.daemon import Clients, post
from headrace.page.core.request import HEADERS_MAX, RequestRefused, body_length, check, parse_head
from headrace.protos import codec, control_pb2 as pb
from headrace.stages.runtime.batch import ROW, VERDICTS, Batch, no_verdicts
from headrace.store.contract.errors import StoreError
from headrace.store.ledger.core.fragments import Range
from headrace.transport.core.errors import FrameError
from headrace.transport.core.frame import Frame, FrameKind
from headrace.worker.links import handoff
from headrace.worker.membership import member
from headrace.worker.spool.guard import Tokens
from headrace.worker.spool.server import _Handler
from headrace.worker.spool.spool import Spool
from headrace.worker.task.batch.in_flight import SLOT_BYTES, STAGES, WRITER, InFlightPage
from headrace.worker.task.channel import Channel, ChannelClosed
from headrace.worker.task.codec import batch_to_frame, frame_to_batch
from tests.controller.core.cluster.test_hostile_workers import CASES, House
from tests.fuzz.fuzz_files import empty_folder
from tests.fuzz.harness import Target
from tests.fuzz.mutations import within_msgpack

# -- a spool --

STATUSES = {100, 200, 400, 401, 403, 404, 408, 411, 413, 414, 431, 501, 503, 505}
TOKEN = "t" * 16


def run_spool_http(data: bytes) -> object | None:
    """However a client speaks, what it is told was taken is in the spool, and nothing else is."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    clients = Clients()
    clients.come(theirs)
    with empty_folder() as folder, ours, theirs:
        spool = Spool(folder / "spool", limit_bytes=4096)
        facts = {"spool": spool, "tokens": Tokens((TOKEN,) if data[:1] == b"\1" else ()), "body_s": 5.0, "head_s": 5.0}
        handler = type("Handler", (_Handler,), facts)
        ours.sendall(data[1:])
        ours.shutdown(socket.SHUT_WR)
        with contextlib.suppress(TimeoutError, ConnectionError):  # as its server has it (`Guarded.handle_error`)
            handler(theirs, "", SimpleNamespace(clients=clients))
        theirs.shutdown(socket.SHUT_WR)
        told = b"".join(iter(lambda: ours.recv(1 << 16), b""))
        spool.close()
        held = sum(path.read_bytes().count(b"\n") for path in (folder / "spool").glob("*.jsonl"))
    answers = [int(line[9:12]) for line in told.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    assert set(answers) <= STATUSES, told
    bodies = [orjson.loads(line) for line in told.splitlines() if line.startswith(b'{"')]
    taken = sum(body.get("records", 0) for body in bodies)
    # The same key again is answered again.
    assert held == taken or (held < taken and b"Idempotency-Key" in data.title()), (held, told)
    return (answers, bodies) if 200 in answers else None


def spool_http_seeds() -> Iterable[bytes]:
    lines = b'{"id": "1", "text": "a"}\n\n{"id": "2", "text": "b"}\n'
    push = b"POST /records HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nIdempotency-Key: k\r\n%s\r\n%s"
    yield b"\0" + push % (len(lines), b"", lines) + b"GET / HTTP/1.1\r\n\r\n"
    yield b"\1" + push % (len(lines), b"Authorization: Bearer %s\r\n" % TOKEN.encode(), lines)
    yield b"\0POST /close HTTP/1.1\r\n\r\n"
    yield b"\0GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n"


def run_spool_folder(data: bytes) -> object | None:
    """What is found of an earlier process is taken up as far as it was acknowledged, or the folder is refused."""
    journal, _, rest = data.partition(b"\0")
    segment, _, shed = rest.partition(b"\0")
    with empty_folder() as folder:
        (folder / "000000000001.commits").write_bytes(journal)
        (folder / "000000000001.jsonl.open").write_bytes(segment)
        (folder / "000000000002.shed.open").write_bytes(shed)
        try:
            spool = Spool(folder, limit_bytes=1 << 20)
        except StoreError:
            return None
        taken = spool.push(b"one\n", "a")
        assert (taken.records, taken.shed) == (1, 0) or "a" in str(spool._keys)
        known = dict(spool._keys)
        spool.close()
        sealed = folder / "000000000001.jsonl"
        found = sealed.read_bytes() if sealed.exists() else b""
        assert segment.startswith(found)
    assert all(type(item.records) is int and item.records >= 0 and item.shed >= 0 for item in known.values())
    return (found, sorted(known)) if found else None


def spool_folder_seeds() -> Iterable[bytes]:
    entries = ({"end": 4, "records": 1, "key": "k"}, {"end": 12, "records": 2, "key": ""})
    journal = b"".join(orjson.dumps(entry) + b"\n" for entry in entries)
    shed = orjson.dumps({"records": 3, "bytes": 9, "key": "s"}) + b"\n"
    yield journal + b"\0one\ntwo\nthr\ncut" + b"\0" + shed
    yield journal + b'{"end": 19, "rec' + b"\0one\ntwo\nthr\ncut\0"


# -- what a task says to its worker --


def run_hands(data: bytes) -> object | None:
    """Whatever a task leaves in its page, its worker reads ranges there that can be told, or nothing."""
    descriptor = InFlightPage.create()
    try:
        hands = InFlightPage(descriptor)
        size = min(len(data), 2 * SLOT_BYTES)
        os.pwrite(descriptor, data[:size], 0)
        os.pwrite(descriptor, data[: min(size, SLOT_BYTES)], SLOT_BYTES)
        found = hands.read()
        assert [repr(held) for slot in (STAGES, WRITER) if (held := hands.of(slot))] == [repr(held) for held in found]
        hands.close()
    finally:
        os.close(descriptor)
    told = pb.TaskExited()
    for held in found:
        assert abs(held.since) + abs(held.spent_s) < float("inf")
        for item in held.items:
            told.in_hand.add(stage=item.stage, range=codec.range_to(item.range))
    told.SerializeToString()
    return repr(found) if any(held.items for held in found) else None


def hands_seeds() -> Iterable[bytes]:
    for ranges in ((Range(b"f" * 16, 3, 4, 10, 20),), (Range(b"f" * 16, 0, 1), Range(b"g" * 16, 7, 9)), ()):
        descriptor = InFlightPage.create()
        hands = InFlightPage(descriptor)
        hands.take(STAGES, "keep", (*ranges, Range(b"h" * 16, 1, 1)), timed=True)
        yield os.pread(descriptor, 16 + int.from_bytes(os.pread(descriptor, 8, 8), "little"), 0)
        hands.close()
        os.close(descriptor)


def mutate_hands(data: bytes, random: Random) -> bytes:
    """Another tree behind a length that is right."""
    body = within_msgpack(data[16:], random)
    return struct.pack("<QQ", 2, len(body)) + body


def run_channel(data: bytes) -> object | None:
    """Messages are what lies between their lengths, and descriptors are not lost."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    channel = Channel(ours)
    found: list[bytes] = []
    try:
        theirs.sendall(data)
        theirs.close()
        while True:
            found += channel.receive()
    except ChannelClosed:
        pass
    finally:
        channel.close()
    whole = b"".join(struct.pack("<I", len(message)) + message for message in found)
    assert data.startswith(whole)
    return found or None


# -- what a task says to another --


def run_batch(data: bytes) -> object | None:
    """A frame holds a batch whose names and numbers are of their kinds and whose rows are sound, or none."""
    if len(data) < 2:
        return None
    cut = int.from_bytes(data[:2], "little")
    frame = Frame(FrameKind.DATA, 1, b"f" * 16, 5, 2, metadata=data[2 : 2 + cut], body=data[2 + cut :])
    try:
        batch = frame_to_batch(frame)
        again = frame_to_batch(frame, borrow=True)
    except FrameError:
        return None
    assert batch.rows.equals(again.rows) or batch.rows.num_rows
    assert batch.verdicts.schema.equals(VERDICTS)
    assert ROW in batch.rows.schema.names
    assert isinstance(batch.uri, str)
    assert type(batch.offset) is int
    assert type(batch.length) is int
    for counted in (batch.edits, batch.counters):
        assert all(type(name) is str and type(count) is int for name, count in counted.items())
    batch.rows.validate(full=True)
    batch_to_frame(batch, 1)
    return batch.uri, batch.offset, batch.length, batch.edits, batch.counters, str(batch.rows.schema), repr(batch.rows)


def _packed(batch: Batch) -> bytes:
    frame = batch_to_frame(batch, 1)
    assert frame.unwritten is not None
    body = bytearray(frame.unwritten.nbytes)
    frame.unwritten.write_into(memoryview(body))
    return len(frame.metadata).to_bytes(2, "little") + bytes(frame.metadata) + bytes(body)


def batch_seeds() -> Iterable[bytes]:
    rows = pa.record_batch({ROW: pa.array([5, 6]), "id": ["a", "b"], "text": ["one", None], "metadata": [None, "{}"]})
    yield _packed(Batch(b"f" * 16, "file:///x", 5, 2, 0, 9, rows, no_verdicts(), {"keep": 1}, {"keep/new": 2}))
    lost = Batch(b"f" * 16, "file:///x", 5, 2, -1, -1, rows, no_verdicts())
    yield _packed(lost.keep(np.array([True, False]), "keep", [None, "short"]))


def mutate_batch(data: bytes, random: Random) -> bytes:
    """Other metadata, or another number in the rows."""
    cut = 2 + int.from_bytes(data[:2], "little")
    metadata, body = data[2:cut], bytearray(data[cut:])
    if random.random() < 0.5:
        metadata = within_msgpack(metadata, random)
    elif len(body) > 16:
        at = random.randrange(len(body) - 8) & ~3
        body[at : at + 4] = struct.pack("<i", random.choice((-1, 0, 1, 2, 8, 1 << 20, (1 << 31) - 1)))
    return len(metadata).to_bytes(2, "little") + metadata + bytes(body)


# -- what comes to a door --


def run_door(data: bytes) -> object | None:
    """What is brought to a door is a link's name, a ticket and a description, or nothing."""
    found = handoff.read_brought(data)
    if found is None:
        return None
    link, ticket, description = found
    assert type(link) is str
    assert type(ticket) is bytes
    assert type(description) is dict
    return repr(found)


def run_peer_address(data: bytes) -> object | None:
    """An address that is taken is one that `join_address` writes."""
    text = data.decode("utf-8", "replace")
    try:
        host, port = member.split_address(text)
    except ValueError:
        return None
    assert 0 < port < 1 << 16
    assert member.join_address(host, port) == text
    return host, port


# -- what a worker says to its controller --

#: What follows from the process's own clock, or is new each time, is none of it: each event meets the same house.
KINDS = sorted(CASES)


def run_worker_event(data: bytes) -> object | None:
    """Whatever a worker says of its task, it is believed and borne, or its task has failed; the run goes on."""
    message = pb.TaskEvent()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    house = House(message.WhichOneof("event") or "")
    event = house.stamped("one", message)
    said = convert.task_event(event)
    if said is None:
        return None
    believed, why = house.stand.core.witness.hear("one", said)
    assert isinstance(why, str)
    assert len(why) < 1 << 17
    if believed is None:
        return None
    house.stand.tell(believed)
    house.stand.later(1.0)
    if isinstance(believed, core.TaskFailed) and not isinstance(said, core.TaskFailed):
        return None
    return repr(believed)


def worker_event_seeds() -> Iterable[bytes]:
    yield from (CASES[kind].honest.SerializeToString() for kind in KINDS if kind != "progress")


def mutate_event(data: bytes, random: Random) -> bytes:
    """The message with a number, a text or an item of it changed."""
    message = pb.TaskEvent()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return data
    _change(message, random)
    return message.SerializeToString()


ODD_NUMBERS = (-1, 0, 1, 2, 5, 64, 1 << 31, 1 << 53, 1 << 62, (1 << 63) - 1, -(1 << 63))


def _change(message: Any, random: Random) -> None:
    fields = [field for field, _ in message.ListFields()]
    if not fields:
        return
    field = random.choice(fields)
    value = getattr(message, field.name)
    many = hasattr(value, "append") or hasattr(value, "add")
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return
    if many and field.message_type is not None:
        if random.random() < 0.2:
            value.append(value[0])
        else:
            _change(random.choice(value), random)
    elif field.message_type is not None:
        _change(value, random)
    else:
        made = _other(value[0] if many else value, random)
        try:
            if many:
                value.append(made)
            else:
                setattr(message, field.name, made)
        except ValueError:
            return  # no number of this field


def _other(value: Any, random: Random) -> Any:
    if isinstance(value, (str, bytes)):
        more: Any = random.choice(("", "write", "read", "keep", "\0", "x" * 99))
        return more if isinstance(value, str) else random.choice((b"", b"\xff", value[::-1], more.encode()))
    if isinstance(value, float):
        return random.choice((0.0, -1.0, float("inf"), float("nan")))
    return random.choice((*ODD_NUMBERS, int(value) + 1, int(value) - 1))


PAGE_KEY = "k" * 43
PAGE_HOSTS = ("127.0.0.1", "localhost", "[::1]")


def run_page_request(data: bytes) -> object | None:
    """Whoever is let through names loopback, begins no request of another page, and has the key where it is needed."""
    try:
        request = parse_head(data)
        check(request, PAGE_KEY)
        length = body_length(request) if request.method == "POST" else 0
    except RequestRefused:
        return None
    headers = request.headers
    assert len(headers) <= HEADERS_MAX
    assert headers["host"].rpartition(":")[0] in PAGE_HOSTS or headers["host"] in PAGE_HOSTS
    assert headers.get("origin", f"http://{headers['host']}") == f"http://{headers['host']}"
    assert not request.private or headers["authorization"] == f"Bearer {PAGE_KEY}"
    assert "\r" not in request.path + "".join(headers.values())
    return request.method, request.path, dict(headers), length


def page_request_seeds() -> Iterable[bytes]:
    key = b"Authorization: Bearer " + PAGE_KEY.encode() + b"\r\n"
    yield b"GET / HTTP/1.1\r\nHost: localhost:7430\r\n\r\n"
    yield b"GET /api/state HTTP/1.1\r\nHost: 127.0.0.1:7430\r\nSec-Fetch-Site: same-origin\r\n" + key + b"\r\n"
    kind = b"Content-Type: application/json\r\nContent-Length: 2\r\nOrigin: http://[::1]:1\r\n"
    yield b"POST /api/ask HTTP/1.1\r\nHost: [::1]:1\r\n" + kind + key + b"\r\n"


HTTP_WORDS = (
    b"Content-Length: 1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"Origin: x\r\n",
    b"POST /records HTTP/1.1\r\n",
    b"Idempotency-Key: ",
    b"\r\n\r\n",
)
GREETING = [msgpack.packb(["a->b#1", b"ticket", {"name": "a", "generation": 1}])]
ADDRESSES = [b"10.0.0.1:7", b"[fd00::1]:65535", b"127.0.0.1:1"]
MESSAGES = [struct.pack("<I", 3) + b"one" + struct.pack("<I", 0) + struct.pack("<I", 2) + b"tw"]


def run_post_answer(data: bytes) -> object | None:
    """What a server answers to a post: success of HTTP and nothing else."""
    if not post.is_taken(data):
        return None
    assert data.startswith((b"HTTP/1.0 2", b"HTTP/1.1 2"))
    return data


TARGETS = [
    Target(
        "spool_http",
        ("headrace.worker.spool.server", "headrace.worker.spool.guard", "headrace.daemon.post"),
        run_spool_http,
        spool_http_seeds,
        words=HTTP_WORDS,
    ),
    Target(
        "page_request",
        ("headrace.page.core.request",),
        run_page_request,
        page_request_seeds,
        words=(b"\r\n", b"Host: "),
    ),
    Target(
        "spool_folder",
        ("headrace.worker.spool.spool",),
        run_spool_folder,
        spool_folder_seeds,
        words=(b'"end":', b'"records":', b'"key":"', b"}\n"),
    ),
    Target("hands", ("headrace.worker.task.batch.in_flight",), run_hands, hands_seeds, mutate=mutate_hands),
    Target("channel", ("headrace.worker.task.channel",), run_channel, lambda: MESSAGES),
    Target(
        "post_answer",
        ("headrace.daemon.post",),
        run_post_answer,
        lambda: [b"HTTP/1.1 200 OK\r\n"],
        mutate=lambda data, random: b"HTTP/1.%d %d" % (random.randrange(3), random.randrange(100, 400)) + data[12:],
    ),
    Target(
        "batch",
        ("headrace.worker.task.codec", "headrace.stages.runtime.arrow_check"),
        run_batch,
        batch_seeds,
        mutate=mutate_batch,
    ),
    Target("door", ("headrace.worker.links.handoff",), run_door, lambda: GREETING, mutate=within_msgpack),
    Target("peer_address", ("headrace.worker.membership.member",), run_peer_address, lambda: ADDRESSES),
    Target(
        "worker_event",
        ("headrace.controller.convert", "headrace.controller.core.cluster.event_checks"),
        run_worker_event,
        worker_event_seeds,
        mutate=mutate_event,
    ),
]
