"""The controller as a process: a gRPC server around the shell.

    python -m headrace.controller.server --listen 127.0.0.1:7420

With `--ready-fd` it writes the address it serves to a file descriptor; with `--lifeline-fd` it ends when that
descriptor reaches its end, so that an embedded controller never outlives whoever started it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import Sequence

import grpc
import setproctitle
import uvloop

from headrace.controller.core.cluster import Controller
from headrace.controller.process import identity
from headrace.controller.servicer import Servicer
from headrace.controller.shell import Shell
from headrace.protos import control_pb2_grpc as rpc

logger = logging.getLogger("headrace.controller")

#: Bytes of one message; a page of a listing and a proposal of many ranges must fit.
MESSAGE_BYTES_MAX = 64 << 20
#: Plain text is allowed here only.
LOOPBACK = ("127.", "localhost", "[::1]")


async def serve(listen: str, *, ready_fd: int = -1, lifeline_fd: int = -1) -> int:
    """Serve until a signal or the lifeline's end; the exit code."""
    if not listen.startswith(LOOPBACK):
        logger.error("plain text is allowed on loopback only: listen on 127.0.0.1, not on %s", listen)
        return 2
    shell = Shell(Controller(identity()))
    options = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    rpc.add_ControlServicer_to_server(Servicer(shell), server)  # type: ignore[no-untyped-call]
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError:
        logger.error("cannot listen on %s: another process does; choose another address with --listen", listen)
        return 1
    await server.start()
    address = f"{listen.rsplit(':', 1)[0]}:{port}"
    logger.info("controller serves on %s", address)
    if ready_fd >= 0:
        os.write(ready_fd, f"{address}\n".encode())
        os.close(ready_fd)
    await _until_told(lifeline_fd)
    await server.stop(grace=0.2)
    await shell.close()
    return 0


async def _until_told(lifeline_fd: int) -> None:
    """Wait for SIGTERM, SIGINT, or the end of the lifeline."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    if lifeline_fd >= 0:
        loop.add_reader(lifeline_fd, told.set)
    await told.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and serve."""
    parser = argparse.ArgumentParser(prog="headrace controller", description="Hold topologies and write ledgers.")
    parser.add_argument("--listen", default="127.0.0.1:7420", help="address and port (port 0: any)")
    parser.add_argument("--ready-fd", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--lifeline-fd", type=int, default=-1, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    setproctitle.setproctitle("headrace controller")
    return uvloop.run(serve(args.listen, ready_fd=args.ready_fd, lifeline_fd=args.lifeline_fd))


if __name__ == "__main__":
    raise SystemExit(main())
