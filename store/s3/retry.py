"""Asking an endpoint until it answers: what answers mean, attempts, delays, the breaker, and why it was given up.

How long to go on asking a store that fails: delays between attempts, and a breaker for the endpoint. Both are plain
machines without a clock or chance of their own: `now` in seconds of a monotonic clock and `chance` in [0, 1) are
arguments. Delays have full jitter (uniform between zero and a ceiling that doubles), which spreads a herd better than
a fixed delay with some noise (Brooker, "Exponential Backoff And Jitter", AWS 2015).
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from headrace.store import StoreRefused, StoreStalled, StoreUnavailable
from headrace.store.s3.connection import Answer, BadXml, NoAnswer, S3Target, Wire, read_xml


class AnswerKind(Enum):
    """The few things that an answer can mean to its retrier."""

    DONE = "done"
    #: No such object (or, where the answer has no body, perhaps no such bucket).
    MISSING = "missing"
    #: The condition that was sent does not hold: an object stands there.
    EXISTS = "exists"
    #: The range starts behind the object's end.
    PAST_END = "past end"
    #: Not now; ask again.
    AGAIN = "again"
    #: The credentials ran out; fetch new ones and ask again.
    EXPIRED = "expired"
    #: Not until there is room.
    FULL = "full"
    #: Not at all; asking again changes nothing.
    REFUSED = "refused"


#: Where an error begins. AWS and MinIO send blanks while they put a large upload together, and then what came of it.
_ERROR = re.compile(rb"\s*(?:<\?xml[^>]*\?>\s*)?(?=<Error[\s>])")

_AGAIN_STATUS = {408, 409, 425, 429, 500, 502, 503, 504}
#: Codes that may come with other statuses: a busy server, or a body that was damaged on its way.
_AGAIN_CODES = {
    *("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted", "ThrottlingException"),
    *("ConditionalRequestConflict", "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch", "InvalidDigest"),
    *("RequestTimeoutException", "TooManyRequests", "Throttling", "XAmzContentChecksumMismatch"),
}
_FULL_STATUS = 507
_FULL_CODES = {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}
_BY_STATUS = {304: AnswerKind.EXISTS, 404: AnswerKind.MISSING, 412: AnswerKind.EXISTS, 416: AnswerKind.PAST_END}

_CREDENTIALS = "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile that the URI names"
_REMEDIES = {
    "InvalidAccessKeyId": f"the endpoint does not know the access key; {_CREDENTIALS}",
    "SignatureDoesNotMatch": f"the secret key does not belong to the access key; {_CREDENTIALS}",
    "InvalidToken": f"the session token is not valid; {_CREDENTIALS}",
    "ExpiredToken": f"the session token has expired; {_CREDENTIALS}",
    "AccessDenied": "these credentials have no right to this; grant them reading, writing and listing of the prefix",
    "RequestTimeTooSkewed": "this host's clock differs from the endpoint's by more than 15 minutes; set the clock",
    "EntityTooLarge": "the object is larger than the endpoint takes; make shards smaller",
    "QuotaExceeded": "the quota is used up; raise it or free space",
    "XMinioAdminBucketQuotaExceeded": "the bucket's quota is used up; raise it or free space",
    "XMinioStorageFull": "the endpoint's disks are full; free space",
}


def code_of(answer: Answer) -> str:
    """The error code of an answer, such as `NoSuchKey`; "" where there is none.

    An answer to HEAD has no body; MinIO says it in a header.
    """
    return _element(answer, "Code") or answer.headers.get("x-minio-error-code", "")


def outcome_of(answer: Answer) -> AnswerKind:
    """Decide what an answer means. A 200 may carry an error in its body (a completed multipart upload's does).

    An answer to HEAD does not say that the session token has expired: AWS then answers 400 and nothing else.
    """
    code = code_of(answer)
    if answer.status in (200, 204, 206) and not code:
        return AnswerKind.DONE
    if code == "NoSuchBucket":
        return AnswerKind.REFUSED
    if code in ("ExpiredToken", "ExpiredTokenException"):
        return AnswerKind.EXPIRED
    if answer.status == 400 and not code and not answer.body:
        return AnswerKind.EXPIRED
    if code in _FULL_CODES or answer.status == _FULL_STATUS:
        return AnswerKind.FULL
    if code in _AGAIN_CODES or answer.status in _AGAIN_STATUS:
        return AnswerKind.AGAIN
    if answer.status == 404 and code not in ("", "NoSuchKey", "NoSuchUpload", "NotFound"):
        return AnswerKind.REFUSED
    return _BY_STATUS.get(answer.status, AnswerKind.REFUSED)


def problem_of(answer: Answer) -> str:
    """An answer that is a failure, in a few words: `it answered 503 SlowDown`."""
    code = code_of(answer)
    return f"it answered {answer.status}{' ' + code if code else ''}"


def remedy_of(answer: Answer, target: S3Target) -> str:
    """What to do about an answer that asking again will not change."""
    code = code_of(answer)
    region = _element(answer, "Region") or answer.headers.get("x-amz-bucket-region", "")
    if code == "NoSuchBucket":
        return no_bucket(target)
    if region and region != target.region:
        return f"the bucket is in region {region} and not {target.region}: add ?region={region} or set AWS_REGION"
    if answer.status in (301, 302, 307, 308):
        return "the endpoint sends us elsewhere; correct the endpoint, the region, or ?style=path"
    if answer.status in (401, 403) and code not in _REMEDIES:
        return f"access was denied; {_CREDENTIALS}"
    if answer.status == 400 and not code:
        return f"most likely the session token has expired, or the region {target.region} is wrong; correct them"
    text = _element(answer, "Message")
    return _REMEDIES.get(code, f"{text.rstrip('.') or 'no reason was given'}; see the endpoint's log")


def no_bucket(target: S3Target) -> str:
    """The remedy where the bucket does not exist."""
    return f"there is no bucket {target.bucket!r} at {target.where}: create it, or correct the URI"


def _element(answer: Answer, name: str) -> str:
    """The text of a direct child of an `<Error>` body."""
    found = _ERROR.match(answer.body) if answer.status != 206 else None
    if found is None:
        return ""
    with contextlib.suppress(BadXml):
        for child in read_xml(answer.body[found.end() :]):
            if child.tag.rpartition("}")[2] == name:
                return (child.text or "").strip()
    return ""


#: The ceiling of the first delay and of all later ones.
DELAY_FIRST_S = 0.1
DELAY_S_MAX = 5.0
#: One operation on a store that has answered before is given up after this: a store that restarts is back by then.
RETRY_S_MAX = 120.0
#: One operation on a store that this process has never reached: most likely its address is wrong.
FIRST_CONTACT_S = 10.0

#: Failures in a row, of all threads together, that open the breaker.
FAILURES_TO_OPEN = 10
#: How long an open breaker holds all back before it lets one through to look.
OPEN_S = 2.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When an operation tries again, and when it gives up."""

    delay_first_s: float = DELAY_FIRST_S
    delay_s_max: float = DELAY_S_MAX
    retry_s_max: float = RETRY_S_MAX
    first_contact_s: float = FIRST_CONTACT_S

    def budget_s(self, was_reached: bool) -> float:
        """How long one operation may take, all its attempts together."""
        return self.retry_s_max if was_reached else min(self.first_contact_s, self.retry_s_max)

    def delay_s(self, failures: int, chance: float) -> float:
        """The delay before the next attempt, after so many failed ones (at least 1)."""
        # Above 2**20 the ceiling has long been reached, and a float would overflow in the end.
        ceiling = min(self.delay_s_max, self.delay_first_s * 2.0 ** min(failures - 1, 20))
        return float(ceiling * chance)


class BreakerState(Enum):
    """The states of a breaker; the table of its transitions is in `Breaker`."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Breaker:
    """Spares a failing endpoint: after failures in a row nobody asks it but one prober at a time.

    ====== ========================= =======
    from   on                        to
    ====== ========================= =======
    CLOSED the k-th failure in a row OPEN
    OPEN   `OPEN_S` gone, one asks   PROBING
    PROBING success                  CLOSED
    PROBING failure                  OPEN
    any    success                   CLOSED
    ====== ========================= =======

    A prober that never reports (its thread died) is replaced after `OPEN_S`. Not locked: the caller's business.
    """

    __slots__ = ("_failures", "_failures_to_open", "_open_s", "_since", "_state")

    def __init__(self, failures_to_open: int = FAILURES_TO_OPEN, open_s: float = OPEN_S) -> None:
        self._failures_to_open = failures_to_open
        self._open_s = open_s
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._since = 0.0

    @property
    def state(self) -> BreakerState:
        """The state as of the last call."""
        return self._state

    def wait_s(self, now: float) -> float:
        """How long the caller must hold back; at 0 it may go, and must report what came of it."""
        if self._state is BreakerState.CLOSED:
            return 0.0
        left = self._since + self._open_s - now
        if left > 0:
            return left
        self._state, self._since = BreakerState.PROBING, now
        return 0.0

    def succeeded(self) -> None:
        """The endpoint answered (a refusal is an answer too)."""
        self._state, self._failures = BreakerState.CLOSED, 0

    def failed(self, now: float) -> None:
        """The endpoint did not answer, or said that it cannot."""
        self._failures += 1
        if self._state is BreakerState.PROBING or self._failures >= self._failures_to_open:
            self._state, self._since = BreakerState.OPEN, now


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
        """What this process knows of the endpoint: a child after a fork starts with its own."""
        return self._own_health or _HEALTH.setdefault((os.getpid(), self.target.where, self.target.bucket), Health())

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
                if outcome in (AnswerKind.REFUSED, AnswerKind.EXPIRED, AnswerKind.FULL):
                    kind = StoreStalled if outcome is AnswerKind.FULL else StoreRefused
                    raise kind(
                        f"{self.target.uri}: cannot {what}: {problem_of(answer)}; {remedy_of(answer, self.target)}"
                    )
                if outcome is not AnswerKind.AGAIN:
                    return Reply(outcome, answer, failures)
                problem = problem_of(answer)
            failures += 1
            self._sleep(self._policy.delay_s(failures, self._pace.chance()), what, started, failures, problem)

    def send(self, what: str, method: str, key: str | None = None, *more: Any, **named: Any) -> Reply:
        """The same with a request of the wire: see `Wire.send`."""
        return self.ask(what, lambda: self.wire.send(method, key, *more, **named))

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
        if self.send(what, "HEAD").outcome is AnswerKind.MISSING:
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
        health = self.health
        while True:
            with health.lock:
                wait_s = health.breaker.wait_s(self._pace.clock())
            if wait_s <= 0:
                return
            self._sleep(wait_s, what, started, failures, problem)

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
