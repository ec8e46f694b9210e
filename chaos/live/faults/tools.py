"""Faults that are not signals: a disk that is full, a network and a store that misbehave. Each begins, and is ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.chaos.gates import (
    Affected,
    Impairment,
    NetworkFault,
    NetworkGates,
    NetworkNamespaces,
    S3Fault as StoreFault,
    S3Proxy,
    Trouble,
    Way,
)
from headrace.chaos.live.faults.disk import Disk
from headrace.chaos.live.scenario import NETWORK, STORE, Kind, Planned

_TROUBLES = {
    Kind.STORE_ERRORS: (StoreFault.BUSY, ""),
    Kind.STORE_SLOW: (StoreFault.SLOW, ""),
    Kind.STORE_OUTAGE: (StoreFault.GONE, ""),
    Kind.STORE_TORN: (StoreFault.TORN_UPLOAD, "PUT"),
    Kind.STORE_LOST_ANSWERS: (StoreFault.LOST_ANSWER, "PUT"),
}
_WAYS = {"links": Way.LINK, "control": Way.CONTROL}
#: The kinds that a tool makes.
TOOLED = frozenset({Kind.FULL_DISK, Kind.UNPLUG}) | NETWORK | STORE


@dataclass(frozen=True, slots=True)
class Begun:
    """A fault that goes on: what it affects, in words, and what ends it. `affected` is counted as it goes on."""

    victims: tuple[str, ...]
    end: Callable[[], None]
    affected: Counter[Affected] = field(default_factory=Counter[Affected])


@dataclass(frozen=True, slots=True)
class Tools:
    """What stands ready for one run. `workers` and `controllers` are those of its own cluster, by name."""

    disk: Disk | None = None
    gates: NetworkGates | None = None
    namespaces: NetworkNamespaces | None = None
    store: S3Proxy | None = None
    workers: Sequence[str] = ()
    controllers: Sequence[str] = ()

    def begin(self, planned: Planned) -> Begun:
        """Begin one of the faults TOOLED. Only those that the scenario has are asked for, and their tools are there."""
        if planned.kind is Kind.FULL_DISK:
            return self._fill()
        if planned.kind is Kind.UNPLUG:
            return self._unplug(planned)
        return self._trouble(planned) if planned.kind in STORE else self._impairment(planned)

    def _fill(self) -> Begun:
        disk = self.disk
        assert disk is not None
        disk.fill()
        return Begun(("the disk of the output",), disk.free)

    def _unplug(self, planned: Planned) -> Begun:
        namespaces = self.namespaces
        assert namespaces is not None
        name = self.workers[int(planned.pick * len(self.workers))]
        namespaces.unplug(name)
        return Begun((f"the cable of worker {name}",), lambda: namespaces.plug(name))

    def _trouble(self, planned: Planned) -> Begun:
        store = self.store
        assert store is not None
        fault, method = _TROUBLES[planned.kind]
        trouble = Trouble(fault, planned.share, method, planned.delay_s)
        store.begin(trouble)
        return Begun((f"{planned.share:.0%} of {method or 'all'} requests",), lambda: store.end(trouble))

    def _impairment(self, planned: Planned) -> Begun:
        gates = self.gates
        assert gates is not None
        way = _WAYS.get(planned.target)
        ends: tuple[str, ...] = ()
        if way is None:
            names = self.workers if planned.target == "worker" else self.controllers
            ends = (names[int(planned.pick * len(names))],)
        impairment = Impairment(NetworkFault(planned.kind.value), planned.share, planned.delay_s, way, ends)
        affected = gates.begin(impairment)
        what = " ".join((planned.target, *ends))
        said = what if planned.share == 1 else f"{planned.share:.1%} of {what}"
        return Begun((said,), lambda: gates.end(affected), affected)
