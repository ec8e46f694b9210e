"""Addresses of controllers: what is spoken to without mutual TLS, and what is not."""

import os
import socket
from pathlib import Path

import pytest

from headrace.daemon.control_address import (
    AddressError,
    check_plain,
    default_address,
    host_and_port,
    loopback,
    to_call,
    to_listen,
    usual_address,
)
from headrace.daemon.private_folder import NotPrivateError, make_private


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:7420", "localhost:7420", "[::1]:7420", "10.0.0.1:7420", "127.0.0.1.evil.example:7420", "nowhere",
        "", "unix:relative", "unix:", "unix:/a,b", "unix:/folder/", "unix:/a\0b", "unix-abstract:x",
        "insecure-tcp:10.0.0.1:1", "insecure-tcp:0.0.0.0:1", "insecure-tcp:[::]:1", "insecure-tcp:127.0.0.1",
        "insecure-tcp:127.0.0.1:99999", "insecure-tcp:unix:/x", "ipv4:127.0.0.1:1",
        "insecure-tcp:a..b:1", "insecure-tcp:.:1", "insecure-tcp:" + "a" * 64 + ":1", "insecure-tcp:a\0b:1",
        "insecure-tcp:\udce9:1", "insecure-tcp:localhost:" + "1" * 5000, "a..b:1", "dns:127.0.0.1:1",
    ],
)  # fmt: skip
def test_what_proves_nothing_is_not_spoken_to(address: str) -> None:
    for use in (check_plain, to_call, to_listen):
        with pytest.raises(AddressError):
            use(address)


def test_loopback_is_what_a_name_resolves_to_and_not_how_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        found = {"127.evil.example": ["10.0.0.9"], "both": ["127.0.0.1", "10.0.0.9"], "near": ["127.8.8.8"]}[host]
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert loopback("near:7") == "127.8.8.8:7"
    for host in ("127.evil.example", "both"):
        with pytest.raises(AddressError, match=rf"plain text is allowed on loopback only, and {host} is 10\.0\.0\.9"):
            loopback(f"{host}:7")


def test_plain_tcp_needs_its_full_name_and_binds_a_number() -> None:
    assert to_call("insecure-tcp:localhost:7420") in ("127.0.0.1:7420", "[::1]:7420")
    assert to_listen("insecure-tcp:127.0.0.1:0") == ("127.0.0.1:0", -1)


def test_a_caller_makes_the_folder_so_that_nobody_else_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(tmp_path / "runtime"))
    assert to_call(default_address()) == f"unix:{tmp_path}/runtime/controller.sock"
    assert (tmp_path / "runtime").stat().st_mode & 0o777 == 0o700


def test_a_server_takes_the_place_once(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/sockets/c.sock"
    target, held = to_listen(address)
    assert target == address
    with pytest.raises(BlockingIOError):
        to_listen(address)
    os.close(held)


@pytest.mark.parametrize("host", ["a\nb", "a\x1b[2Jb", "a\u200bb", "a\u202eb"])
def test_a_host_is_shown_as_it_is_called(host: str) -> None:
    with pytest.raises(AddressError, match="give HOST:PORT"):
        host_and_port(f"{host}:7")


def test_a_host_in_brackets_is_given_without_them() -> None:
    assert host_and_port("[fd00::1]:7") == ("fd00::1", 7)
    with pytest.raises(AddressError):
        host_and_port("fd00::1:7")


@pytest.mark.parametrize("address", ["unix:/a", "insecure-tcp:127.0.0.1:65535", "insecure-tcp:[::1]:0"])
def test_what_nobody_beyond_this_host_hears_is_spoken_to(address: str) -> None:
    check_plain(address)


def test_a_port_is_a_number_up_to_the_last_one() -> None:
    assert [host_and_port(f"h:{port}") for port in (0, 65535)] == [("h", 0), ("h", 65535)]
    for port in ("65536", "-1", "+1", "x", "", "\u0667"):
        with pytest.raises(AddressError):
            host_and_port(f"h:{port}")


def test_an_address_that_is_given_comes_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CONTROLLER", "unix:/of/environment")
    assert usual_address("unix:/given") == "unix:/given"
    assert usual_address() == "unix:/of/environment"
    monkeypatch.delenv("HEADRACE_CONTROLLER")
    assert usual_address() == default_address()


def test_a_host_that_is_nowhere_is_not_spoken_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [])
    with pytest.raises(AddressError, match="is nowhere"):
        loopback("h:7")


def test_what_stands_in_a_sockets_place_is_not_spoken_to(tmp_path: Path) -> None:
    path = make_private(tmp_path / "sockets") / "c.sock"
    path.touch()
    with pytest.raises(NotPrivateError, match="is no socket of user"):
        to_call(f"unix:{path}")


@pytest.mark.parametrize("address", ["nowhere", ":7", "[]:7"])
def test_what_is_no_address_at_all_is_told_how_one_is_written(address: str) -> None:
    with pytest.raises(AddressError, match="give HOST:PORT"):
        check_plain(address)
