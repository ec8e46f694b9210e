"""Gates let through what the impairments allows, know whose bytes they carry, and are gone with their run."""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headrace.chaos.gates.impairments import Affected, Impairment, Impairments, NetworkFault, Way
from headrace.chaos.gates.network import CLIENTS_MAX, NetworkGates
from headrace.chaos.gates.s3 import S3Fault, S3Proxy, Trouble
from headrace.chaos.gates.sockets import owner_of, users_of
from headrace.daemon.private_folder import short_path
from headrace.transport.core.errors import LinkRefusedError
from headrace.worker.links.gate import HOST, VARIABLE, found_at, gate_port
from headrace.worker.membership.member import split_address
from tests.kits.host.rights import need_other_users, open_way

MARK = "HEADRACE_TEST_OWNER"
PATIENCE_S = 120.0
NOBODY = frozenset({""})


def passed(impairments: Impairments, count: int, way: Way = Way.LINK, ends: frozenset[str] = NOBODY) -> list[bytes]:
    return [data for _ in range(count) for _, _, data in impairments.passed(b"abcd", way, ends)]


def test_fair_weather_lets_everything_through_at_once() -> None:
    assert Impairments(1).passed(b"abcd", Way.LINK, NOBODY) == [(0.0, False, b"abcd")]


def test_a_share_of_datagrams_is_lost_doubled_or_spoilt_by_one_bit() -> None:
    lossy, doubling, spoiling = Impairments(1), Impairments(1), Impairments(1)
    lossy.begin(Impairment(NetworkFault.LOSS, 0.25))
    doubling.begin(Impairment(NetworkFault.DUPLICATE, 0.25))
    affected = spoiling.begin(Impairment(NetworkFault.CORRUPT, 0.25))
    assert 700 < len(passed(lossy, 1000)) < 800
    assert 1200 < len(passed(doubling, 1000)) < 1300
    spoilt = [data for data in passed(spoiling, 1000) if data != b"abcd"]
    assert 200 < len(spoilt) < 300
    flips = [int.from_bytes(data) ^ int.from_bytes(b"abcd") for data in spoilt]
    assert all(flip.bit_count() == 1 for flip in flips)
    assert affected == {Affected.INSIDE: len(spoilt)}


def test_one_seed_is_one_weather() -> None:
    def drawn(seed: int) -> list[tuple[float, bool, bytes]]:
        impairments = Impairments(seed)
        for impairment in (
            Impairment(NetworkFault.LOSS, 0.1),
            Impairment(NetworkFault.REORDER, 0.3),
            Impairment(NetworkFault.CORRUPT, 0.2),
            Impairment(NetworkFault.DELAY, 1, 0.1),
        ):
            impairments.begin(impairment)
        return [item for _ in range(200) for item in impairments.passed(b"abcd", Way.LINK, NOBODY)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert all(delay_s >= 0.1 for delay_s, _, _ in drawn(3))


def test_a_storm_meets_its_way_and_its_end_and_no_other() -> None:
    impairments = Impairments(1)
    impairment = Impairment(NetworkFault.PARTITION, ends=("w1",))
    affected = impairments.begin(impairment)
    impairments.begin(Impairment(NetworkFault.LOSS, way=Way.CONTROL))
    assert passed(impairments, 3, ends=frozenset({"w0", "w2"})) == [b"abcd"] * 3
    assert passed(impairments, 3, ends=frozenset({"w0", "w1"})) == []
    assert passed(impairments, 3, ends=frozenset({"w1"})) == [b"abcd"] * 3, "what stays inside a host is not cut off"
    assert passed(impairments, 3, Way.CONTROL, frozenset({"w0", "c0"})) == []
    assert impairments.is_cut(Way.CONTROL, frozenset({"w1", "c0"}))
    impairments.end(affected)
    assert not impairments.is_cut(Way.CONTROL, frozenset({"w1", "c0"}))


@contextmanager
def echoing() -> Iterator[int]:
    """A server that sends back what it gets, and its port."""
    with socket.create_server((HOST, 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    guest, _ = listening.accept()
                    threading.Thread(target=echo, args=(guest,), daemon=True).start()

        def echo(guest: socket.socket) -> None:
            with guest, suppress(OSError):
                while data := guest.recv(4096):
                    guest.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def answered(guest: socket.socket, data: bytes, within_s: float) -> bool:
    """Whether the echo comes back in time."""
    guest.settimeout(within_s)
    try:
        if data:
            guest.sendall(data)
        return bool(guest.recv(4096))
    except TimeoutError:
        return False


def test_a_cut_control_session_holds_its_bytes_and_goes_on_afterwards() -> None:
    with echoing() as port, NetworkGates(1, MARK) as gates:
        host, _, front = gates.control("c0", port).rpartition(":")
        with socket.create_connection((host, int(front))) as guest:
            assert answered(guest, b"one", PATIENCE_S)
            cut = Impairment(NetworkFault.PARTITION, ends=("c0",))
            affected = gates.begin(cut)
            guest.sendall(b"two")
            deadline = time.monotonic() + PATIENCE_S
            while not affected and time.monotonic() < deadline:
                assert not answered(guest, b"", 0.05)
            assert not answered(guest, b"", 0.3)
            assert affected == {Affected.CONTROL: 1}
            gates.end(affected)
            assert answered(guest, b"", PATIENCE_S)


def test_a_delayed_session_keeps_its_order_also_when_the_delay_ends() -> None:
    with echoing() as port, NetworkGates(1, MARK) as gates:
        host, _, front = gates.control("c0", port).rpartition(":")
        with socket.create_connection((host, int(front))) as guest:
            slow = Impairment(NetworkFault.DELAY, delay_s=0.1)
            late = gates.begin(slow)
            guest.sendall(b"first ")
            gates.end(late)
            guest.sendall(b"second")
            guest.settimeout(PATIENCE_S)
            said = b""
            while len(said) < len(b"first second"):
                said += guest.recv(4096)
            assert said == b"first second"


def test_a_task_asks_for_a_gate_and_clients_find_their_way_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with NetworkGates(1, MARK) as gates, udp() as task, udp() as one, udp() as two:
        monkeypatch.setenv(VARIABLE, gates.registry)
        (gate,) = found_at(task.getsockname()[1], ["10.0.0.1"])
        host, _, port = gate.rpartition(":")
        assert found_at(task.getsockname()[1], ["10.0.0.1"]) == [gate], "asked again, it is the same gate"
        for client, word in ((one, b"one"), (two, b"two")):
            client.sendto(word, (host, int(port)))
            data, way_back = heard(task, client, word, (host, int(port)))
            task.sendto(b"to " + data, way_back)
        assert one.recv(64) == b"to one"
        assert two.recv(64) == b"to two"


#: As another user: what comes back of a word that is said to each place, as TCP, UDP or by a UNIX socket.
STRANGER = """
import json, os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
told = {}
for kind, where in json.loads(sys.argv[1]):
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM) as mine:
            mine.connect(where if kind == "unix" else tuple(where))
            for _ in range(5 if kind == "udp" else 1):  # the first finds no way yet, where it may pass
                mine.sendall(b"9\\n" if kind == "unix" else b"a stranger's")
                mine.settimeout(0.05 if kind == "udp" else 60)
                try:
                    told[kind] = mine.recv(64).decode()
                except TimeoutError:
                    told[kind] = ""
    except ConnectionError:
        told[kind] = ""
    except OSError as error:
        told[kind] = error.__class__.__name__
print(json.dumps(told))
"""


def stranger(*places: tuple[str, object]) -> dict[str, str]:
    """What another user hears at these places."""
    command = [sys.executable, "-I", "-S", "-c", STRANGER, json.dumps(places)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    answers: dict[str, str] = json.loads(done.stdout)
    return answers


def test_another_user_passes_no_gate_and_is_given_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    need_other_users()
    open_way(tmp_path)
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(tmp_path / "r"))
    with echoing() as port, NetworkGates(1, MARK) as gates, udp() as task, udp() as own:
        door = split_address(gates.control("c0", port))
        front = (HOST, gate_port(str(task.getsockname()[1]), gates.registry))
        told = stranger(("tcp", door), ("udp", front), ("unix", gates.registry))
        assert told == {"tcp": "", "udp": "", "unix": "PermissionError"}
        # The folder is open to all by mistake: the kernel says whose the socket at the other end is.
        Path(gates.registry).parent.chmod(0o711)
        Path(gates.registry).parent.parent.chmod(0o711)
        Path(gates.registry).chmod(0o777)
        assert stranger(("unix", gates.registry)) == {"unix": ""}
        task.settimeout(0)
        with pytest.raises(BlockingIOError):
            task.recv(64)
        assert heard(task, own, b"own", front)[0] == b"own"
        with socket.create_connection(door) as guest:
            assert answered(guest, b"own", PATIENCE_S)


def test_a_gate_before_a_store_answers_no_other_user() -> None:
    need_other_users()
    with upstream() as uri, S3Proxy(uri) as proxy:
        assert stranger(("tcp", split_address(proxy.endpoint.removeprefix("http://")))) == {"tcp": ""}
        assert asked(proxy) == 200
        assert list(proxy.seen) == ["GET /bucket/key"]


def test_a_socket_of_another_address_with_the_same_port_vouches_for_nobody() -> None:
    with socket.create_server((HOST, 0)) as mine:
        port = mine.getsockname()[1]
        assert users_of("tcp", (HOST, port)) == {os.geteuid()}
        assert users_of("tcp", ("127.0.0.2", port)) == set()
        assert users_of("tcp", (HOST, port), (HOST, 9)) == set()


def test_clients_of_a_gate_are_limited_and_the_oldest_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.chaos.gates.network.CLIENTS_MAX", 2)
    assert CLIENTS_MAX > 2
    with NetworkGates(1, MARK) as gates, udp() as task, udp() as one, udp() as two, udp() as three:
        front = (HOST, gate_port(str(task.getsockname()[1]), gates.registry))
        ways = [heard(task, client, word, front)[1] for client, word in ((one, b"1"), (two, b"2"), (three, b"3"))]
        assert heard(task, one, b"again", front)[1] not in ways


def heard(
    task: socket.socket, client: socket.socket, word: bytes, gate: tuple[str, int]
) -> tuple[bytes, tuple[str, int]]:
    """What reaches the task. A datagram that comes before its way is made may be lost, as anywhere."""
    deadline = time.monotonic() + PATIENCE_S
    task.settimeout(0.2)
    while True:
        try:
            data, address = task.recvfrom(64)
            if data == word:
                return data, address
        except TimeoutError:
            assert time.monotonic() < deadline
            client.sendto(word, gate)


def test_without_a_named_gate_there_is_none_and_a_silent_one_errs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert found_at(7, ["10.0.0.1", "fd00::1"]) == ["10.0.0.1:7", "[fd00::1]:7"]
    monkeypatch.setattr("headrace.worker.links.gate.ANSWER_S", 0.02)
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(short_path(tmp_path / "gates.sock"))
        silent.listen()
        monkeypatch.setenv(VARIABLE, str(tmp_path / "gates.sock"))
        with pytest.raises(LinkRefusedError, match="did not answer"):
            found_at(7, ["10.0.0.1"])
        tmp_path.chmod(0o755)
        with pytest.raises(LinkRefusedError, match="others may enter it"):
            found_at(7, ["10.0.0.1"])


@contextmanager
def udp() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind((HOST, 0))
        made.settimeout(PATIENCE_S)
        yield made


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_socket_belongs_to_the_process_that_has_it_open(protocol: str) -> None:
    kind = "SOCK_STREAM" if protocol == "tcp" else "SOCK_DGRAM"
    code = (
        f"import socket, sys; s = socket.socket(socket.AF_INET, socket.{kind}); s.bind(('127.0.0.1', 0)); "
        f"{'s.listen();' if protocol == 'tcp' else ''} print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, MARK: "w7"},
        text=True,
    )
    with process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert owner_of(protocol, port, MARK) == "w7"
        assert owner_of(protocol, port, "NO_SUCH_MARK") == ""
        process.kill()


class _Store(BaseHTTPRequestHandler):
    """Answers every request with its method."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.command)))
        self.end_headers()
        self.wfile.write(self.command.encode())

    do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def upstream() -> Iterator[str]:
    server = HTTPServer((HOST, 0), _Store)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://{HOST}:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def asked(proxy: S3Proxy, method: str = "GET") -> int:
    """The status of one request; 0 where the connection closed without an answer."""
    connection = http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"), timeout=PATIENCE_S)
    try:
        connection.request(method, "/bucket/key", b"body" if method == "PUT" else None)
        return connection.getresponse().status
    except (http.client.HTTPException, ConnectionError):
        return 0
    finally:
        connection.close()


def test_a_trouble_of_the_store_meets_a_share_of_requests_until_over() -> None:
    with upstream() as uri, S3Proxy(uri, seed=2) as proxy:
        busy = Trouble(S3Fault.BUSY, 0.5)
        proxy.begin(busy)
        statuses = [asked(proxy) for _ in range(40)]
        assert 10 < statuses.count(503) < 30
        assert statuses.count(503) + statuses.count(200) == 40
        assert proxy.affected == statuses.count(503)
        proxy.end(busy)
        assert [asked(proxy) for _ in range(5)] == [200] * 5


def test_an_outage_answers_nothing_and_a_lost_answer_is_to_a_write() -> None:
    with upstream() as uri, S3Proxy(uri) as proxy:
        for fault, method, wanted in (
            (S3Fault.GONE, "", {"GET": 0, "PUT": 0}),
            (S3Fault.LOST_ANSWER, "PUT", {"GET": 200, "PUT": 0}),
            (S3Fault.SLOW, "", {"GET": 200, "PUT": 200}),
        ):
            trouble = Trouble(fault, method=method, delay_s=0.05 if fault is S3Fault.SLOW else 0.0)
            proxy.begin(trouble)
            assert {name: asked(proxy, name) for name in ("GET", "PUT")} == wanted, fault
            proxy.end(trouble)
