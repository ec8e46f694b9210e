"""What a store is asked for in vain is told while it is tried, and no longer."""

from __future__ import annotations

from headrace.chaos.gates.s3 import S3Fault, S3Proxy
from headrace.store.s3.retry import TROUBLE_S, Pace
from headrace.store.s3.store import S3Store
from tests.kits.store.s3_server import S3Server

MENDED_S = 4 * TROUBLE_S


class Clock:
    """A clock that moves only when someone waits; what the store says of itself at each such time."""

    def __init__(self, proxy: S3Proxy) -> None:
        self.now = 0.0
        self.store: S3Store | None = None
        self.told: list[tuple[float, str]] = []
        self._proxy = proxy

    def sleep(self, wait_s: float) -> None:
        assert self.store is not None
        self.told.append((self.now, self.store.capabilities.trouble()))
        self.now += wait_s
        if self.now > MENDED_S:
            self._proxy.mend()


def test_vain_requests_to_a_store_are_told_until_one_succeeds(s3_server: S3Server, proxy: S3Proxy) -> None:
    clock = Clock(proxy)
    store = clock.store = S3Store(
        s3_server.uri(endpoint=proxy.endpoint), pace=Pace(lambda: clock.now, clock.sleep, lambda: 0.5)
    )
    assert store.head("nothing") is None
    proxy.plan(S3Fault.BUSY, times=10_000)
    assert store.create("k", [b"x"]) is True
    early = [trouble for now, trouble in clock.told if now < TROUBLE_S]
    late = [trouble for now, trouble in clock.told if now >= TROUBLE_S]
    assert set(early) == {""}
    assert late
    assert all(trouble.startswith(f"{store.uri}: cannot write '") for trouble in late)
    assert all("/k': it answered 503 SlowDown; asked " in trouble for trouble in late)
    assert store.capabilities.trouble() == ""
