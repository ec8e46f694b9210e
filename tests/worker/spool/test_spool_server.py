"""A spool is pushed at by its own clients alone, and strangers cost it bounded room and time."""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.daemon.post import Clients
from headrace.store.files import disk
from headrace.worker.spool.guard import HEAD_BYTES_MAX, TOKEN_CHARACTERS_MIN, GuardError, Tokens
from headrace.worker.spool.server import PUSH_BYTES_MAX, _Handler, _serve, _tend
from headrace.worker.spool.spool import Spool
from tests.kits.store.tls import Authority

DEADLINE_S = 300.0
RECORD = b'{"id": "1", "text": "a"}\n'
ENDS = b"POST /close HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
TOKEN = "t" * TOKEN_CHARACTERS_MIN


class Server:
    """A spool behind its server, in this process."""

    def __init__(self, folder: Path, context: ssl.SSLContext | None = None, **facts: Any) -> None:
        self.spool = Spool(folder / "spool", limit_bytes=1 << 30)
        listen = "tls:127.0.0.1:0" if context else "insecure-tcp:127.0.0.1:0"
        handler = type("Handler", (_Handler,), {"spool": self.spool, **facts})
        self.server, address = _serve(listen, handler, context)
        self.port = int(address.rpartition(":")[2])
        threading.Thread(target=lambda: self.server.serve_forever(0.01), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.spool.close()

    def push(self, trust: ssl.SSLContext | None = None, **headers: str) -> int:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(
            http.client.HTTPSConnection("127.0.0.1", self.port, timeout=DEADLINE_S, context=trust)
            if trust
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        ) as connection:
            connection.request("POST", "/records", RECORD, given)
            answer = connection.getresponse()
            answer.read()
            return answer.status

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), DEADLINE_S)

    def say(self, text: bytes) -> bytes:
        """What it answers, until it ends the connection."""
        with self.connect() as connection:
            connection.sendall(text)
            return until_the_end(connection)


def until_the_end(connection: socket.socket) -> bytes:
    said = b""
    with suppress(ConnectionError):
        while part := connection.recv(4096):
            said += part
    return said


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path, head_s=DEADLINE_S, body_s=DEADLINE_S)
    yield made
    made.close()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path, head_s=0.5, body_s=0.5)
    yield made
    made.close()


def test_a_push_is_taken(server: Server) -> None:
    assert server.push() == 200


@pytest.mark.parametrize("header", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "none"}])
def test_a_page_in_a_browser_is_refused(server: Server, header: dict[str, str]) -> None:
    assert server.push(**header) == 403
    assert server.spool.used_bytes() == 0


@pytest.mark.parametrize("length", [str(PUSH_BYTES_MAX + 1), "9" * 5000])
def test_a_length_beyond_the_limit_is_refused_before_a_byte_is_read(server: Server, length: str) -> None:
    assert server.say(b"POST /records HTTP/1.1\r\nContent-Length: " + length.encode() + b"\r\n\r\n")[9:12] == b"413"


@pytest.mark.parametrize("length", ["-1", "+1", "\u00b2", "1_0", "", "0x10"])
def test_a_length_that_is_no_number_is_refused(server: Server, length: str) -> None:
    said = server.say(b"POST /records HTTP/1.1\r\nContent-Length: " + length.encode("latin-1") + b"\r\n\r\n")
    assert said[9:12] == b"411"


def test_chunks_without_end_are_refused(server: Server) -> None:
    said = server.say(
        b"POST /records HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 9
    )
    assert said[9:12] == b"411"


def test_who_is_slow_with_a_head_is_sent_away(hasty: Server) -> None:
    assert hasty.say(b"POST /records HT") == b""


def test_a_slow_body_is_sent_away_and_nothing_taken(hasty: Server) -> None:
    assert hasty.say(b"POST /records HTTP/1.1\r\nContent-Length: 100\r\n\r\n{") == b""
    assert hasty.spool.used_bytes() == 0


def test_a_head_without_end_is_read_to_its_limit(tmp_path: Path) -> None:
    server = Server(tmp_path, head_s=DEADLINE_S)
    try:
        line = b"X-Header: " + b"x" * 1000 + b"\r\n"
        assert server.say(b"POST /records HTTP/1.1\r\n" + line * (2 * HEAD_BYTES_MAX // len(line))) == b""
    finally:
        server.close()


def test_clients_that_say_nothing_keep_nobody_out(tmp_path: Path) -> None:
    server = Server(tmp_path, head_s=DEADLINE_S)
    server.server.clients = Clients(clients_max=4)
    silent = [server.connect() for _ in range(12)]
    try:
        assert server.push() == 200
        assert until_the_end(silent[0]) == b""
    finally:
        for connection in silent:
            connection.close()
        server.close()


def test_bodies_being_received_have_a_limit_and_others_come_again(tmp_path: Path) -> None:
    server = Server(tmp_path, body_s=DEADLINE_S)
    server.server.clients = Clients(bodies_max=1)
    with server.connect() as slow:
        slow.sendall(b"POST /records HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n{")
        assert slow.recv(4096).startswith(b"HTTP/1.1 100")
        assert any(server.push() == 503 for _ in range(1000))
    server.close()


@pytest.mark.parametrize("shown", ["", "Bearer ", "Bearer " + "u" * TOKEN_CHARACTERS_MIN, TOKEN, "Bearer \u00ff"])
def test_who_shows_no_token_is_refused(tmp_path: Path, shown: str) -> None:
    server = Server(tmp_path, tokens=Tokens((TOKEN,)))
    try:
        assert server.push(Authorization=shown) == 401
        assert server.push(Authorization=f"Bearer {TOKEN}") == 200
    finally:
        server.close()


def test_over_tls_token_clients_are_served_beside_silent_ones(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = Server(tmp_path, authority.context(), tokens=Tokens((TOKEN,)))
    try:
        with server.connect(), server.connect():
            trust = ssl.create_default_context(cafile=str(authority.ca))
            assert server.push(trust, Authorization=f"Bearer {TOKEN}") == 200
            assert server.push(trust) == 401
    finally:
        server.close()


@pytest.mark.parametrize(("text", "mode"), [(TOKEN, 0o644), (TOKEN, 0o640), ("short", 0o600), ("", 0o600)])
def test_a_file_of_tokens_that_guards_nothing_is_refused(tmp_path: Path, text: str, mode: int) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(GuardError):
        Tokens.read(path)


@pytest.mark.parametrize("broken", ["\0", "\x1b", "\r", "\u00fc"])
def test_a_broken_token_of_the_file_is_refused_and_not_repeated(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{TOKEN}\n{TOKEN}{broken}{TOKEN}\n", newline="")
    path.chmod(0o600)
    with pytest.raises(GuardError, match="tokens holds a line break, or something else that no key") as caught:
        Tokens.read(path)
    assert TOKEN not in str(caught.value)


def test_other_hosts_are_served_with_tls_and_tokens_only(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "headrace.worker.spool.server", str(tmp_path), "--listen", "tls:127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "needs --certificate, --key and --token-file" in done.stderr


class FullDisk:
    """A disk that makes no name durable for so many times, and then tells whoever waits for it to stop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.times, self.stop = times, threading.Event()
        self._sync = disk.sync_folder
        monkeypatch.setattr(disk, "sync_folder", self.sync_folder)

    def sync_folder(self, folder: str | Path) -> None:
        self.times -= 1
        if self.times >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.stop.set()
        self._sync(folder)


@pytest.mark.parametrize("sheds", [False, True])
def test_a_disk_refusing_to_seal_is_told_once_and_retried(
    sheds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.worker.spool.server._TICK_S", 0.01)
    spool = Spool(tmp_path / "spool", limit_bytes=0 if sheds else 1 << 20, age_s=0.0, sheds=sheds)
    spool.push(RECORD)
    full = FullDisk(monkeypatch, 3)
    _tend(spool, full.stop)
    assert capsys.readouterr().err.count("the disk does not let a segment be sealed: No space left on device") == 1
    kind = "shed" if sheds else "jsonl"
    assert [path.name for path in (tmp_path / "spool").glob(f"*.{kind}*")] == [f"{1:012d}.{kind}"]


def test_nothing_is_appended_to_a_segment_whose_seal_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "spool", limit_bytes=1 << 20, age_s=0.0)
    spool.push(RECORD)
    FullDisk(monkeypatch, 2)
    for refused in (spool.tick, lambda: spool.push(RECORD, "again")):
        with pytest.raises(OSError, match="No space left"):
            refused()
    assert spool.push(RECORD, "again").records == 1
    assert (tmp_path / "spool" / f"{1:012d}.jsonl").read_bytes() == RECORD
    spool.close()


def test_pushing_or_closing_on_a_full_disk_comes_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(monkeypatch, 2)
    assert server.push() == 507
    said = server.say(ENDS)
    assert said.startswith(b"HTTP/1.1 507 ")
    assert b"Retry-After: " in said
    assert server.say(ENDS).startswith(b"HTTP/1.1 200 ")


def test_a_spool_closes_only_when_what_it_acknowledged_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)
    assert server.push() == 200

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(disk, "sync_data", fails)
        assert server.push() == 507
    said = server.say(ENDS)
    server.close()
    assert said.startswith(b"HTTP/1.1 507 ")
    assert b"start the spool anew" in said
    again = Server(tmp_path)
    assert again.say(ENDS).startswith(b"HTTP/1.1 200 ")
    again.close()
    assert (tmp_path / "spool" / f"{1:012d}.jsonl").read_bytes() == RECORD
