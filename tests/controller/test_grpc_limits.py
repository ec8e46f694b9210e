"""Each limit of a controller's gRPC server under attack: real sockets, TLS and frames of HTTP/2, on loopback."""

from __future__ import annotations

import contextlib
import json
import resource
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.client.new_cluster import make_cluster
from headrace.cluster.certificates import Credentials, Role, create_node, role_host, write_credentials
from headrace.controller.membership.cluster_files import ClusterFiles
from headrace.controller.server import CONNECTIONS_MAX, usual_limits
from headrace.protos import control_pb2 as pb, control_pb2_grpc as rpc

PATIENCE_S = 120.0
LIMITS = {
    "connections_max": 12, "handshake_s": 2.0, "idle_s": 1.0, "streams_max": 8, "message_bytes_max": 4096,
    "calls_a_member_max": 20, "sessions_a_member_max": 2, "requests_a_member_max": 4, "request_s": 3.0,
    "calls_max": 64,
}  # fmt: skip
#: The real server, guard and service, with limits that a test can wait for.
SERVE = """
import asyncio, json, sys
from pathlib import Path
from headrace.controller.membership.cluster_files import ClusterFiles
from headrace.controller.core.cluster.controller import Controller
from headrace.controller.server import GrpcLimits
from headrace.controller.membership.guard import server_credentials
from headrace.controller.server import make_server
from headrace.controller.servicer import Servicer
from headrace.controller.shell import Shell
from headrace.protos import control_pb2_grpc as rpc

async def main():
    files, core = ClusterFiles.read(Path(sys.argv[1])), Controller({})
    server = make_server(GrpcLimits(**json.loads(sys.argv[2])), files, core)
    rpc.add_ControlServicer_to_server(Servicer(Shell(core, files.key, cluster=files)), server)
    port = server.add_secure_port("127.0.0.1:0", server_credentials(files.controller))
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()

asyncio.run(main())
"""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 1, 3, 4, 6, 7
END_HEADERS, REFUSED_STREAM, ENHANCE_YOUR_CALM = 4, 7, 11


@dataclass
class Served:
    port: int
    files: ClusterFiles
    folder: Path

    def operator(self, name: str = "operator", role: Role = Role.OPERATOR) -> Credentials:
        return create_node(self.files.authority, role, name, datetime.now(UTC))

    @contextlib.contextmanager
    def stub(self, own: Credentials) -> Iterator[Any]:
        with self.channel(own) as channel:
            yield rpc.ControlStub(channel)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def channel(self, own: Credentials) -> Iterator[Any]:
        tls = grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem)
        options = [("grpc.ssl_target_name_override", role_host(Role.CONTROLLER)), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(f"127.0.0.1:{self.port}", tls, options=options) as channel:
            yield channel

    def plain(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)

    def tls(self) -> ssl.SSLSocket:
        """A connection of an operator's that speaks TLS, and HTTP/2 if somebody speaks it."""
        write_credentials(self.folder, "own", self.operator())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(self.folder / "own.pem", self.folder / "own.key")
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(self.plain())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("limits")
    files = make_cluster(folder / "cluster", "test", ["127.0.0.1:7420"])
    command = [sys.executable, "-P", "-c", SERVE, str(files.folder), json.dumps(LIMITS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Served(int(process.stdout.readline()), files, folder)
        finally:
            process.kill()


def frame(kind: int, data: bytes, stream: int = 0, flags: int = 0) -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + data


def frames(connection: ssl.SSLSocket) -> Iterator[tuple[int, int, bytes]]:
    """The frames that come, as kind, stream and data, to the connection's end."""
    held = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := connection.recv(1 << 16):
            held += data
            while len(held) >= 9 and len(held) >= (end := 9 + int.from_bytes(held[:3])):
                yield held[3], int.from_bytes(held[5:9]), held[9:end]
                held = held[end:]


def call_of(method: str) -> bytes:
    """The headers of a call, as HTTP/2 has them."""
    words = [
        (b":method", b"POST"), (b":scheme", b"https"), (b":path", b"/headrace.control.v1.Control/" + method.encode()),
        (b":authority", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc"),
    ]  # fmt: skip
    return b"".join(b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value for name, value in words)


def code(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4])


def ended_within(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except (ConnectionError, ssl.SSLError):
        return True
    return True


def test_half_open_connections_have_a_deadline_and_a_limit(served: Served) -> None:
    with served.stub(served.operator()) as stub, contextlib.ExitStack() as held:
        standing = stub.Watch(pb.WatchRequest(interval_s=0.1), timeout=PATIENCE_S)
        next(standing)
        silent = [held.enter_context(served.plain()) for _ in range(int(LIMITS["connections_max"]) - 1)]
        one_more = held.enter_context(served.plain())
        assert one_more in select.select([one_more, *silent], [], [], PATIENCE_S)[0], "there is no room"
        assert ended_within(one_more, PATIENCE_S)
        next(standing)
        assert all(ended_within(item, PATIENCE_S) for item in silent)
        with served.stub(served.operator()) as another:
            assert another.Status(pb.StatusRequest(), timeout=PATIENCE_S).version
        next(standing)


def test_who_is_through_with_tls_and_says_nothing_is_sent_away(served: Served) -> None:
    with served.tls() as guest:
        assert ended_within(guest, PATIENCE_S / 2)


def test_a_connection_without_a_call_is_ended(served: Served) -> None:
    with served.tls() as guest:
        guest.sendall(PREFACE + frame(SETTINGS, b""))
        kinds = [kind for kind, _, _ in frames(guest)]
        assert GOAWAY in kinds


def test_who_pings_too_often_is_sent_away_with_the_reason(served: Served) -> None:
    with served.tls() as guest:
        guest.sendall(PREFACE + frame(SETTINGS, b"") + frame(PING, bytes(8)) * 20)
        codes = [code(data, 4) for kind, _, data in frames(guest) if kind == GOAWAY]
        assert ENHANCE_YOUR_CALM in codes


def test_streams_beyond_the_limit_are_refused_also_of_who_does_not_count(served: Served) -> None:
    block = call_of("Watch")
    with served.tls() as guest:
        count = 3 * int(LIMITS["streams_max"])
        calls = b"".join(frame(HEADERS, block, 2 * number + 1, END_HEADERS) for number in range(count))
        guest.settimeout(PATIENCE_S)
        guest.sendall(PREFACE + frame(SETTINGS, b"") + calls)
        refused = set()
        for kind, stream, data in frames(guest):
            if kind == RST_STREAM and code(data, 0) in (REFUSED_STREAM, ENHANCE_YOUR_CALM):
                refused.add(stream)
            if kind == GOAWAY or len(refused) >= count - int(LIMITS["streams_max"]):
                break
        assert len(refused) >= count - int(LIMITS["streams_max"])


@pytest.mark.parametrize(
    ("request_of", "metadata"),
    [
        (pb.ApplyRequest(pipeline_json="x" * 8192), ()),
        (pb.ApplyRequest(), [("large", "x" * (40 << 10))]),
    ],
    ids=["message", "headers"],
)
def test_what_is_too_large_is_refused(served: Served, request_of: pb.ApplyRequest, metadata: Any) -> None:
    with served.stub(served.operator()) as stub:
        with pytest.raises(grpc.RpcError) as refused:
            stub.Apply(request_of, metadata=metadata, timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_member_has_so_many_calls_open_and_another_is_not_hindered(served: Served) -> None:
    """Over as many connections as it takes: the limit is of who shows a certificate."""
    monkey = served.operator("monkey")
    with contextlib.ExitStack() as held:
        stubs = [held.enter_context(served.stub(monkey)) for _ in range(4)]
        calls = [
            stub.Watch(pb.WatchRequest(interval_s=PATIENCE_S), timeout=PATIENCE_S) for stub in stubs for _ in range(6)
        ]
        codes = []
        for call in calls:
            try:
                next(call)
            except grpc.RpcError as error:
                codes.append((error.code(), "operator/monkey has 20 calls open" in str(error.details())))
        assert codes == [(grpc.StatusCode.RESOURCE_EXHAUSTED, True)] * (24 - int(LIMITS["calls_a_member_max"]))
        with served.stub(served.operator("anna")) as stub:
            assert stub.Status(pb.StatusRequest(), timeout=PATIENCE_S).version
        for call in calls:
            call.cancel()
        wait_for(lambda: answered(stubs[0]), "calls that have ended count no more")


@pytest.mark.parametrize("method", ["Apply", pytest.param("Watch", marks=pytest.mark.slow)])
def test_calls_without_a_request_are_counted_and_leave_room_for_others(served: Served, method: str) -> None:
    """As many as the server takes of all members: gRPC would wait for their requests first, and judge nobody."""
    each, count = int(LIMITS["streams_max"]), int(LIMITS["calls_max"])
    calls = b"".join(frame(HEADERS, call_of(method), 2 * number + 1, END_HEADERS) for number in range(each))
    with contextlib.ExitStack() as held:
        guests = [held.enter_context(served.tls()) for _ in range(count // each)]
        for guest in guests:
            guest.settimeout(PATIENCE_S)
            guest.sendall(PREFACE + frame(SETTINGS, b"") + calls)
        ends = [data for guest in guests for data in islice(heads(guest), each)]
        with served.stub(served.operator("anna")) as stub:
            assert answered(stub)
    assert len(ends) == count, "calls without a request stay"
    assert sum(b"20 calls open" in data for data in ends) == count - LIMITS["calls_a_member_max"]


def heads(guest: ssl.SSLSocket) -> Iterator[bytes]:
    """Of each call its end."""
    return (data for kind, _, data in frames(guest) if kind == HEADERS)


def test_a_request_that_does_not_come_ends_its_call(served: Served) -> None:
    own, never = served.operator(), threading.Event()
    with served.channel(own) as channel:
        apply = channel.stream_unary("/headrace.control.v1.Control/Apply")
        with pytest.raises(grpc.RpcError) as refused:
            apply(iter(never.wait, None), timeout=PATIENCE_S)
        never.set()
    assert "no whole request came within 3 s" in str(refused.value.details())


def test_a_worker_has_so_many_sessions(served: Served) -> None:
    with served.stub(served.operator("one", Role.WORKER)) as stub:
        never = threading.Event()
        calls = [stub.Attend(iter(never.wait, None), timeout=PATIENCE_S) for _ in range(3)]
        said = []
        for call in calls:
            try:
                next(call)
            except grpc.RpcError as error:
                said.append(str(error.details()))
            except StopIteration:
                pass
        never.set()
    assert ["worker/one has 2 sessions open" in words for words in said].count(True) == 1


def test_a_viewer_looks_and_a_user_changes_what_is_his(served: Served) -> None:
    with served.stub(served.operator("eve", Role.VIEWER)) as stub:
        assert answered(stub)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Stop(pb.StopRequest(pipeline="plain"), timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "Stop: " in str(refused.value.details())
    with served.stub(served.operator("bob", Role.USER)) as stub:
        drained = stub.Steer(pb.SteerRequest(worker="one"), timeout=PATIENCE_S)
        assert drained.reason == "user bob may not drain workers: an operator may"
        stopped = stub.Stop(pb.StopRequest(pipeline="plain"), timeout=PATIENCE_S)
        assert stopped.reason == "no pipeline 'plain'; there are: none"
        with pytest.raises(grpc.RpcError):
            stub.Queue(pb.QueueRequest(queue="a", weight=1), timeout=PATIENCE_S)
    with served.stub(served.operator()) as stub:
        assert stub.Queue(pb.QueueRequest(queue="a", weight=1), timeout=PATIENCE_S).accepted


def answered(stub: Any) -> bool:
    try:
        return bool(stub.Status(pb.StatusRequest(), timeout=PATIENCE_S).version)
    except grpc.RpcError:
        return False


def wait_for(what: Callable[[], bool], why: str) -> None:
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not what():
        assert time.monotonic() < deadline, why
        pause.wait(0.05)


def test_the_usual_limits_leave_descriptors_for_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert usual_limits().connections_max == 512
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert usual_limits().connections_max == CONNECTIONS_MAX
