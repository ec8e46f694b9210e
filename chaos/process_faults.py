"""Process faults: one signal, or a stop that ends.

    python -m headrace.chaos.process_faults --pid N --kind freeze --for-s 2

The program injects one fault into one process. A controller that allows chaos starts it detached, to inject a fault
into itself (controller/effects/faults.py): the controller may be stopped or dead meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Sequence

import setproctitle

from headrace.chaos.live.faults import Handle, Process, ProcessRole, hold
from headrace.chaos.live.scenario import FAULT_S_MAX, SLOW_RUNS_S, SLOW_TURN_S, Kind

#: Seconds between the answer and a fault that may keep the answer from leaving.
GRACE_S = 0.2
PROCESS_KINDS = frozenset(kind.value for kind in (Kind.KILL, Kind.RESTART, Kind.FREEZE, Kind.SLOW))
_SIGNALS = {Kind.KILL: signal.SIGKILL, Kind.RESTART: signal.SIGTERM}


async def inject(handles: Sequence[Handle], kind: str, for_s: float) -> None:
    """Signal them; what is stopped goes on in the end. Closes the handles."""
    number, for_s = _SIGNALS.get(Kind(kind)), min(for_s, FAULT_S_MAX)
    try:
        _send(handles, number or signal.SIGSTOP)
        if kind == Kind.FREEZE.value:
            await asyncio.sleep(for_s)
        for _ in range(round(for_s / SLOW_TURN_S) if kind == Kind.SLOW.value else 0):
            await asyncio.sleep(SLOW_TURN_S - SLOW_RUNS_S)
            _send(handles, signal.SIGCONT)
            await asyncio.sleep(SLOW_RUNS_S)
            _send(handles, signal.SIGSTOP)
    finally:
        if number is None:
            _send(handles, signal.SIGCONT)
        for handle in handles:
            handle.close()


def _send(handles: Sequence[Handle], number: signal.Signals) -> None:
    for handle in handles:
        handle.send(number)


async def _after_a_while(handles: Sequence[Handle], kind: str, for_s: float) -> None:
    await asyncio.sleep(GRACE_S)
    await inject(handles, kind, for_s)


def main(argv: Sequence[str] | None = None) -> int:
    """Do one fault to one process."""
    parser = argparse.ArgumentParser(prog="headrace fault")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--kind", choices=sorted(PROCESS_KINDS), required=True)
    parser.add_argument("--for-s", type=float, default=0.0)
    args = parser.parse_args(argv)
    setproctitle.setproctitle(f"headrace fault: {args.kind} {args.pid}")
    # What ends the process must leave time to let it go on.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    handles = hold([Process(args.pid, ProcessRole.OTHER, f"process {args.pid}")])
    asyncio.run(_after_a_while(handles, args.kind, args.for_s))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
