"""Attending a controller: finding the one that leads, staying with it, and finding the next one when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from headrace.daemon import INSECURE, AddressError, Effects
from headrace.protos import control_pb2 as pb, control_pb2_grpc as rpc
from headrace.stages.shipping import Inherited
from headrace.worker.membership.credentials import open_channel
from headrace.worker.membership.member import Membership

logger = logging.getLogger("headrace.worker")

MESSAGE_BYTES_MAX = 64 << 20
#: Seconds between two heartbeats.
HEARTBEAT_S = 1.0
#: Seconds without a word from the controller after which it is given up; it sends a heartbeat a second.
SILENCE_S = 4.0
#: Seconds that a controller has to answer a registration.
WELCOME_S = 2.0
#: Seconds before the next controller is tried, doubled each time up to RECONNECT_S_MAX.
RECONNECT_S = 0.1
RECONNECT_S_MAX = 1.0


async def told_by(descriptor: int, preload: Callable[[Sequence[Inherited]], None]) -> str:
    """The controller's address, once it is known; lists of what tasks will inherit may come before it."""
    with os.fdopen(descriptor) as pipe:
        while (line := await asyncio.to_thread(pipe.readline)).startswith("["):
            preload([(str(module), dict(parameters)) for module, parameters in json.loads(line)])
    return line.strip()


class ControllerSession:
    """One worker's sessions, one after the other.

    `register` says who the worker is, `take` obeys one message, `outbox` holds what waits to be said. `refused` is the
    reason why no controller will ever take this worker; it ends `run`. `way_to` says where a controller is found.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        register: Callable[[], pb.Register],
        take: Callable[[pb.ToWorker], None],
        outbox: asyncio.Queue[pb.FromWorker],
        member: Membership | None = None,
        way_to: Callable[[str], str] = str,
    ) -> None:
        self.refused = ""
        self._way_to = way_to
        #: Whether a controller is connected now.
        self.welcomed = False
        self._addresses = list(dict.fromkeys(addresses))
        self._register, self._take, self._outbox = register, take, outbox
        self._member = member
        self._hint = ""
        self._speaking: asyncio.Task[None] | None = None
        self._effects = Effects()

    async def run(self) -> None:
        """Attend whoever leads, again and again, until this worker is refused."""
        delay, turn = RECONNECT_S, 0
        while not self.refused:
            address = self._hint or self._addresses[turn % len(self._addresses)]
            turn += not self._hint
            self._hint, self.welcomed = "", False
            ending = await self._session(address)
            if self.refused:
                return
            delay = RECONNECT_S if self.welcomed or self._hint else min(RECONNECT_S_MAX, delay * 2)
            logger.warning("controller %s: %s; trying again in %.1f s", address, ending, delay)
            await asyncio.sleep(delay)

    def channel(self, address: str) -> Any:
        """The way to a controller."""
        options = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.enable_http_proxy", 0),
        ]
        return open_channel(self._way_to(address), self._member, options)

    async def _session(self, address: str) -> str:
        """One session, to its end; why it ended.

        What a command has this worker do may raise OSError. That is no end of a session: who is registered again next
        would not tell of it.
        """
        try:
            register, opened = self._register(), self.channel(address)
        except (AddressError, OSError) as error:
            return str(error)
        async with opened as channel:
            stub = rpc.ControlStub(channel)  # type: ignore[no-untyped-call]
            call = stub.Attend()
            try:
                try:
                    async with asyncio.timeout(WELCOME_S):
                        await call.write(pb.FromWorker(register=register))
                except asyncio.InvalidStateError:
                    pass  # it has ended: the reading says why
                except TimeoutError:
                    return f"no word for {WELCOME_S:.0f} s"
                return await self._listen(call, address)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                    self.refused = str(error.details())
                return f"{error.code().name} {error.details()}"
            finally:
                await self._fall_silent()
                call.cancel()

    async def _listen(self, call: Any, address: str) -> str:
        while True:
            within_s = SILENCE_S if self.welcomed else WELCOME_S
            try:
                # Not wait_for, which forgets that it was cancelled where a message has just come (Python 3.11).
                async with asyncio.timeout(within_s):
                    message = await call.read()
            except TimeoutError:
                return f"no word for {within_s:.0f} s"
            if not isinstance(message, pb.ToWorker):  # the end of the stream
                return "it ended the session"
            kind = message.WhichOneof("message")
            if kind == "refusal":
                refusal = message.refusal
                if not refusal.elsewhere:
                    self.refused = refusal.reason
                elif refusal.leader and refusal.leader != address:
                    self._learn(refusal.leader)
                return str(refusal.reason)
            if kind == "welcome" and not self.welcomed:
                self.welcomed = True
                self._speaking = self._effects.start("the words to a controller", self._speak(call))
            self._take(message)

    def _learn(self, leader: str) -> None:
        """Who leads, by the word of one that does not; it is tried next.

        Nobody's word leads into plain TCP but that of whoever started this worker.
        """
        if leader.startswith(INSECURE) and not any(item.startswith(INSECURE) for item in self._addresses):
            logger.warning("the controller names a leader at %s, which this worker was not told to trust", leader)
            return
        if leader not in self._addresses:
            self._addresses.append(leader)
        self._hint = leader

    async def _speak(self, call: Any) -> None:
        """Say everything that waits. Only who was welcomed is told: another would refuse, and what it was told be lost.

        Nobody but the session that stands may take from the outbox, so this ends before the next one begins.
        """
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        message = await self._outbox.get()
                except TimeoutError:
                    message = pb.FromWorker(heartbeat=pb.Heartbeat(sent=time.monotonic_ns()))
                await call.write(message)

    async def _fall_silent(self) -> None:
        """The session is over. What was on its way is lost, which the next registration makes good."""
        speaking, self._speaking = self._speaking, None
        if speaking is not None:
            speaking.cancel()
            await asyncio.wait({speaking})  # to await it would also swallow a cancellation of our own
