"""Who belongs to a cluster: join tokens, each slot spent once by the key that its entry names, and who is expelled.

An expulsion is of a name. From its entry on the certificates of that name are refused at every door, whatever their
dates, but for keys that have spent a token under the name behind it. So the log's order decides and no clock, and a
certificate that nobody remembers is refused too. A key that the member had when it was expelled lets it in no more.

| a key, under a name | shows a token that is not spent | shows its own certificate |
|---|---|---|
| that was never expelled | is let in | is accepted |
| that was expelled, of before | is refused | is refused |
| that was expelled, new | is let in | is accepted |

One that nobody knows in its role is expelled, since its certificate may have been issued elsewhere; the answer says
that it is not known, and which roles of that name stay.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from headrace.controller.core.log import Leadership
from headrace.controller.core.messages import AnswerRequest, Command, ExpelRequested, SpreadExpulsions, TokenOffered
from headrace.store.ledger import ClusterState, MemberExpelled, TokenSpent, is_of_expelled

SPENT = "another node has joined with this token; make another with `headrace cluster token`"
ALL_SPENT = "{} nodes have joined with this token, all that it lets in; make another with `headrace cluster token`"
OLD_KEY = "this node was expelled, and shows the key that it had: join with another --state folder, which is empty"
#: Names that can be expelled in one cluster.
EXPELLED_MAX = 4096
_ROLES = ("worker", "operator", "user", "viewer")
_MEMBER = re.compile(rf"({'|'.join(_ROLES)})/.{{1,64}}", re.DOTALL)


MemberEvent: TypeAlias = TokenOffered | ExpelRequested


class Members:
    """What waits for its entry. `noted` is who was expelled by the cluster's folder, for who has no log."""

    def __init__(self, noted: Mapping[str, Sequence[str]]) -> None:
        self.noted = {member: list(keys) for member, keys in noted.items()}
        self._offers: dict[str, list[TokenOffered]] = {}
        #: Each with the members that were seen when it was asked for.
        self._expulsions: deque[tuple[ExpelRequested, Collection[str]]] = deque()

    def handle(self, event: MemberEvent, log: Leadership[ClusterState] | None) -> list[Command]:
        """Answer what is known; have the log decide the rest. Without one the cluster's folder has decided."""
        if isinstance(event, TokenOffered):
            return self._offered(event, log) if log is not None else self._let_in(event)
        known = log.ledger.expelled if log is not None else self.noted
        if wrong := why_not_expelled(event.member, known):
            return [AnswerRequest(event.request, accepted=False, reason=wrong)]
        seen = _seen(event, log)
        if log is None:
            self.noted[event.member] = []
            return [_expelled(event, seen, known), SpreadExpulsions(event.member)]
        self._expulsions.append((event, seen))
        log.submit(MemberExpelled(event.member))
        return []

    def take_over(self, log: Leadership[ClusterState]) -> None:
        """What was noted in the cluster's folder before it had a log is to stand in the log."""
        for member in self.noted.keys() - log.ledger.expelled.keys():
            log.submit(MemberExpelled(member))

    def durable(self, change: TokenSpent | MemberExpelled, known: ClusterState) -> list[Command]:
        """An entry is durable: answer all who wait for it, and tell who has to know."""
        if isinstance(change, MemberExpelled):
            waiting = bool(self._expulsions) and self._expulsions[0][0].member == change.member
            answers = [_expelled(*self._expulsions.popleft(), known.expelled)] if waiting else []
            return [*answers, SpreadExpulsions(change.member)]
        told = [SpreadExpulsions()] if f"worker/{change.worker}" in known.expelled else []
        return [*told, *(_answer(event, change, known) for event in self._offers.pop(change.token, []))]

    def drop(self, reason: str) -> list[Command]:
        """This controller leads no more; who asked asks the one that does."""
        offers = (event for waiting in self._offers.values() for event in waiting)
        events: list[MemberEvent] = [*offers, *(event for event, _ in self._expulsions)]
        self._offers.clear()
        self._expulsions.clear()
        return [AnswerRequest(event.request, accepted=False, reason=reason) for event in events]

    def _offered(self, event: TokenOffered, log: Leadership[ClusterState]) -> list[Command]:
        slots = (event.token, *event.further)
        spent = [item for slot in slots if (item := log.ledger.tokens.get(slot)) is not None]
        own = next((item for item in spent if item.key == event.key), None)
        if own is not None or len(spent) == len(slots):
            return [_answer(event, own or spent[0], log.ledger)]
        if is_of_expelled(log.ledger.expelled, log.ledger.tokens.values(), event.worker, event.key):
            return [AnswerRequest(event.request, accepted=False, reason=OLD_KEY)]
        free = [slot for slot in slots if slot not in log.ledger.tokens]
        own_offer = (slot for slot in free if self._offers.get(slot) and self._offers[slot][0].key == event.key)
        # Where every slot is on its way to another key, its entry decides.
        slot = next(own_offer, None) or next((slot for slot in free if slot not in self._offers), free[0])
        waiting = self._offers.setdefault(slot, [])
        waiting.append(event)
        if len(waiting) == 1:
            log.submit(TokenSpent(slot, event.worker, event.key))
        return []

    def _let_in(self, event: TokenOffered) -> list[Command]:
        """The cluster's folder has it that this key is let in."""
        answer = AnswerRequest(event.request, accepted=True)
        let_in = self.noted.get(f"worker/{event.worker}")
        if let_in is None or event.key in let_in:
            return [answer]
        let_in.append(event.key)
        return [SpreadExpulsions(), answer]


def why_not_expelled(member: str, known: Mapping[str, object]) -> str:
    """Why nobody of that name, as role/name, can be expelled where these were; empty if it can be."""
    if not _MEMBER.fullmatch(member):
        return f"{member!r} is no member that can be expelled: workers and operators are, by their names"
    if len(known) >= EXPELLED_MAX and member not in known:
        return f"{EXPELLED_MAX} names were expelled from this cluster, which is the limit: make another cluster"
    return ""


def _seen(event: ExpelRequested, log: Leadership[ClusterState] | None) -> Collection[str]:
    """The members that the cluster's folder names, and those that spent a token."""
    spent = log.ledger.tokens.values() if log is not None else ()
    return event.noted | {f"worker/{item.worker}" for item in spent}


def _expelled(event: ExpelRequested, seen: Collection[str], expelled: Collection[str]) -> AnswerRequest:
    role, _, name = event.member.partition("/")
    if event.member in seen or role in seen:
        return AnswerRequest(event.request, accepted=True)
    unknown = f"no {role} {name!r} was ever seen in this cluster"
    has = [other for other in _ROLES if (member := f"{other}/{name}") in seen and member not in expelled]
    stays = f"; the {' and the '.join(has)} of that name keeps the access: expel each by its role" if has else ""
    return AnswerRequest(event.request, accepted=True, warnings=(unknown + stays,))


def all_spent(nodes: int) -> str:
    """Why a token for so many nodes lets no other in."""
    return SPENT if nodes == 1 else ALL_SPENT.format(nodes)


def _answer(event: TokenOffered, spent: TokenSpent, known: ClusterState) -> AnswerRequest:
    if spent.key != event.key:
        return AnswerRequest(event.request, accepted=False, reason=all_spent(1 + len(event.further)))
    expelled = spent.key not in known.expelled.get(f"worker/{spent.worker}", (spent.key,))
    return AnswerRequest(event.request, accepted=not expelled, reason=OLD_KEY if expelled else "")
