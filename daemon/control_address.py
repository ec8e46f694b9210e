"""Where a controller serves, as people write it, and what gRPC is told instead.

`unix:/run/headrace/controller.sock`: a socket in a folder that only this user may enter; the usual way on one host.
`10.0.0.1:7420`: mutual TLS, in a cluster.
`insecure-tcp:127.0.0.1:7420`: plain text without proof of who speaks, so that every user of this host may command the
controller and its workers, and who takes the port first may command whoever connects. Loopback only, and only where
somebody has written these words.
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace.daemon.private_folder import check_socket, claim, make_private, runtime_folder, short_path

SOCKET = "unix:"
INSECURE = "insecure-tcp:"
#: The usual controller's socket, in the runtime folder.
SOCKET_NAME = "controller.sock"
_PORT_MAX, _PORT_DIGITS = 65535, 5


class AddressError(ValueError):
    """This is no address at which a controller is spoken to, or none in plain text."""


def default_address() -> str:
    """Where the controller of this host's user is, if nobody says otherwise."""
    return f"{SOCKET}{runtime_folder() / SOCKET_NAME}"


def usual_address(given: str = "") -> str:
    """The address that is given, else of HEADRACE_CONTROLLER, else the usual one."""
    return given or os.environ.get("HEADRACE_CONTROLLER", "") or default_address()


def check_plain(address: str) -> None:
    """Raise AddressError for an address to which nothing is said without mutual TLS."""
    if address.startswith(SOCKET):
        _socket_path(address)
    elif address.startswith(INSECURE):
        loopback(address.removeprefix(INSECURE))
    else:
        host_and_port(address)
        raise AddressError(
            f"{address} is TCP, and without a cluster nothing on it proves who speaks: use a socket, such as "
            f"{default_address()}, or make a cluster with `headrace cluster init`; {INSECURE}{address} lets every "
            "user of this host command it, and works on loopback only"
        )


def to_call(address: str) -> str:
    """What gRPC is told to connect to. Raises AddressError, and NotPrivateError where others may have put it there."""
    if not address.startswith(SOCKET):
        check_plain(address)
        return loopback(address.removeprefix(INSECURE))
    path = _socket_path(address)
    # A folder that is not there is made: else another user may, between this look and the connection.
    make_private(path.parent)
    # Until the socket is there gRPC finds nobody, as at a port where nobody listens.
    if os.path.lexists(path):
        check_socket(path)
    return f"{SOCKET}{short_path(path)}"


def to_listen(address: str) -> tuple[str, int]:
    """What gRPC is told to listen on, and a descriptor that holds the place for this process, -1 for TCP.

    Raises AddressError, OSError, and BlockingIOError where another process has the socket.
    """
    if not address.startswith(SOCKET):
        check_plain(address)
        return loopback(address.removeprefix(INSECURE)), -1
    path = _socket_path(address)
    held = claim(path)
    return f"{SOCKET}{short_path(path)}", held


def loopback(address: str) -> str:
    """HOST:PORT with the host as a number, of which it is certain that nobody beyond this host hears it.

    Raises AddressError.
    """
    import ipaddress
    import socket

    host, port = host_and_port(address)
    try:
        found = [str(item[4][0]) for item in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise AddressError(f"{address}: {host} cannot be resolved: {error.strerror or error}") from error
    beyond = [text for text in found if not ipaddress.ip_address(text.partition("%")[0]).is_loopback]
    if beyond or not found:
        raise AddressError(
            f"plain text is allowed on loopback only, and {host} is {', '.join(beyond) or 'nowhere'}: "
            "make or join a cluster (docs/guide/cluster.md)"
        )
    return f"[{found[0]}]:{port}" if ":" in found[0] else f"{found[0]}:{port}"


def host_and_port(address: str) -> tuple[str, int]:
    """Host, without brackets, and port. Raises AddressError."""
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS and int(port) <= _PORT_MAX
    if not is_port or not is_host(bare) or (":" in bare) != (bare != host):
        raise AddressError(f"{address!r}: give HOST:PORT, such as 10.0.0.1:7420, or unix:PATH")
    return bare, int(port)


def is_host(name: str) -> bool:
    """Whether a resolver can be asked for a name: at others, such as `a..b`, it raises what is no OSError."""
    try:
        return name.isprintable() and bool(name.encode("idna").strip(b"."))
    except UnicodeError:
        return False


def _socket_path(address: str) -> Path:
    path = address.removeprefix(SOCKET)
    if not os.path.isabs(path) or "," in path or "\0" in path or path.endswith("/"):
        raise AddressError(f"{address!r}: give the whole path of a socket, such as {default_address()}")
    return Path(os.path.normpath(path))
