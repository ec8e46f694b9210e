"""Asking an endpoint until it answers: attempts, delays, the breaker, and the line that says why it was given up."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.store.contract import StoreRefused, StoreStalled, StoreUnavailable
from headrace.store.s3.answers import AnswerKind, no_bucket, outcome_of, problem_of, remedy_of
from headrace.store.s3.backoff import Breaker, RetryPolicy
from headrace.store.s3.connection import Answer, NoAnswer, S3Target, Wire

#: Seconds for which an operation has been tried in vain before it is told what the store's trouble is.
TROUBLE_S = 10.0


@dataclass(slots=True)
class Health:
    """What one process knows of one bucket behind one endpoint; shared by all its stores there."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    breaker: Breaker = field(default_factory=Breaker)
    #: Whether any answer ever came.
    was_reached: bool = False
    #: Whether an answer showed that the bucket exists.
    has_bucket: bool = False
    #: What the endpoint calls itself, such as "SeaweedFS 8000GB 4.48".
    server: str = ""
    #: Whether listings come folder by folder instead of in the order of keys; None until one was seen.
    lists_folders: bool | None = None
    #: Whether a conditional multipart upload lets exactly one win; None until it was tried.
    completes_once: bool | None = None
    #: Whether a write with `If-Match` lets exactly one win; None until it was tried.
    replaces_once: bool | None = None
    #: What has been tried in vain for TROUBLE_S, for people; "" since anything succeeded.
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Pace:
    """The clock, the way to wait, and chance: arguments, so that a minute of failure is tested in no time."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that needs no further asking."""

    outcome: AnswerKind
    answer: Answer
    #: Attempts before it that failed, each of which may have been carried out.
    failures: int


_HEALTH: dict[tuple[int, str, str], Health] = {}


def health_of(target: S3Target) -> Health:
    """The health of a target in this process: a child after a fork starts with its own."""
    return _HEALTH.setdefault((os.getpid(), target.where, target.bucket), Health())


class Retrier:
    """Makes requests on behalf of a store, and turns what stays a failure into an error with a remedy."""

    def __init__(self, target: S3Target, wire: Wire, retry_policy: RetryPolicy, pace: Pace) -> None:
        self.target = target
        self.wire = wire
        self._policy = retry_policy
        self._pace = pace
        # Stores with a clock of their own share nothing with those on the system's.
        self._own_health = None if pace == Pace() else Health()

    @property
    def health(self) -> Health:
        """What this process knows of the endpoint."""
        return self._own_health or health_of(self.target)

    def ask(self, what: str, attempt: Callable[[], Answer]) -> Reply:
        """Make attempts until one is answered for good. `what` is the deed, for messages: "get 'a/b'".

        Raises `StoreUnavailable` when patience is at its end (`StoreStalled` where the endpoint has answered before, or
        is full), `StoreRefused` where asking again is no use.
        """
        started = self._pace.clock()
        failures = 0
        renewed = False
        problem = "the breaker is open after earlier failures"
        while True:
            self._hold_back(what, started, failures, problem)
            try:
                answer = attempt()
            except NoAnswer as error:
                if error.remedy and not self.health.was_reached:
                    raise StoreRefused(f"{self.target.uri}: cannot {what}: {error}; {error.remedy}") from error
                problem = str(error)
                self._failed()
            else:
                outcome = outcome_of(answer)
                self._answered(answer, outcome)
                if outcome is AnswerKind.EXPIRED and not renewed:
                    renewed = True
                    self.wire.forget_credentials()
                    continue
                if outcome in (AnswerKind.REFUSED, AnswerKind.EXPIRED):
                    raise StoreRefused(
                        f"{self.target.uri}: cannot {what}: {problem_of(answer)}; {remedy_of(answer, self.target)}"
                    )
                if outcome is AnswerKind.FULL:
                    raise StoreStalled(
                        f"{self.target.uri}: cannot {what}: {problem_of(answer)}; {remedy_of(answer, self.target)}"
                    )
                if outcome is not AnswerKind.AGAIN:
                    return Reply(outcome, answer, failures)
                problem = problem_of(answer)
            failures += 1
            self._pause(what, started, failures, problem)

    def once(self, attempt: Callable[[], Answer]) -> tuple[AnswerKind, Answer] | None:
        """One attempt, whatever the breaker says; None where nothing came of it."""
        try:
            answer = attempt()
        except NoAnswer:
            return None
        return outcome_of(answer), answer

    def ensure_bucket(self, what: str) -> None:
        """Raise `StoreRefused` if there is no bucket: an answer without a body cannot tell that from a missing key."""
        if self.health.has_bucket:
            return
        if self.ask(what, lambda: self.wire.send("HEAD")).outcome is AnswerKind.MISSING:
            raise StoreRefused(f"{self.target.uri}: cannot {what}: {no_bucket(self.target)}")

    def _answered(self, answer: Answer, outcome: AnswerKind) -> None:
        health = self.health
        health.was_reached = True
        health.server = answer.headers.get("Server", health.server)
        if outcome is AnswerKind.DONE:
            health.has_bucket = True
        # A conflict is the answer of a healthy endpoint; only overload and inner faults count against it.
        if outcome is AnswerKind.AGAIN and answer.status != 409:
            self._failed()
            return
        with health.lock:
            health.breaker.succeeded()
            health.trouble = ""

    def _failed(self) -> None:
        health = self.health
        with health.lock:
            health.breaker.failed(self._pace.clock())

    def _hold_back(self, what: str, started: float, failures: int, problem: str) -> None:
        """Wait while the breaker is open."""
        health = self.health
        while True:
            with health.lock:
                wait_s = health.breaker.wait_s(self._pace.clock())
            if wait_s <= 0:
                return
            self._sleep(wait_s, what, started, failures, problem)

    def _pause(self, what: str, started: float, failures: int, problem: str) -> None:
        self._sleep(self._policy.delay_s(failures, self._pace.chance()), what, started, failures, problem)

    def _sleep(self, wait_s: float, what: str, started: float, failures: int, problem: str) -> None:
        waited = self._pace.clock() - started
        budget = self._policy.budget_s(self.health.was_reached)
        if waited + wait_s > budget:
            kind = StoreStalled if self.health.was_reached else StoreUnavailable
            raise kind(
                f"{self.target.uri}: cannot {what}: {problem}; asked {failures} times in {waited:.0f} s; "
                + (
                    f"see that {self.target.where} is up and not overloaded, then try again"
                    if self.health.was_reached
                    else f"see that {self.target.where} is the right endpoint and can be reached from this host"
                )
            )
        if waited >= TROUBLE_S and failures:
            self.health.trouble = (
                f"{self.target.uri}: cannot {what}: {problem}; asked {failures} times in {waited:.0f} s"
            )
        self._pace.sleep(wait_s)
