"""A gate before a task's links: something that forwards UDP, and that other tasks are told of in the task's place.

`HEADRACE_LINK_GATE=HOST:PORT` in a worker's environment names who makes gates: it is sent a task's port in decimal
digits, and answers with that of the gate on its own host. What passes is encrypted from task to task, so a gate can
delay, lose or spoil it, and no more. `headrace chaos run` is one.
"""

from __future__ import annotations

import os
import socket

from headrace.transport.errors import LinkRefusedError

VARIABLE = "HEADRACE_LINK_GATE"
#: Seconds for one answer, and how often it is asked for.
ANSWER_S = 1.0
ASKED_MAX = 5


def gate_before(port: int) -> str:
    """Where others find a task that listens on a UDP port of this host, as host:port; "" where there is no gate.

    Raises LinkRefusedError where one is named and does not answer.
    """
    maker = os.environ.get(VARIABLE, "")
    if not maker:
        return ""
    host, _, maker_port = maker.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(ANSWER_S)
        for _ in range(ASKED_MAX):
            try:
                asking.sendto(str(port).encode(), (host, int(maker_port)))
                return f"{host}:{int(asking.recv(64))}"
            except (TimeoutError, ConnectionError):
                continue
            except ValueError as error:
                raise LinkRefusedError(f"{VARIABLE}={maker}: it did not answer with a port: {error}") from error
    raise LinkRefusedError(f"{VARIABLE}={maker}: no answer in {ASKED_MAX * ANSWER_S:.0f} s; start it, or unset it")
