"""Asking a server again until it answers, or until the patience of a RetryPolicy is at its end."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from headrace.store import StoreUnavailable
from headrace.store.s3 import RetryPolicy

#: Seconds after which a failing operation is logged; where the server has never answered, somebody waits for its first.
TROUBLE_S = 10.0
FIRST_TROUBLE_S = 1.0
#: Seconds that a server may ask for with Retry-After.
RETRY_AFTER_S_MAX = 60.0

logger = logging.getLogger("headrace.store")
_Answer = TypeVar("_Answer")


class TryAgain(Exception):  # noqa: N818 - named after what is so
    """An attempt failed, and the next one may not."""

    def __init__(self, problem: str, after_s: float = 0.0) -> None:
        self.after_s = min(after_s, RETRY_AFTER_S_MAX)
        super().__init__(problem)


class RemoteRetrier:
    """Makes attempts for one store."""

    def __init__(
        self,
        uri: str,
        policy: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._uri, self._policy = uri, policy or RetryPolicy()
        self._clock, self._sleep = clock, sleep
        self._was_reached = False

    def ask(self, what: str, attempt: Callable[[], _Answer]) -> _Answer:
        """What an attempt returns. Raises StoreUnavailable, and what an attempt raises beside TryAgain."""
        started, failures, is_told = self._clock(), 0, False
        while True:
            try:
                found = attempt()
            except TryAgain as error:
                failures += 1
                waited = self._clock() - started
                wait_s = max(error.after_s, self._policy.delay_s(failures, random.random()))
                if waited + wait_s > self._policy.budget_s(self._was_reached):
                    raise StoreUnavailable(
                        f"{self._uri}: cannot {what}: {error}; asked {failures} times in {waited:.0f} s; see that the "
                        "server is up and can be reached from this host, then try again"
                    ) from error
                if waited >= (TROUBLE_S if self._was_reached else FIRST_TROUBLE_S) and not is_told:
                    is_told = True
                    logger.warning("%s: cannot %s: %s; it is asked again", self._uri, what, error)
                self._sleep(wait_s)
            else:
                self._was_reached = True
                return found
