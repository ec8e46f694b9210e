"""A gate before a task's links: something that forwards UDP, and that other tasks are told of in the task's place.

`HEADRACE_LINK_GATE=HOST:PORT` in a worker's environment names who makes gates: it is sent a task's port in decimal
digits, and answers with that of the gate on its own host. A worker that allows chaos names its agent instead, whose
gates other hosts reach. What passes is encrypted from task to task, so a gate can delay, lose or spoil it, and no more.
`headrace chaos run` is one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from headrace.transport.errors import LinkRefusedError
from headrace.worker.addresses import join_address

VARIABLE = "HEADRACE_LINK_GATE"
#: Seconds for one answer, and how often it is asked for.
ANSWER_S = 1.0
ASKED_MAX = 5


def found_at(port: int, hosts: Sequence[str], maker: str = "") -> list[str]:
    """Where others find a task that listens on a UDP port of this host, which has these addresses, as host:port.

    `maker` makes gates that can be reached by all of the addresses; else the one in the environment, if any is there.
    Raises LinkRefusedError where one is named and does not answer.
    """
    if maker:
        front = gate_port(str(port), maker)
        return [join_address(host, front) for host in hosts]
    near = os.environ.get(VARIABLE, "")
    if near:
        return [join_address(near.rpartition(":")[0], gate_port(str(port), near))]
    return [join_address(host, port) for host in hosts]


def gate_port(asked: str, maker: str) -> int:
    """The port of the gate that `maker`, as host:port, has before what is asked for. Raises LinkRefusedError."""
    host, _, maker_port = maker.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(ANSWER_S)
        for _ in range(ASKED_MAX):
            try:
                asking.sendto(asked.encode(), (host, int(maker_port)))
                return int(asking.recv(64))
            except (TimeoutError, ConnectionError):
                continue
            except ValueError as error:
                raise LinkRefusedError(f"the gates at {maker} did not answer with a port: {error}") from error
    raise LinkRefusedError(
        f"the gates at {maker} did not answer in {ASKED_MAX * ANSWER_S:.0f} s; start them, or unset {VARIABLE}"
    )
