"""A UDP proxy that is a bad network: it delays, loses, doubles and reorders, and changes its address when told."""

import heapq
import random
import select
import socket
import threading
import time
from types import TracebackType
from typing import Self


class UdpProxy:
    """Stands between one client and the server at `target`; the client connects to `address`."""

    def __init__(
        self,
        target: tuple[str, int],
        *,
        delay_s: float,
        loss: float,
        doubled: float = 0.0,
        late: float = 0.0,
        seed: int = 1,
    ) -> None:
        self.target, self.delay_s, self.loss, self.doubled, self.late = target, delay_s, loss, doubled, late
        self.lost = self.carried = 0
        #: Nothing passes while it is set: a peer that has vanished.
        self.dark = threading.Event()
        self._random = random.Random(seed)
        self._front = self._bound()
        self._back = self._bound()
        self._client: tuple[str, int] | None = None
        self._flying: list[tuple[float, int, bytes, bool]] = []
        self._numbers = 0
        self._move = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        address: tuple[str, int] = self._front.getsockname()
        return address

    def change_address(self) -> None:
        """The server sees the client come from another port from now on, as behind a NAT that has forgotten it."""
        self._move.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)
        self._front.close()
        self._back.close()

    @staticmethod
    def _bound() -> socket.socket:
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        bound.bind(("127.0.0.1", 0))
        bound.setblocking(False)
        return bound

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._move.is_set():
                self._move.clear()
                self._back.close()
                self._back = self._bound()
            wait = self._flying[0][0] - time.monotonic() if self._flying else 0.02
            select.select([self._front, self._back], [], [], min(0.02, max(0.0, wait)))
            for source, to_server in ((self._front, True), (self._back, False)):
                self._take(source, to_server)
            while self._flying and self._flying[0][0] <= time.monotonic():
                _, _, data, to_server = heapq.heappop(self._flying)
                self._pass_on(data, to_server)

    def _take(self, source: socket.socket, to_server: bool) -> None:
        while True:
            try:
                data, address = source.recvfrom(65536)
            except (BlockingIOError, ConnectionError):
                return
            if to_server:
                self._client = address
            if self.dark.is_set() or self._random.random() < self.loss:
                self.lost += 1
                continue
            for _ in range(2 if self._random.random() < self.doubled else 1):
                delay_s = self.delay_s * (2 if self._random.random() < self.late else 1)
                self._numbers += 1
                heapq.heappush(self._flying, (time.monotonic() + delay_s, self._numbers, data, to_server))

    def _pass_on(self, data: bytes, to_server: bool) -> None:
        try:
            if to_server:
                self._back.sendto(data, self.target)
            elif self._client is not None:
                self._front.sendto(data, self._client)
            self.carried += 1
        except (BlockingIOError, ConnectionError):
            self.lost += 1
