"""Gates let through what the weather allows, know whose bytes they carry, and are gone with their run."""

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from headrace.chaos.gates.network import HOST, NetworkGates
from headrace.chaos.gates.s3 import Fault, S3Proxy, Trouble
from headrace.chaos.gates.sockets import owner_of
from headrace.chaos.gates.weather import Ill, Storm, Struck, Way, Weather
from headrace.transport.errors import LinkRefusedError
from headrace.worker.gate import VARIABLE, found_at

MARK = "HEADRACE_TEST_OWNER"
PATIENCE_S = 60.0
NOBODY = frozenset({""})


def passed(weather: Weather, count: int, way: Way = Way.LINK, ends: frozenset[str] = NOBODY) -> list[bytes]:
    return [data for _ in range(count) for _, _, data in weather.passed(b"abcd", way, ends)]


def test_fair_weather_lets_everything_through_at_once() -> None:
    assert Weather(1).passed(b"abcd", Way.LINK, NOBODY) == [(0.0, False, b"abcd")]


def test_a_share_of_what_passes_is_lost_doubled_or_spoilt_by_one_bit() -> None:
    lossy, doubling, spoiling = Weather(1), Weather(1), Weather(1)
    lossy.begin(Storm(Ill.LOSS, 0.25))
    doubling.begin(Storm(Ill.DUPLICATE, 0.25))
    struck = spoiling.begin(Storm(Ill.CORRUPT, 0.25))
    assert 700 < len(passed(lossy, 1000)) < 800
    assert 1200 < len(passed(doubling, 1000)) < 1300
    spoilt = [data for data in passed(spoiling, 1000) if data != b"abcd"]
    assert 200 < len(spoilt) < 300
    flips = [int.from_bytes(data) ^ int.from_bytes(b"abcd") for data in spoilt]
    assert all(flip.bit_count() == 1 for flip in flips)
    assert struck == {Struck.INSIDE: len(spoilt)}


def test_one_seed_is_one_weather() -> None:
    def drawn(seed: int) -> list[tuple[float, bool, bytes]]:
        weather = Weather(seed)
        for storm in (Storm(Ill.LOSS, 0.1), Storm(Ill.REORDER, 0.3), Storm(Ill.CORRUPT, 0.2), Storm(Ill.DELAY, 1, 0.1)):
            weather.begin(storm)
        return [item for _ in range(200) for item in weather.passed(b"abcd", Way.LINK, NOBODY)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert all(delay_s >= 0.1 for delay_s, _, _ in drawn(3))


def test_a_storm_meets_its_way_and_its_end_and_no_other() -> None:
    weather = Weather(1)
    storm = Storm(Ill.PARTITION, ends=("w1",))
    struck = weather.begin(storm)
    weather.begin(Storm(Ill.LOSS, way=Way.CONTROL))
    assert passed(weather, 3, ends=frozenset({"w0", "w2"})) == [b"abcd"] * 3
    assert passed(weather, 3, ends=frozenset({"w0", "w1"})) == []
    assert passed(weather, 3, ends=frozenset({"w1"})) == [b"abcd"] * 3, "what stays inside a host is not cut off"
    assert passed(weather, 3, Way.CONTROL, frozenset({"w0", "c0"})) == []
    assert weather.is_cut(Way.CONTROL, frozenset({"w1", "c0"}))
    weather.end(struck)
    assert not weather.is_cut(Way.CONTROL, frozenset({"w1", "c0"}))


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


def test_a_cut_control_session_holds_its_bytes_and_goes_on_when_the_cut_is_over() -> None:
    with echoing() as port, NetworkGates(1, MARK) as gates:
        host, _, front = gates.control("c0", port).rpartition(":")
        with socket.create_connection((host, int(front))) as guest:
            assert answered(guest, b"one", PATIENCE_S)
            cut = Storm(Ill.PARTITION, ends=("c0",))
            struck = gates.begin(cut)
            guest.sendall(b"two")
            deadline = time.monotonic() + PATIENCE_S
            while not struck and time.monotonic() < deadline:
                assert not answered(guest, b"", 0.05)
            assert not answered(guest, b"", 0.3)
            assert struck == {Struck.CONTROL: 1}
            gates.end(struck)
            assert answered(guest, b"", PATIENCE_S)


def test_a_delayed_session_keeps_its_order_also_when_the_delay_ends() -> None:
    with echoing() as port, NetworkGates(1, MARK) as gates:
        host, _, front = gates.control("c0", port).rpartition(":")
        with socket.create_connection((host, int(front))) as guest:
            slow = Storm(Ill.DELAY, delay_s=0.1)
            late = gates.begin(slow)
            guest.sendall(b"first ")
            gates.end(late)
            guest.sendall(b"second")
            guest.settimeout(PATIENCE_S)
            said = b""
            while len(said) < len(b"first second"):
                said += guest.recv(4096)
            assert said == b"first second"


def test_a_task_asks_for_a_gate_and_several_clients_find_their_way_back_through_it(
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


def test_where_no_gate_is_named_there_is_none_and_a_silent_one_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert found_at(7, ["10.0.0.1", "fd00::1"]) == ["10.0.0.1:7", "[fd00::1]:7"]
    monkeypatch.setattr("headrace.worker.gate.ANSWER_S", 0.02)
    with udp() as silent:
        monkeypatch.setenv(VARIABLE, f"{HOST}:{silent.getsockname()[1]}")
        with pytest.raises(LinkRefusedError, match="did not answer"):
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


def test_a_trouble_of_the_store_befalls_a_share_of_the_requests_until_it_is_over() -> None:
    with upstream() as uri, S3Proxy(uri, seed=2) as proxy:
        busy = Trouble(Fault.BUSY, 0.5)
        proxy.begin(busy)
        statuses = [asked(proxy) for _ in range(40)]
        assert 10 < statuses.count(503) < 30
        assert statuses.count(503) + statuses.count(200) == 40
        assert proxy.struck == statuses.count(503)
        proxy.end(busy)
        assert [asked(proxy) for _ in range(5)] == [200] * 5


def test_an_outage_answers_nothing_and_a_lost_answer_is_one_to_a_write() -> None:
    with upstream() as uri, S3Proxy(uri) as proxy:
        for fault, method, wanted in (
            (Fault.GONE, "", {"GET": 0, "PUT": 0}),
            (Fault.LOST_ANSWER, "PUT", {"GET": 200, "PUT": 0}),
            (Fault.SLOW, "", {"GET": 200, "PUT": 200}),
        ):
            trouble = Trouble(fault, method=method, delay_s=0.05 if fault is Fault.SLOW else 0.0)
            proxy.begin(trouble)
            assert {name: asked(proxy, name) for name in ("GET", "PUT")} == wanted, fault
            proxy.end(trouble)
