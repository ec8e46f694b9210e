"""The controller as a process: a gRPC server around the shell.

    python -m headrace.controller
    python -m headrace.controller --listen 10.0.0.1:7420 --cluster DIR

With `--ready-fd` it writes the address it serves to a file descriptor; with `--lifeline-fd` it ends when that
descriptor reaches its end, so that an embedded controller never outlives whoever started it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import setproctitle
import uvloop

from headrace.cluster import KEY_BYTES_MIN
from headrace.controller.core.cluster import Controller
from headrace.controller.core.log import SNAPSHOT_ENTRIES, LogLimits
from headrace.controller.logs import identity
from headrace.controller.scaling import Scaling
from headrace.controller.servicer import Servicer
from headrace.controller.shell import Shell
from headrace.controller.status import reply
from headrace.daemon import (
    INSECURE,
    SOCKET,
    AddressError,
    Effects,
    LogFiles,
    default_address,
    end_on_surprise,
    end_with_parent,
    end_within,
    hear_on,
    keep_alive,
    keep_log_files,
    notify,
    parse_arguments,
    raise_open_files,
    to_listen,
)
from headrace.protos import control_pb2_grpc as rpc
from headrace.store import StoreError, below, open_store, release

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from headrace.controller.effects import Lineage
    from headrace.controller.membership import ClusterFiles, JoinGate
    from headrace.controller.page import RunPage

logger = logging.getLogger("headrace.controller")

#: CPython looks for cycles after every 700 new objects, and through all objects when they have grown by a quarter. A
#: plan of 100,000 tasks and a ledger of a million ranges are large trees without a cycle, and were searched again and
#: again while they grew: 0.83 s instead of 0.51 s for the plan (benchmarks/scale.py).
#: New objects between two looks for cycles; looks at the youngest between two at the older, and at all.
GARBAGE_OBJECTS, GARBAGE_OLDER, GARBAGE_ALL = 100_000, 20, 20
#: Seconds in which a controller that was told to end does, whatever store it waits for: RESIGN_S and SETTLE_S of the
#: shell, and what is left to be closed. Else the kernel ends it.
ENDING_S = 15.0
#: The folder of the cluster's own log, below the root.
LOG_FOLDER = "controller"
EVERYWHERE = ("0.0.0.0", "[::]", "")  # noqa: S104 - recognised, not listened on
#: Where a controller of a cluster serves, if nobody says otherwise.
LISTEN_TLS = "127.0.0.1:7420"


@dataclass(frozen=True, slots=True)
class Service:
    """What the command line asks for. `root` is the store that holds the cluster's log; empty: none."""

    listen: str
    root: str = ""
    #: What mutual TLS is spoken with; None: a socket of this user's, or plain text where that is asked for by name.
    cluster: ClusterFiles | None = None
    ready_fd: int = -1
    lifeline_fd: int = -1
    snapshot_entries: int = SNAPSHOT_ENTRIES
    #: Where Prometheus finds the metrics, as HOST:PORT; empty: nowhere.
    metrics: str = ""
    #: What this process says.
    book: LogFiles | None = None
    #: Where workers are told to find this controller while it leads, as HOST:PORT; empty: where it listens.
    advertise: str = ""
    #: Whether operators may have faults done to it.
    allow_chaos: bool = False
    #: Where its page is served, as HOST:PORT of loopback, and the file for the page's address; empty: nowhere, usual.
    page: str = ""
    page_file: str = ""


async def serve(service: Service) -> int:
    """Serve until a signal or the lifeline's end; the exit code."""
    listen, cluster = service.listen, service.cluster
    try:
        log = open_store(below(service.root, LOG_FOLDER)).uri if service.root else ""
    except StoreError as error:
        logger.error("%s", error)
        return 2
    expelled = cluster.expelled() if cluster else {}
    core = Controller(identity(), log=log, log_limits=LogLimits(service.snapshot_entries), expelled=expelled)
    shell = Shell(core, cluster.key if cluster else os.urandom(KEY_BYTES_MIN), service.book, cluster)
    if service.allow_chaos:
        shell.own_faults.allow()
    server = make_server(usual_limits(), cluster, core)
    servicer = Servicer(shell)
    rpc.add_ControlServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    try:
        place = _take_place(server, listen, cluster)
        door = await _open_door(service, shell, place.port)
    except AddressError as error:
        logger.error("--listen: %s", error)
        return 2
    except (RuntimeError, BlockingIOError):
        logger.error("cannot listen on %s: another process does; choose another address with --listen", listen)
        return 1
    except OSError as error:
        logger.error("cannot listen on %s: %s", listen, error)
        return 1
    try:
        scraped = _serve_metrics(service.metrics, shell)
        shown = await _serve_page(service, shell, servicer)
        lineage = _tell_lineage(shell)
    except _NotServed as error:
        logger.error("%s", error)
        return 1
    # Before anybody can know that it serves, and tell it to end.
    told = _listen_for_the_end(service.lifeline_fd)
    surprises: list[int] = []

    def surprised() -> None:
        surprises.append(1)
        told.set()

    end_on_surprise(asyncio.get_running_loop(), surprised)
    await server.start()
    address = place.address
    logger.info("controller serves on %s", address)
    shell.begin(service.advertise or _advertised(place))
    if service.ready_fd >= 0:
        os.write(service.ready_fd, f"{address}\n".encode())
        os.close(service.ready_fd)
    notify(f"READY=1\nSTATUS=serves on {address}")
    beside = _begin_beside(shell)
    await told.wait()
    end_within(ENDING_S)
    notify("STOPPING=1")
    beside.cancel()
    await shell.resign()
    if shown is not None:
        await shown.close()
    if lineage is not None:
        await lineage.close()
    if scraped is not None:
        scraped.shutdown()
    if door is not None:
        await door.close()
    await server.stop(grace=0.2)
    await shell.close()
    place.leave()
    return 1 if surprises else 0


def _begin_beside(shell: Shell) -> Effects:
    """What goes on beside the server: the watchdog, and scaling."""
    effects = Effects()
    effects.start("the watchdog", keep_alive())
    effects.start("scaling", Scaling(shell, lambda pipeline: reply(shell, release(), pipeline)).keep_looking())
    return effects


def make_server(limits: GrpcLimits, cluster: ClusterFiles | None, core: Controller) -> grpc.aio.Server:
    """A server that takes no more than these limits, and nobody but members of the cluster, if there is one."""
    guards = _guards(cluster, core, limits)
    return grpc.aio.server(options=limits.options(), maximum_concurrent_rpcs=limits.calls_max, interceptors=guards)


def _guards(cluster: ClusterFiles | None, core: Controller, limits: GrpcLimits) -> list[grpc.aio.ServerInterceptor]:
    """Who stands before every method; a controller without a cluster imports nothing of certificates."""
    if cluster is None:
        return []
    from headrace.controller.membership import Guard, MemberLimits

    of_a_member = MemberLimits(
        limits.calls_a_member_max, limits.sessions_a_member_max, limits.requests_a_member_max, limits.request_s
    )
    return [Guard(cluster.authority.certificate(), lambda: core.expelled, of_a_member)]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where this controller serves: `held` keeps a socket's place for this process, -1 for TCP."""

    address: str
    port: int
    held: int

    def leave(self) -> None:
        """Let another controller have the place."""
        if self.held >= 0:
            os.close(self.held)


def _take_place(server: grpc.aio.Server, listen: str, cluster: ClusterFiles | None) -> _Place:
    """Listen, with mutual TLS in a cluster. Raises AddressError, RuntimeError, OSError."""
    if cluster is not None:
        if listen.startswith((SOCKET, INSECURE)):
            raise AddressError(f"a cluster is served at HOST:PORT with mutual TLS, and not at {listen}")
        from headrace.controller.membership import server_credentials

        port = int(server.add_secure_port(listen, server_credentials(cluster.controller)))
        return _Place(f"{listen.rsplit(':', 1)[0]}:{port}", port, -1)
    target, held = to_listen(listen)
    port = int(server.add_insecure_port(target))
    if held >= 0:
        os.chmod(target.removeprefix(SOCKET), 0o600)
        return _Place(listen, 0, held)
    return _Place(f"{INSECURE}{target.rsplit(':', 1)[0]}:{port}", port, -1)


class _NotServed(Exception):  # noqa: N818 - named after what is so
    """Metrics or the page, and why."""


def _serve_metrics(address: str, shell: Shell) -> WSGIServer | None:
    """Let Prometheus read this controller, if it is asked for. Raises _NotServed."""
    if not address:
        return None
    from headrace.controller.metrics import families
    from headrace.daemon import serve_metrics

    try:
        server = serve_metrics(address, lambda: families(reply(shell, release()), shell.commits))
    except OSError as error:
        what = error.strerror or error
        raise _NotServed(f"cannot serve metrics on {address}: {what}; choose another address with --metrics") from error
    logger.info("metrics on %s:%d", address.rpartition(":")[0] or "127.0.0.1", server.server_port)
    return server


def _tell_lineage(shell: Shell) -> Lineage | None:
    """Events of lineage from now on, if the environment asks for them. Raises _NotServed."""
    if not os.environ.get("HEADRACE_LINEAGE"):
        return None
    from headrace.controller.effects import Lineage

    try:
        told = Lineage.of(os.environ, lambda: shell.core.runs)
    except ValueError as error:
        raise _NotServed(str(error)) from error
    if told is not None:
        told.begin()
    return told


async def _serve_page(service: Service, shell: Shell, servicer: Servicer) -> RunPage | None:
    """Show this controller in browsers, if it is asked for. Raises _NotServed."""
    if not service.page:
        return None
    from headrace.controller.page import RunPage

    shown = RunPage(shell, servicer)
    try:
        await shown.serve(service.page, service.page_file)
    except (AddressError, OSError) as error:
        raise _NotServed(f"cannot serve the page: {error}; choose another address with --page") from error
    return shown


async def _open_door(service: Service, shell: Shell, port: int) -> JoinGate | None:
    """Where nodes join: next to the control port."""
    cluster = service.cluster
    if cluster is None:
        return None
    from headrace.cluster import PORT_OFFSET
    from headrace.controller.membership import JoinGate

    door = JoinGate(cluster, shell.spend)
    joins = await door.open(service.listen.rpartition(":")[0], port + PORT_OFFSET)
    logger.info("nodes of cluster %s join on port %d", cluster.name, joins)
    return door


def _advertised(place: _Place) -> str:
    """Where others find this controller: by the host's name if it listens everywhere."""
    host, _, port = place.address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in EVERYWHERE else place.address


def _listen_for_the_end(lifeline_fd: int) -> asyncio.Event:
    """What is set by SIGTERM, SIGINT, or the end of the lifeline."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    hear_on(loop, told.set)

    def let_go() -> None:
        # Its end would be told at each turn of the loop, for as long as this process takes to end.
        loop.remove_reader(lifeline_fd)
        told.set()

    if lifeline_fd >= 0:
        loop.add_reader(lifeline_fd, let_go)
    return told


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and serve."""
    parser = argparse.ArgumentParser(prog="headrace controller", description="Hold topologies and write ledgers.")
    parser.add_argument("--listen", default="", help="unix:PATH, or with --cluster HOST:PORT (port 0: any)")
    parser.add_argument("--cluster", type=Path, help="the folder of `headrace cluster init`: serve with mutual TLS")
    parser.add_argument("--root", default="", help="store of the cluster's log; controllers of one root stand by")
    parser.add_argument("--snapshot-entries", type=int, default=SNAPSHOT_ENTRIES, help=argparse.SUPPRESS)
    parser.add_argument("--advertise", default="", help="where workers find it behind a forwarder, as HOST:PORT")
    parser.add_argument("--metrics", default="", help="serve metrics for Prometheus there, as HOST:PORT")
    parser.add_argument("--logs", default="", help="a folder in which it keeps its log")
    parser.add_argument("--allow-chaos", action="store_true", help="let operators kill and freeze it")
    parser.add_argument("--page", default="", help="serve the page there, as HOST:PORT of loopback (port 0: any)")
    parser.add_argument("--page-file", default="", help=argparse.SUPPRESS)
    parser.add_argument("--ready-fd", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--lifeline-fd", type=int, default=-1, help=argparse.SUPPRESS)
    args = parse_arguments(parser, argv)
    end_with_parent(args.lifeline_fd)
    raise_open_files()
    book = keep_log_files("controller", args.logs)
    setproctitle.setproctitle("headrace controller")
    look_for_cycles_seldom()
    cluster: ClusterFiles | None = None
    if args.cluster:
        from headrace.cluster import utc_now, why_renew
        from headrace.controller.membership import ClusterFiles, ClusterFilesError

        try:
            cluster = ClusterFiles.read(args.cluster)
        except ClusterFilesError as error:
            logger.error("%s", error)
            return 2
        if why := why_renew(cluster.controller, utc_now()):
            logger.warning("%s: renew it with `headrace cluster renew %s`", why, args.cluster)
    return uvloop.run(
        serve(
            Service(
                args.listen or (LISTEN_TLS if args.cluster else default_address()),
                args.root,
                cluster,
                args.ready_fd,
                args.lifeline_fd,
                args.snapshot_entries,
                args.metrics,
                book,
                args.advertise,
                args.allow_chaos,
                args.page,
                args.page_file,
            )
        )
    )


#: Bytes of one message; a page of a listing and a proposal of many ranges must fit.
MESSAGE_BYTES_MAX = 64 << 20
#: Connections, and how much of the process's descriptors they may take.
CONNECTIONS_MAX, CONNECTIONS_SHARE = 4096, 0.5


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """The limits of one server, in seconds, bytes and numbers."""

    #: Connections at once; a further one is closed before a byte of it is read.
    connections_max: int
    #: What TLS and the first frames of HTTP/2 may take.
    handshake_s: float = 10.0
    #: A connection without a call is ended after so long.
    idle_s: float = 120.0
    #: A peer is asked for a sign of life when it was silent for so long, and given up when it has not answered after.
    silent_s: float = 60.0
    answer_s: float = 20.0
    #: Pings of a peer may be so far apart; one that sends this many too soon is sent away.
    ping_apart_s: float = 60.0
    ping_strikes_max: int = 2
    #: Calls at once on one connection, and of all.
    streams_max: int = 128
    calls_max: int = 4096
    #: Calls at once of one member of a cluster, on all of its connections; the guard counts them.
    calls_a_member_max: int = 128
    #: Of these, sessions of a worker, and calls whose request is being read: each may hold a whole message.
    sessions_a_member_max: int = 4
    requests_a_member_max: int = 4
    #: What a request may take to come.
    request_s: float = 60.0
    #: All headers of a call.
    headers_bytes_max: int = 16 << 10
    message_bytes_max: int = MESSAGE_BYTES_MAX

    def options(self) -> list[tuple[str, int]]:
        """As gRPC's channel arguments; `calls_max` is an argument of the server itself."""
        return [
            ("grpc.max_allowed_incoming_connections", self.connections_max),
            ("grpc.server_handshake_timeout_ms", _ms(self.handshake_s)),
            ("grpc.max_connection_idle_ms", _ms(self.idle_s)),
            ("grpc.keepalive_time_ms", _ms(self.silent_s)),
            ("grpc.keepalive_timeout_ms", _ms(self.answer_s)),
            ("grpc.http2.min_ping_interval_without_data_ms", _ms(self.ping_apart_s)),
            ("grpc.http2.max_ping_strikes", self.ping_strikes_max),
            ("grpc.max_concurrent_streams", self.streams_max),
            # Without both, some of what is too large is refused at random.
            ("grpc.max_metadata_size", self.headers_bytes_max),
            ("grpc.absolute_max_metadata_size", self.headers_bytes_max),
            ("grpc.max_receive_message_length", self.message_bytes_max),
            ("grpc.max_send_message_length", self.message_bytes_max),
            ("grpc.so_reuseport", 0),
            # Else each call may soon send some MiB that nobody reads; a message that is read has room for its length.
            ("grpc.http2.bdp_probe", 0),
        ]


def usual_limits() -> GrpcLimits:
    """Those of a controller: its connections leave descriptors for all else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else int(soft * CONNECTIONS_SHARE)
    return GrpcLimits(max(1, min(CONNECTIONS_MAX, share)))


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def look_for_cycles_seldom() -> None:
    """Have the process look for cyclic garbage after so many new objects; all other garbage goes at once, as ever."""
    gc.set_threshold(GARBAGE_OBJECTS, GARBAGE_OLDER, GARBAGE_ALL)
