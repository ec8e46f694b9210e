"""The agent of a worker that allows chaos: it does the faults that an operator asks of that worker.

    python -m headrace.chaos.agent --worker NAME --fd N

A process of its own, which the worker starts (worker/faults.py), so that a worker carries no faults in itself, and
that goes on while its worker is frozen or dead. Before the worker's tasks and its controllers stand gates of this
process. It ends when its worker has ended and nothing lasts any more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import os
import pathlib
import signal
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import setproctitle

from headrace.chaos.gates import Affected, Impairment, NetworkFault, NetworkGates, Way, holders
from headrace.chaos.live.faults import Handle, Process, ProcessRole, hold, parent_of
from headrace.chaos.live.scenario import FAULT_S_MAX
from headrace.chaos.process_faults import GRACE_S, PROCESS_KINDS, inject
from headrace.protos import control_pb2 as pb
from headrace.worker.membership import own_addresses
from headrace.worker.task import Channel, ChannelClosed, write_on

#: Faults that are remembered; the oldest is forgotten.
REMEMBERED_MAX = 4096
#: Generations between a task and its worker that are looked through.
ANCESTORS_MAX = 4
_WAYS = {"links": Way.LINK, "control": Way.CONTROL, "ways": None}
_NETWORK_FAULTS = {fault.value for fault in NetworkFault}


class Agent:
    """Does faults, each once. Called on the event loop's thread; `tell` puts an answer on its way."""

    def __init__(self, gates: NetworkGates, tell: Callable[[pb.FaultTold], None]) -> None:
        self._gates, self._tell = gates, tell
        self._known: dict[str, pb.FaultTold] = {}
        self._affected: dict[str, Counter[Affected]] = {}
        self._lasting: dict[str, asyncio.Task[None]] = {}

    def asked(self, fault: pb.FaultAsked) -> None:
        """Begin it, if it is new, or let it be over; and tell of it."""
        told = self._known.get(fault.fault)
        if told is None:
            why = f"worker {fault.worker}: it knows nothing of this fault"
            told = pb.FaultTold(fault=fault.fault, reason=why) if fault.end else self._begin(fault)
        if fault.end and fault.fault in self._lasting:
            self._lasting[fault.fault].add_done_callback(lambda _: self._say_affected(told))
            self._lasting[fault.fault].cancel()
        elif fault.end:
            self._say_affected(told)
        else:
            self._tell(told)

    def _say_affected(self, told: pb.FaultTold) -> None:
        """It is over: no victims any more, but what it affected."""
        answer = pb.FaultTold(fault=told.fault, accepted=told.accepted, reason=told.reason)
        for what, count in self._affected.get(told.fault, Counter[Affected]()).items():
            answer.struck[what.value] = count
        self._tell(answer)

    async def rest(self) -> None:
        """Return when nothing lasts any more: what is frozen goes on then."""
        if self._lasting:
            await asyncio.wait(set(self._lasting.values()))

    def _begin(self, fault: pb.FaultAsked) -> pb.FaultTold:
        told = pb.FaultTold(fault=fault.fault, accepted=True)
        if fault.kind in _NETWORK_FAULTS:
            impairment = Impairment(
                NetworkFault(fault.kind), fault.share, fault.delay_s, _WAYS.get(fault.target), tuple(fault.ends)
            )
            told.victims.append(f"{fault.kind} on {fault.target} of worker {fault.worker}")
            self._last(fault.fault, self._impairment(impairment, fault), told)
            return told
        if fault.kind not in PROCESS_KINDS:
            return pb.FaultTold(fault=fault.fault, reason=f"worker {fault.worker}: there is no fault {fault.kind!r}")
        handles = hold([Process(victim.pid, ProcessRole.OTHER, victim.title) for victim in fault.victims])
        if not handles:
            return pb.FaultTold(fault=fault.fault, reason=f"worker {fault.worker}: it has no such process")
        told.victims.extend(handle.process.title for handle in handles)
        self._last(fault.fault, self._strike(handles, fault), told)
        return told

    def _last(self, name: str, work: Coroutine[Any, Any, None], told: pb.FaultTold) -> None:
        """Remember a fault, and let it go on."""
        self._known[name] = told
        task = self._lasting[name] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._lasting.pop(name))
        if len(self._known) > REMEMBERED_MAX:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._affected.pop(oldest, None)

    async def _impairment(self, impairment: Impairment, fault: pb.FaultAsked) -> None:
        if impairment.way is not Way.LINK:
            await asyncio.sleep(GRACE_S)
        affected = self._affected[fault.fault] = self._gates.begin(impairment)
        try:
            await asyncio.sleep(min(fault.for_s, FAULT_S_MAX))
        finally:
            self._gates.end(affected)

    async def _strike(self, handles: Sequence[Handle], fault: pb.FaultAsked) -> None:
        if fault.target != "task":
            await asyncio.sleep(GRACE_S)
        await inject(handles, fault.kind, fault.for_s)


class Ends:
    """Who stands at an end of a connection that passes this host's gates: a worker of this host, else an address."""

    def __init__(self) -> None:
        self._own = frozenset(own_addresses())

    def whose(self, protocol: str, host: str, port: int) -> str:
        """The name of an end, by which `FaultAsked.ends` means it; "" for what on this host belongs to no worker."""
        found = ipaddress.ip_address(host.partition("%")[0])
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        address = mapped or found
        if not address.is_loopback and str(address) not in self._own:
            return str(address)
        for pid in holders(protocol, port, listening=False):
            if pid != os.getpid() and (name := _worker_of(pid)):
                return name
        return ""


def _worker_of(pid: int) -> str:
    """The name of the worker that a process is, or is a task of; "" for none."""
    for _ in range(ANCESTORS_MAX):
        with contextlib.suppress(OSError):
            title = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if title.startswith("headrace worker "):
                return title.split()[2]
        pid = parent_of(pid)
    return ""


async def attend(channel: Channel) -> None:
    """Do what the worker passes on, until it is gone."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def say(message: pb.FromAgent) -> None:
        with contextlib.suppress(ChannelClosed):
            channel.send(message.SerializeToString())
        write_on(channel)

    def readable() -> None:
        try:
            for data in channel.receive():
                agent.asked(pb.FaultAsked.FromString(data))
        except ChannelClosed:
            loop.remove_reader(channel.fileno())
            over.set()

    with NetworkGates(os.getpid(), whose=Ends().whose) as gates:
        agent = Agent(gates, lambda told: say(pb.FromAgent(told=told)))
        loop.add_reader(channel.fileno(), readable)
        say(pb.FromAgent(gates=gates.registry))
        await over.wait()
        await agent.rest()


def main(argv: Sequence[str] | None = None) -> int:
    """Be the agent of a worker until that has ended."""
    parser = argparse.ArgumentParser(prog="headrace agent")
    parser.add_argument("--worker", required=True)
    parser.add_argument("--fd", type=int, required=True)
    args = parser.parse_args(argv)
    setproctitle.setproctitle(f"headrace agent of {args.worker}")
    # What ends a worker and its tasks must leave time to let what is frozen go on.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(attend(Channel(socket.socket(fileno=args.fd))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
