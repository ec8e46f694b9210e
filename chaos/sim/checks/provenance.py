"""What must hold of input that changes while it is read: invariant 6 of docs/design/ledger.md.

A record has its ordinal in one version of its object. So what is closed was read under that version, no record is
closed under two names unless somebody asked for it, and only what was open of an object that changed is given up.
"""

from __future__ import annotations

from headrace.chaos.sim.checks.observed import Observed
from headrace.chaos.sim.world import Part, ViolationError
from headrace.controller.core.messages import ChangedInput
from headrace.store.ledger import (
    Fragment,
    FragmentDropped,
    FragmentsListed,
    FragmentState,
    LedgerState,
    Removed,
    VersionSeen,
)


class Provenance:
    """Where what the ledger names has come from."""

    def __init__(self, cluster: Observed, ledger: LedgerState) -> None:
        self._cluster, self._ledger = cluster, ledger
        self._by_uri: dict[str, list[FragmentState]] = {}
        #: The version that a fragment was read in, where nothing was closed of the one that it was listed in.
        self._read_in: dict[bytes, Fragment] = {}

    def change(self, number: int, change: object) -> None:
        """An entry is durable, and not folded yet."""
        if isinstance(change, FragmentsListed):
            for fragment in change.fragments:
                self._listed(number, fragment)
        elif isinstance(change, FragmentDropped):
            self._dropped(number, change)
        elif isinstance(change, VersionSeen):
            self._seen(number, change)

    def folded(self, change: object) -> None:
        """And now it is."""
        if isinstance(change, Removed):
            self._by_uri.clear()
        if isinstance(change, FragmentsListed):
            for fragment in change.fragments:
                self._by_uri.setdefault(fragment.uri, []).append(self._ledger.fragments[fragment.id])

    def read(self, number: int, part: Part) -> None:
        """6: the bytes of a closed range are those of the version that was listed."""
        version = self._read_in.get(part.item.fragment)
        writing = self._cluster.corpus.writings[part.item.fragment if version is None else version.id]
        if part.read_from != writing:
            uri = self._ledger.fragments[part.item.fragment].fragment.uri
            raise ViolationError(
                6, f"entry {number} closes records of {uri} as writing {writing}, read from {part.read_from}"
            )

    def _listed(self, number: int, fragment: Fragment) -> None:
        if ChangedInput.REREAD in self._cluster.operator.choices:
            return
        for state in self._by_uri.get(fragment.uri, ()):
            raise ViolationError(
                6,
                f"entry {number} lists version {fragment.version} of {fragment.uri}, and version "
                f"{state.fragment.version} was listed: nobody asked for both",
            )

    def _seen(self, number: int, change: VersionSeen) -> None:
        """6: what is not read for being the same is the same, and what is passed over was to be."""
        inputs, known = self._cluster.inputs, self._by_uri.get(change.uri, ())
        there = inputs.of_version(change.uri, change.version)
        same = any(inputs.holds_same(there, self._read_in.get(item.fragment.id, item.fragment)) for item in known)
        if change.same and not same:
            unread = [item.fragment for item in known if not any(item.closed.values()) and item.dropped is None]
            same = [item.size for item in unread] == [there.size]
            self._read_in.update((item.id, there) for item in unread)
        if change.same and not same:
            raise ViolationError(6, f"entry {number} takes {change.uri} for the same in version {change.version}")
        if not change.same and ChangedInput.DROP not in self._cluster.operator.choices:
            raise ViolationError(6, f"entry {number} passes {change.uri} over, and nobody chose that")

    def _dropped(self, number: int, change: FragmentDropped) -> None:
        state = self._ledger.fragments[change.fragment]
        uri = state.fragment.uri
        choice = ChangedInput.REREAD if change.reread else ChangedInput.DROP
        if choice not in self._cluster.operator.choices:
            raise ViolationError(6, f"entry {number} gives up {uri}, and nobody chose to {choice.value}")
        if uri not in self._cluster.inputs.disturbed:
            raise ViolationError(6, f"entry {number} gives up {uri}, which never changed")
        if state.done(self._cluster.corpus.sinks):
            raise ViolationError(6, f"entry {number} gives up {uri}, of which nothing is open")

    def finish(self) -> None:
        """5, 8: what was listed is closed or given up; what stands in the end was listed, unless it was given up."""
        corpus, ledger = self._cluster.corpus, self._ledger
        for state in ledger.fragments.values():
            ended = state.dropped is not None or state.count == corpus.records[state.fragment.id]
            if not ended or not state.done(corpus.sinks):
                raise ViolationError(5, f"{state.fragment.uri} is not done: {state}")
        for uri, fragment in self._cluster.inputs.standing.items():
            given_up = any(
                known.dropped is not None and not known.dropped.reread for known in self._by_uri.get(uri, ())
            )
            seen = ledger.seen.get((fragment.stage, uri))
            known = seen is not None and seen.version == fragment.version
            if fragment.id not in ledger.fragments and not given_up and not known:
                raise ViolationError(5, f"{uri} stands in version {fragment.version}, and was never listed")
        for sink in corpus.sinks:
            records = ledger.counts[sink].records if sink in ledger.counts else 0
            closed = sum(state.records_due(sink) for state in ledger.fragments.values())
            if records != closed:
                raise ViolationError(8, f"{records} verdicts of {sink} for {closed} records")
