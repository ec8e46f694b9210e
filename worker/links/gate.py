"""A gate before a task's links: something that forwards UDP, and that other tasks are told of in the task's place.

`HEADRACE_LINK_GATE=PATH` in a worker's environment names who makes gates: a UNIX socket in a folder that is this user's
alone, to which a task says its port in decimal digits, a line, and which answers with that of the gate on this host. A
worker that allows chaos names its agent instead, whose gates other hosts reach. What passes is encrypted from task to
task, so a gate can delay, lose or spoil it, and no more. `headrace chaos run` is one.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.daemon import check_socket, peer_user, short_path
from headrace.transport import LinkRefusedError
from headrace.worker.membership import join_address

VARIABLE = "HEADRACE_LINK_GATE"
#: Where gates are, for who asks for them.
HOST = "127.0.0.1"
#: Seconds that a maker of gates has to answer.
ANSWER_S = 5.0
#: Bytes of what it is asked, and of its answer.
ASK_BYTES_MAX = 512


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
        return [join_address(HOST, gate_port(str(port), near))]
    return [join_address(host, port) for host in hosts]


def gate_port(asked: str, maker: str) -> int:
    """The port of the gate that `maker`, a socket's path, has before what is asked for. Raises LinkRefusedError."""
    deadline = time.monotonic() + ANSWER_S
    try:
        check_socket(Path(maker))
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(ANSWER_S)
            asking.connect(short_path(Path(maker)))
            if peer_user(asking) not in (os.geteuid(), 0):
                raise LinkRefusedError(f"the gates at {maker} are user {peer_user(asking)}'s: unset {VARIABLE}")
            asking.sendall(f"{asked}\n".encode())
            answer = b""
            while not answer.endswith(b"\n") and len(answer) < ASK_BYTES_MAX:
                asking.settimeout(max(0.001, deadline - time.monotonic()))
                part = asking.recv(ASK_BYTES_MAX)
                if not part:
                    break
                answer += part
            return int(answer)
    except TimeoutError as error:
        raise LinkRefusedError(
            f"the gates at {maker} did not answer in {ANSWER_S:.0f} s; start them, or unset {VARIABLE}"
        ) from error
    except ValueError as error:
        raise LinkRefusedError(f"the gates at {maker} did not answer with a port: {error}") from error
    except OSError as error:
        raise LinkRefusedError(f"no gates are asked at {maker}: {error}; start them, or unset {VARIABLE}") from error
