"""Targets of `headrace.transport`: what peers, other processes and people send or write."""

from __future__ import annotations

import contextlib
import json
import mmap
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from headrace.daemon import control_address, log_lines
from headrace.pipeline import masking
from headrace.transport.core import credit, errors, frame, relay_table
from headrace.transport.pipe import pipe
from headrace.transport.quic import bulk, stream_frames
from headrace.transport.ring import memory as ring_memory, ring
from tests.fuzz.harness import Target
from tests.fuzz.mutations import within_json

HEAD = frame._HEADER


# -- frames --


def sealed_frame(data: bytes) -> bytes:
    """The bytes as a frame whose lengths and checksum are right, whatever else it says."""
    if len(data) < frame.HEADER_BYTES:
        return data
    fields = list(HEAD.unpack_from(data))
    fields[0], fields[1], fields[9] = frame.MAGIC, frame.FORMAT_VERSION, fields[9] % 2
    room = len(data) - frame.HEADER_BYTES
    fields[8] = min(fields[8], room)
    start = frame._body_offset(fields[8])
    if start > len(data):
        data += bytes(start - len(data))
    fields[11] = len(data) - start
    made = HEAD.pack(*fields)
    covered = start if fields[9] else len(data)
    whole = made + bytes(8) + data[frame.HEADER_BYTES :]
    checksum = frame._CHECKSUM.pack(frame._checksum(memoryview(whole), covered))
    return made + checksum + data[frame.HEADER_BYTES :]


def run_frame(data: bytes) -> object | None:
    found = None
    for candidate in (data, sealed_frame(data)):
        for trust_body in (False, True):
            with contextlib.suppress(errors.FrameError):
                decoded = frame.decode(candidate, trust_body=trust_body)
                assert len(decoded.metadata) + len(decoded.body) <= len(candidate)
                assert frame.frame_size(candidate) == len(candidate)
                again = frame.decode(frame.encode(decoded))
                assert again == decoded
                found = plain_frame(decoded)
            with contextlib.suppress(errors.FrameError):
                frame.decode(candidate, verify=False, trust_body=trust_body)
    return found


def plain_frame(decoded: frame.Frame) -> tuple[Any, ...]:
    return (*decoded[:5], bytes(decoded.metadata), bytes(decoded.body), decoded.flags)


def frames() -> list[bytes]:
    made = [
        frame.Frame(kind, 3, bytes(range(16)), 7, 5, b"\x81\xa1a\x01", b"body" * count)
        for count, kind in enumerate(frame.FrameKind)
    ]
    coverages = (frame.ChecksumCoverage.ALL, frame.ChecksumCoverage.HEAD)
    return [frame.encode(one, coverage) for one in made for coverage in coverages]


def run_control(data: bytes) -> object | None:
    found = None
    for candidate in (data, sealed_frame(data)):
        with contextlib.suppress(errors.FrameError):
            found = frame.decode_control(candidate)
            again = frame.decode_control(frame.encode_control(found))
            # A reason of others that is no UTF-8 is put right, and that may be longer than a reason may be.
            assert again == found or isinstance(found, frame.Aborted)
    return found


def controls() -> list[bytes]:
    said = [frame.Granted(9), frame.Aborted(4, "gave up"), frame.Finished(12), frame.Welcomed(4096, 1 << 20)]
    return [frame.encode_control(message) for message in said]


def run_stream(data: bytes) -> object | None:
    """The first byte says in what pieces the rest comes."""
    if not data:
        return None
    admitted: list[int] = []
    assembler = stream_frames.FrameAssembler(10_000, admitted.append)
    step, stream = data[0] % 100 + 1, data[1:]
    try:
        whole = [raw for at in range(0, len(stream), step) for raw in assembler.feed(stream[at : at + step])]
    except errors.FrameError:
        return None
    assert [raw.nbytes for raw in whole] == admitted[: len(whole)]
    assert max(admitted, default=0) <= 10_000
    joined = b"".join(bytes(raw) for raw in whole)
    assert stream.startswith(joined)
    assert assembler.is_empty == (len(joined) == len(stream))
    return [raw.nbytes for raw in whole] or None


def streams() -> list[bytes]:
    return [b"\x06" + b"".join(frames()[:count]) for count in (1, 3)]


def run_credit(data: bytes) -> object | None:
    """Two honest ends never break a rule, whatever the order of their verbs; a fraud is refused."""
    sender, receiver = credit.CreditSender(1000), credit.CreditReceiver(1000)
    flying: list[int] = []
    held: list[int] = []
    grants = frauds = 0
    for action in data:
        size = 1 + (action >> 2) * 30
        if action & 3 == 0 and sender.can_send(size):
            sender.sent(size)
            flying.append(size)
        elif action & 3 == 1 and flying:
            receiver.received(flying[0])
            held.append(flying.pop(0))
        elif action & 3 == 2 and held:
            grant = receiver.released(held.pop(size % len(held)))
            if grant:
                sender.granted(grant)
                grants += 1
        elif action & 3 == 3:
            try:
                sender.granted(sender.in_flight_bytes + size)
            except errors.CreditError:
                frauds += 1
                continue
            raise AssertionError("a grant of what was never sent went through")
    assert sender.in_flight_bytes == sum(flying) + sum(held) + receiver.withheld_bytes
    return (grants, min(frauds, 3), len(flying), len(held)) if grants else None


def run_bulk(data: bytes) -> object | None:
    """The payload of a packet that a peer has sealed: taken the short way, or left as it was."""
    if not data:
        return None  # a packet that is long enough to be opened has a payload
    receiver = SimpleNamespace(_buffer_start=10, highest_offset=10, _buffer=b"", _final_size=None, is_finished=False)
    stream = SimpleNamespace(receiver=receiver, max_stream_data_local=4096, stream_id=0)
    limit = SimpleNamespace(used=0, value=2000)
    quic: Any = SimpleNamespace(_streams={0: stream}, _local_max_data=limit, _stream_can_receive=lambda _: True)
    batch = object.__new__(bulk._Batch)
    batch._quic, batch._stream, batch._chunks = quic, None, []
    if not batch._take_payload(data):
        assert (receiver.highest_offset, limit.used, batch._chunks) == (10, 0, [])
        return None
    (chunk,) = batch._chunks
    assert data.endswith(bytes(chunk))
    assert receiver.highest_offset == 10 + len(chunk)
    assert 0 < limit.used == len(chunk) <= 2000
    return bytes(chunk)


# -- relays --


def run_relay(data: bytes) -> object | None:
    """Bytes as what happens at a relay: knocks, datagrams, paths that are made, and time that passes."""
    table = relay_table.RelayTable(paths_max=3, rate_bytes_s=1000)
    names = [b"t%d" % number for number in range(8)]
    now, passed = 0.0, 0
    for at in range(0, len(data) - 1, 2):
        verb, what = data[at], data[at + 1]
        source = ("10.0.0.1", 1000 + what % 5)
        if verb % 8 == 0:
            with contextlib.suppress(relay_table.RelayFullError):
                table.open(f"p{what % 4}", (names[what % 8], names[(what >> 3) % 8]), now)
        elif verb % 8 == 1:
            now += what
            table.expire(now)
        elif verb % 8 < 5:
            assert not table.take([(relay_table.rendezvous(names[verb >> 5]), source)], now)
        else:
            went = table.take([(data[at:], source)], now)
            assert all(target != source or len(table) for _, target in went)
            passed += len(went)
        assert len(table) <= 3
        check_relay(table)
    return (passed, len(table)) if passed else None


def check_relay(table: relay_table.RelayTable) -> None:
    """What is found by ticket or address is of a path that stands, and at the place where it is found."""
    standing = {id(side) for path in table._paths.values() for side in path.sides}
    for address, side in table._by_address.items():
        assert id(side) in standing
        assert side.address == address
    for name, side in table._by_ticket.items():
        assert id(side) in standing
        assert side.ticket == name


# -- text --


def run_log_line(data: bytes) -> object | None:
    shown = log_lines.as_text(data)
    assert all(line.isprintable() or "\t" in line for line in shown.split("\n"))
    line = log_lines.parse(data)
    if line is None:
        return None
    log_lines.shown(line)
    searches = (
        log_lines.Search(pipeline="p", task="p/t", cause="c", level="warning", stage="s", since=1.7e9),
        log_lines.Search(level="debug", since=1.0),
        log_lines.Search(stage="s"),
    )
    found = [search.finds(line) for search in searches]
    facts = {name: value for name, value in line.items() if name not in log_lines.FIXED}
    made = log_lines.make_line(line["time"], line["level"], line["process"], line["message"], facts)
    assert log_lines.parse(made) is not None
    assert len(made) <= log_lines.LINE_BYTES_MAX
    return (line["level"], found, sorted(line))


def log_line_seeds() -> list[bytes]:
    facts = {"task": "p/t", "pipeline": "p", "stages": "s+t", "cause": "c-1", "attempt": 3, "traceback": "a\nb"}
    made = log_lines.make_line(1.7e9, "warning", "worker w1", "it ended", facts)
    return [made, log_lines.make_line(1.7e9, "info", "task", "read s3://b/k?token=x", {})]


def run_masking(data: bytes) -> object | None:
    text = data.decode("utf-8", "replace")
    hidden = masking.mask(text)
    assert masking.mask(hidden) == hidden, "masking twice is masking once"
    # A secret of our own, in the midst of whatever the text is, is hidden.
    for secret in (f"s3://user:QQSECRETQQ@host/{text[:40]}", f"https://h/?token=QQSECRETQQ&{text[:40]}"):
        assert "QQSECRETQQ" not in masking.mask(secret)
    return hidden if hidden != text else None


def run_address(data: bytes) -> object | None:
    text = data.decode("utf-8", "surrogateescape")
    found: object | None = None
    with contextlib.suppress(control_address.AddressError):
        host, port = control_address.host_and_port(text)
        assert host
        assert 0 <= port <= 65535
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        assert control_address.host_and_port(shown) == (host, port)
        found = host, port
    with contextlib.suppress(control_address.AddressError), patch("socket.getaddrinfo", _loopback_alone):
        control_address.check_plain(text)
        found = text
    return found


def _loopback_alone(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
    """Names are not asked for anywhere: localhost is what it is, and nobody else is known."""
    if host == "localhost":
        return [(2, 1, 6, "", ("127.0.0.1", port))]
    raise OSError(f"{host} is not known here")


# -- memory of others --


def run_ring(data: bytes) -> object | None:
    """Whatever a sender has written into the memory that both ends map: where its head is, then records."""
    if len(data) < 8:
        return None
    found: list[Any] = []
    for memory in (data[8:], sealed_record(data[8:])):
        end = RING.written(int.from_bytes(data[:8], "little") % (2 * RING_BYTES), memory)
        try:
            for _ in range(4):
                received = end.try_receive()
                if received is None:
                    break
                found.append(plain_frame(received.frame))
                received.release()
        except errors.TransportError:
            continue
        finally:
            end.detach()
    return found or None


def sealed_record(memory: bytes) -> bytes:
    """A record as the first thing in the memory: its length, then a frame that is sealed."""
    prefix = ring_memory.RECORD_PREFIX_BYTES
    length = int.from_bytes(memory[:8], "little") % (RING_BYTES - prefix)
    sealed = sealed_frame(memory[prefix : prefix + length].ljust(min(length, 512), b"\0"))
    return len(sealed).to_bytes(8, "little") + bytes(prefix - 8) + sealed + memory[prefix + len(sealed) :]


RING_BYTES = 4096


class Ring:
    """A ring whose memory is written over for each input."""

    def __init__(self) -> None:
        self._handles = ring_memory.create_ring("fuzzed", RING_BYTES, 2048)
        self._memory = mmap.mmap(self._handles.memory_fd, ring_memory.HEADER_PAGE_BYTES + RING_BYTES)
        self._fresh = self._memory[: ring_memory.HEADER_PAGE_BYTES]

    def written(self, head: int, memory: bytes) -> ring.RingReceiver:
        page = ring_memory.HEADER_PAGE_BYTES
        self._memory[:page] = self._fresh
        self._memory[page:] = memory[:RING_BYTES].ljust(RING_BYTES, b"\0")
        at = ring_memory.WORD_HEAD * 8
        self._memory[at : at + 8] = head.to_bytes(8, "little")
        return ring.RingReceiver(self._handles)


RING = Ring()


def rings() -> list[bytes]:
    found = []
    for encoded in frames()[:4]:
        record = len(encoded).to_bytes(8, "little") + bytes(ring_memory.RECORD_PREFIX_BYTES - 8) + encoded
        record += bytes(-len(record) % ring_memory.RECORD_ALIGNMENT_BYTES)
        found.append(len(record).to_bytes(8, "little") + record)
    return found


def run_handles(data: bytes) -> object | None:
    """What the door of a worker says about a link's memory."""
    try:
        description = json.loads(data)
    except (ValueError, RecursionError):
        return None
    found = None
    for kind in (ring_memory.RingHandles, pipe.PipeHandles):
        if isinstance(description, dict):
            with contextlib.suppress(errors.LinkRefusedError):
                found = kind.from_description(description)
                assert kind.from_description(found.describe()) == found
    return found


def handles() -> list[bytes]:
    ring_said = ring_memory.RingHandles("a->b", 1, 4096, 2048, 1024, 5, 6, 7).describe()
    return [json.dumps(ring_said).encode(), json.dumps({**ring_said, "descriptor": 9, "limit_bytes": 64}).encode()]


# -- the list --


def relays() -> list[bytes]:
    """A path of two ends who knock, and a datagram from each."""
    met = bytes((0, 0b010_001, 1 << 5 | 2, 0, 2 << 5 | 2, 1, 5, 0, 5, 1))
    return [met, met + bytes((1, 70, 0, 0b010_001, 5, 0))]


def maskings() -> list[bytes]:
    return [b"s3://user:key@host/bucket", b"read https://h/p?X-Amz-Signature=abc&x=1, and failed"]


def addresses() -> list[bytes]:
    return [b"10.0.0.1:7420", b"[::1]:7420", b"unix:/run/headrace/controller.sock", b"insecure-tcp:localhost:7420"]


MASKED_WORDS = (b"://", b"@", b"?", b"&", b"token=", b"access_key=", b"secret", b"%40", b"\\u0040")
ADDRESS_WORDS = (b"unix:/", b"insecure-tcp:", b"localhost", b"[", b"]:", b"::1", b":7420", b"65535")

TARGETS = [
    Target("quic_bulk", ("headrace.transport.quic.bulk",), run_bulk, lambda: [b"\x0e\x00\x0a\x03abc"], bytes_max=64),
    Target("frame", ("headrace.transport.core.frame",), run_frame, frames),
    Target("control", ("headrace.transport.core.frame",), run_control, controls),
    Target("stream", ("headrace.transport.quic.stream_frames",), run_stream, streams, bytes_max=2048),
    Target(
        "credit", ("headrace.transport.core.credit",), run_credit, lambda: [b"\x00\x01\x02\x03", b"\x20\x21\x22" * 9]
    ),
    Target("relay_table", ("headrace.transport.core.relay_table",), run_relay, relays),
    Target("log_lines", ("headrace.daemon.log_lines",), run_log_line, log_line_seeds, mutate=within_json),
    Target("masking", ("headrace.pipeline.masking",), run_masking, maskings, words=MASKED_WORDS),
    Target("control_address", ("headrace.daemon.control_address",), run_address, addresses, words=ADDRESS_WORDS),
    Target("ring", ("headrace.transport.ring.ring", "headrace.transport.ring.memory"), run_ring, rings, bytes_max=1024),
    Target("link_handles", ("headrace.transport.ring.memory", "headrace.transport.pipe.pipe"), run_handles, handles),
]
