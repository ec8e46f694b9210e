"""An answer that never ends comes to an end at its deadline; a redirect leads to no host of our own."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.store.contract.errors import StoreRefused, StoreUnavailable
from headrace.store.remote import http_store
from headrace.store.remote.http_store import HttpStore
from headrace.store.s3.connection import sockets
from headrace.store.s3.connection.config import resolve
from headrace.store.s3.connection.sockets import kind_of
from headrace.store.s3.connection.wire import NoAnswer, Wire
from headrace.store.s3.retry import RetryPolicy
from tests.kits.inputs.web_server import Reply, WebServer, serving
from tests.kits.store.tls import Authority

#: Seconds in which what would never end has to end, a hundred times its deadline.
END_S = 60.0
HASTY = RetryPolicy(delay_first_s=0.001, delay_s_max=0.001, retry_s_max=0.05, first_contact_s=0.05)
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 64),
    "ends of chunks": (CHUNKED + b"3\r\nabc\r\n0\r\n", b"T: t\r\n" * 64),
}


@contextlib.contextmanager
def saying(first: bytes, again: bytes, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The address of a server that says this to everybody, the second part until nobody listens."""
    listening = socket.create_server(("127.0.0.1", 0))

    def tell(plain: socket.socket) -> None:
        with contextlib.suppress(OSError), tls.wrap_socket(plain, server_side=True) if tls else plain as connection:
            connection.recv(1 << 16)
            parts: Iterable[bytes] = itertools.chain([first], itertools.repeat(again))
            for part in parts:
                connection.sendall(part)

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=tell, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=take, daemon=True).start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((sockets, "HEAD_S_MAX"), (sockets, "BODY_S"), (http_store, "ATTEMPT_S_MAX")):
        monkeypatch.setattr(module, name, END_S / 100)
    monkeypatch.setattr(sockets, "SLOWEST_BYTES_S", 1 << 40)


def ended(found: list[str], thread: threading.Thread) -> str:
    thread.start()
    thread.join(END_S)
    return found[0] if found else "it has not ended"


@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.parametrize("has_tls", [False, True])
def test_an_answer_of_the_web_without_end_ends(
    what: str, has_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    found: list[str] = []

    def ask(host: str) -> None:
        try:
            list(HttpStore(f"http{'s' * has_tls}://{host}", HASTY).list("d/"))
        except StoreUnavailable as error:
            found.append(str(error))

    with saying(*ENDLESS[what], authority.context() if has_tls else None) as host:
        assert "no answer came in time" in ended(found, threading.Thread(target=ask, args=(host,), daemon=True))


@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_of_a_bucket_without_end_ends(what: str, is_stream: bool) -> None:
    found: list[str] = []

    def ask(host: str) -> None:
        wire = Wire(resolve(f"s3://bucket?endpoint=http://{host}&anonymous=true"))
        try:
            answer = wire.send("GET", "key", is_stream=is_stream)
            if answer.rest is not None:
                with closing(answer.rest) as rest:
                    rest.read_into(memoryview(bytearray(99)))
        except NoAnswer as error:
            found.append(str(error))

    with saying(*ENDLESS[what]) as host:
        assert "no answer in time" in ended(found, threading.Thread(target=ask, args=(host,), daemon=True))


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.8.0.1", "loopback"), ("::1", "loopback"), ("::ffff:127.0.0.1", "loopback"),
        ("169.254.169.254", "link-local"), ("::ffff:169.254.169.254", "link-local"), ("fe80::1%eth0", "link-local"),
        ("10.0.0.1", ""), ("2001:db8::1", ""),
    ],
)  # fmt: skip
def test_whose_network_an_address_is_of(address: str, kind: str) -> None:
    assert kind_of(address) == kind


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]", "0"]
)
def test_no_redirect_leads_from_elsewhere_to_this_host(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(WebServer({"a": b"secret"})) as web:
        port = web.url.rpartition(":")[2].strip("/")
        web.fault = lambda asked: (
            Reply(302, headers={"Location": f"http://{host}:{port}/a"}) if asked.path != "/a" else None
        )
        # the first server is taken for one of another network: a test has no other one
        elsewhere = iter(["", "loopback"])
        monkeypatch.setattr(http_store, "kind_of", lambda address: next(elsewhere))
        with pytest.raises(StoreRefused, match="this host's own network"):
            HttpStore(web.url, HASTY).head("b")
        assert [asked.path for asked in web.asked] == ["/b"]


def test_a_server_of_this_host_may_redirect_to_it() -> None:
    with serving(WebServer({"a": b"open"})) as web:
        web.fault = lambda asked: Reply(302, headers={"Location": "/a"}) if asked.path == "/b" else None
        assert HttpStore(web.url, HASTY).get("b") == b"open"
