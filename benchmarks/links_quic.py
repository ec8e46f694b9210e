"""The QUIC part of `links.py`: three ways to move random bytes over one connection and one stream.

- core: two of aioquic's connections in one process, datagrams handed over in lists, no socket: what the protocol
  costs on one core of the machine.
- adapter: aioquic's asyncio client and server in two processes over loopback UDP; the receiver answers nothing.
- quic: `QuicEndpoint` in two processes over loopback UDP: frames of 1 MiB, checksums, credit, mutual TLS.

All have the same datagram size, the same windows, the same congestion control and the same cipher, and none
compresses. The clock of a receiver starts with its first bytes after the warm-up and stops with its last.
"""

import asyncio
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aioquic.asyncio import connect, serve
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import HandshakeCompleted, StreamDataReceived

from headrace.cluster import Credentials, Role, create_authority, create_node
from headrace.transport import wait_any
from headrace.transport.core import Frame, FrameKind
from headrace.transport.quic import QuicEndpoint, QuicSettings

WINDOW_BYTES = 8 << 20
BATCH_BYTES = 1 << 20
WARM_UP_BYTES = 4 << 20
CONGESTION = "cubic"
PATIENCE_S = 60.0


def settings(datagram_bytes: int) -> QuicSettings:
    return QuicSettings(datagram_bytes=datagram_bytes, stream_window_bytes=WINDOW_BYTES, congestion=CONGESTION)


def configuration(datagram_bytes: int, *, is_client: bool, credentials: Credentials) -> QuicConfiguration:
    made = QuicConfiguration(
        alpn_protocols=["benchmark"],
        congestion_control_algorithm=CONGESTION,
        is_client=is_client,
        max_data=WINDOW_BYTES,
        max_datagram_size=datagram_bytes,
        max_stream_data=WINDOW_BYTES,
        verify_mode=ssl.CERT_NONE,
    )
    made.certificate, made.private_key = credentials.certificate(), credentials.key()
    return made


def core_mb_s(datagram_bytes: int, credentials: Credentials, total_bytes: int) -> float:
    client = QuicConnection(configuration=configuration(datagram_bytes, is_client=True, credentials=credentials))
    client.connect(("far", 1), now=time.monotonic())
    server = QuicConnection(
        configuration=configuration(datagram_bytes, is_client=False, credentials=credentials),
        original_destination_connection_id=client.original_destination_connection_id,
    )
    batch = os.urandom(BATCH_BYTES)
    stream, sent, received, start = None, 0, 0, 0.0
    while received < WARM_UP_BYTES + total_bytes:
        now = time.monotonic()
        for end, peer, address in ((client, server, "near"), (server, client, "far")):
            for data, _ in end.datagrams_to_send(now=now):
                peer.receive_datagram(data, (address, 1), now=now)
            timer = end.get_timer()
            if timer is not None and timer <= now:
                end.handle_timer(now=now)
        while (event := client.next_event()) is not None:
            if isinstance(event, HandshakeCompleted):
                stream = client.get_next_available_stream_id()
        while (event := server.next_event()) is not None:
            if isinstance(event, StreamDataReceived):
                received += len(event.data)
                if not start and received >= WARM_UP_BYTES:
                    start, at_start = now, received
        if stream is not None and sent - received < BATCH_BYTES:
            client.send_stream_data(stream, batch)
            sent += BATCH_BYTES
    return (received - at_start) / 1e6 / (time.monotonic() - start)


async def adapter_receive(job: dict[str, Any]) -> float:
    done: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    class Receiver(QuicConnectionProtocol):
        received = at_start = 0
        start = 0.0

        def quic_event_received(self, event: Any) -> None:
            if isinstance(event, StreamDataReceived):
                self.received += len(event.data)
                if not self.start and self.received >= WARM_UP_BYTES:
                    self.start, self.at_start = time.monotonic(), self.received
                if self.received >= WARM_UP_BYTES + job["total_bytes"] and not done.done():
                    done.set_result((self.received - self.at_start) / 1e6 / (time.monotonic() - self.start))

    made = configuration(job["datagram_bytes"], is_client=False, credentials=credentials_of(job))
    server = await serve("127.0.0.1", 0, configuration=made, create_protocol=Receiver)
    print(server._transport.get_extra_info("sockname")[1], flush=True)
    return await asyncio.wait_for(done, PATIENCE_S)


async def adapter_send(job: dict[str, Any]) -> float:
    made = configuration(job["datagram_bytes"], is_client=True, credentials=credentials_of(job))
    batch = os.urandom(BATCH_BYTES)
    async with connect("127.0.0.1", job["port"], configuration=made) as connection:
        _, writer = await connection.create_stream()
        writer.write(batch)
        sender = connection._quic._streams[0].sender
        # The writer has no backpressure of its own: keep as much queued as the core's measurement does.
        while True:
            if sender._buffer_stop - sender._buffer_start < BATCH_BYTES:
                writer.write(batch)
            await asyncio.sleep(0)
    return 0.0


def quic_receive(job: dict[str, Any]) -> float:
    with QuicEndpoint(("127.0.0.1", 0), credentials_of(job), settings(job["datagram_bytes"])) as endpoint:
        receiver = endpoint.expect_link("benchmark", lambda ticket, peer: None, WINDOW_BYTES)
        print(endpoint.address[1], flush=True)
        received, start, at_start = 0, 0.0, 0
        while received < WARM_UP_BYTES + job["total_bytes"]:
            frame = receiver.try_receive()
            if frame is None:
                assert wait_any([receiver], PATIENCE_S), "the sender stalled"
                continue
            received += len(frame.frame.body)
            frame.release()
            if not start and received >= WARM_UP_BYTES:
                start, at_start = time.monotonic(), received
        return (received - at_start) / 1e6 / (time.monotonic() - start)


def quic_send(job: dict[str, Any]) -> float:
    with QuicEndpoint(("127.0.0.1", 0), credentials_of(job), settings(job["datagram_bytes"])) as endpoint:
        sender = endpoint.open_link("benchmark", ("127.0.0.1", job["port"]))
        frame = Frame(FrameKind.DATA, 1, bytes(16), 0, 1, b"", os.urandom(BATCH_BYTES))
        while True:
            while not sender.try_send(frame):
                assert wait_any([sender], PATIENCE_S), "the receiver stalled"


def credentials_of(job: dict[str, Any]) -> Credentials:
    folder = Path(job["folder"])
    return Credentials(*((folder / name).read_bytes() for name in ("certificate", "key", "authority")))


def pair_mb_s(way: str, datagram_bytes: int, folder: str, total_bytes: int) -> float:
    """Run receiver and sender in processes of their own and return what the receiver measured."""
    job = {"datagram_bytes": datagram_bytes, "folder": folder, "total_bytes": total_bytes}
    receiver = start(f"{way}_receive", job)
    assert receiver.stdout is not None
    sender = start(f"{way}_send", job | {"port": int(receiver.stdout.readline())})
    try:
        return float(receiver.communicate(timeout=PATIENCE_S)[0])
    finally:
        for process in (sender, receiver):
            process.kill()
            process.wait()


def start(role: str, job: dict[str, Any]) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, role, json.dumps(job)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=None if "receive" in role else subprocess.DEVNULL, text=True
    )


def measure_quic(datagram_bytes: int, adapter_bytes: int, bytes_: int) -> dict[str, float]:
    """Return MB/s of the three ways, and the ratios of ours to the two others."""
    now = datetime.now(UTC)
    node = create_node(create_authority("benchmark", now), Role.WORKER, "node", now)
    with tempfile.TemporaryDirectory() as folder:
        for name, pem in (
            ("certificate", node.certificate_pem),
            ("key", node.key_pem),
            ("authority", node.authority_pem),
        ):
            (Path(folder) / name).write_bytes(pem)
        adapter = pair_mb_s("adapter", datagram_bytes, folder, adapter_bytes)
        quic = pair_mb_s("quic", datagram_bytes, folder, bytes_)
        core = core_mb_s(datagram_bytes, node, bytes_)
    return {
        "mb_s": round(quic, 1),
        "adapter_mb_s": round(adapter, 1),
        "core_mb_s": round(core, 1),
        "ratio": round(quic / adapter, 2),
        "core_ratio": round(quic / core, 2),
    }


def main() -> None:
    role, job = sys.argv[1], json.loads(sys.argv[2])
    roles = {"adapter_receive": adapter_receive, "adapter_send": adapter_send}
    if role in roles:
        print(asyncio.run(roles[role](job)))
    else:
        print({"quic_receive": quic_receive, "quic_send": quic_send}[role](job))


if __name__ == "__main__":
    main()
