"""Join tokens on their way into the cluster's log: each is spent once, by the key that the entry names."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.controller.core.leadership import Leadership
from headrace.controller.core.messages import AnswerRequest, Command
from headrace.store.cluster_changes import TokenSpent
from headrace.store.cluster_fold import ClusterState

SPENT = "another node has joined with this token; make another with `headrace cluster token`"


@dataclass(frozen=True, slots=True)
class TokenOffered:
    """A node wants to join with a token. `request` is returned with the answer."""

    request: int
    token: str
    worker: str
    #: The fingerprint of the node's key.
    key: str


class Tokens:
    """The offers that wait for their entry."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[TokenOffered]] = {}

    def offered(self, event: TokenOffered, log: Leadership[ClusterState]) -> list[Command]:
        """Answer an offer that the log decides, and have the log decide the others."""
        spent = log.ledger.tokens.get(event.token)
        if spent is not None:
            return [_answer(event, spent)]
        waiting = self._waiting.setdefault(event.token, [])
        waiting.append(event)
        if len(waiting) == 1:
            log.submit(TokenSpent(event.token, event.worker, event.key))
        return []

    def spent(self, change: TokenSpent) -> list[Command]:
        """An entry is durable: answer all who wait for it."""
        return [_answer(event, change) for event in self._waiting.pop(change.token, [])]

    def drop(self, reason: str) -> list[Command]:
        """This controller leads no more; the nodes ask the one that does."""
        events = [event for waiting in self._waiting.values() for event in waiting]
        self._waiting.clear()
        return [AnswerRequest(event.request, accepted=False, reason=reason) for event in events]


def _answer(event: TokenOffered, spent: TokenSpent) -> AnswerRequest:
    mine = spent.key == event.key
    return AnswerRequest(event.request, accepted=mine, reason="" if mine else SPENT)
