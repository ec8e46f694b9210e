"""What must hold of duplicates: invariants 9, 10 and 11 of docs/design/ledger.md, after each entry and each answer.

Which records are kept is the checker's own knowledge, from the shards that entries name; what an index should hold
follows from that, and from what its decider was seen to let through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.chaos.sim.world import Name, Part, SimulatedTexts, ViolationError, ordinals
from headrace.controller.core.messages import Records


class Verdicts:
    """The judge of one dataset's duplicates."""

    def __init__(self, texts: SimulatedTexts, stages: int = 1) -> None:
        self._texts, self._stages = texts, range(stages)
        #: The first entry that keeps a record, and the record that has a key.
        self._kept: dict[Name, int] = {}
        #: Records that a dedup stage let through, and that a stage behind it dropped, with the epochs of that.
        self._dropped: set[tuple[Name, int, int]] = set()
        self._holders: dict[int, Name] = {}
        #: Who decides in an epoch at a stage, and what is let through there, less what was released.
        self._deciders: dict[tuple[int, int], str] = {}
        self._granted: dict[tuple[int, int], set[Name]] = {}
        #: The entry that raised an epoch, where its number is that of another.
        self._raised: dict[int, int] = {}
        #: How many records the index of an epoch is begun with.
        self._loaded: dict[tuple[int, int], int] = {}

    def raised(self, number: int, epoch: int) -> None:
        """An entry has raised the epoch."""
        self._raised[epoch] = number

    def _position(self, epoch: int) -> int:
        return self._raised.get(epoch, epoch)

    def closed(self, number: int, epoch: int, parts: Sequence[Part]) -> None:
        """9, 10: what an entry closes as kept shares no key; what it closes as a duplicate names one that stands."""
        position = self._position(epoch)
        granted = [self._granted.get((epoch, stage), set[Name]()) for stage in self._stages]
        for part in parts:
            for row in ordinals(part.kept, part.item.first):
                name = part.item.fragment, row
                if any(name not in mine for mine in granted) and self._kept.get(name, position + 1) > position:
                    raise ViolationError(11, f"entry {number} keeps {_told(name)}, which nobody let through")
                self._hold(number, name)
            late = ordinals(part.standing & ~part.kept, part.item.first)
            dropped = [(row, len(granted)) for row in late] + [(row, stage) for row, _, stage in part.duplicates]
            for row, behind in dropped:
                name = part.item.fragment, row
                self._dropped.update((name, stage, epoch) for stage in range(behind) if name in granted[stage])
        for part in parts:
            for row, target, stage in part.duplicates:
                name = part.item.fragment, row
                if not self._stands(target, epoch, stage):
                    raise ViolationError(
                        9, f"entry {number}: {_told(name)} is a duplicate of {_told(target)}, which is not kept"
                    )
                if not self._texts.alike(name, target, stage):
                    raise ViolationError(8, f"entry {number}: {_told(name)} is no duplicate of {_told(target)}")

    def proposed(self, who: str, epoch: int, needs: Records) -> None:
        """9: what the duplicates of a proposal name besides its own records is kept by an entry already."""
        for fragment, rows in needs:
            for row in rows:
                if not any(self._stands((fragment, row), epoch, stage) for stage in self._stages):
                    raise ViolationError(
                        9, f"{who} proposes a duplicate of {_told((fragment, row))}, which no entry keeps"
                    )

    def _stands(self, name: Name, epoch: int, stage: int) -> bool:
        return name in self._kept or (name, stage, epoch) in self._dropped

    def _hold(self, number: int, name: Name) -> None:
        self._kept.setdefault(name, number)
        for key in (key for stage in self._stages for key in self._texts.keys(name, stage)):
            holder = self._holders.setdefault(key, name)
            if holder != name:
                raise ViolationError(10, f"entry {number}: {_told(holder)} and {_told(name)} share a key, both kept")

    def begun(self, who: str, epoch: int, stage: int, held: Mapping[Name, object]) -> None:
        """11: an index begins with the records that were kept up to its epoch's position."""
        position = self._position(epoch)
        wanted = {name for name, number in self._kept.items() if number <= position}
        if held.keys() != wanted:
            wrong = _told(min(held.keys() ^ wanted))
            raise ViolationError(
                11, f"the index of {who} begins with {len(held)} of {len(wanted)} records; see {wrong}"
            )
        self._loaded[epoch, stage] = len(held)

    def granted(self, who: str, epoch: int, stage: int, through: Iterable[Name], held: Mapping[Name, object]) -> None:
        """11: one decides at a stage in an epoch; its index holds what was kept before and what it has let through."""
        decider = self._deciders.setdefault((epoch, stage), who)
        if decider != who:
            raise ViolationError(11, f"{who} decides in epoch {epoch}, where {decider} has")
        mine, position = self._granted.setdefault((epoch, stage), set[Name]()), self._position(epoch)
        for name in through:
            if self._kept.get(name, position + 1) > position:
                mine.add(name)
            if name not in held:
                raise ViolationError(11, f"the index of {who} does not hold the keys of {_told(name)}")
        if len(held) != (loaded := self._loaded[epoch, stage]) + len(mine):
            raise ViolationError(
                11, f"the index of {who} holds {len(held)} records: {loaded} loaded, {len(mine)} claimed"
            )

    def released(self, who: str, epoch: int, stage: int, name: Name) -> None:
        """11: nobody lets go of the claim of a record that is kept."""
        if name in self._kept:
            raise ViolationError(11, f"{who} lets go of the claim of {_told(name)}, which is kept")
        if self._deciders.get((epoch, stage)) == who:
            # A fenced decider in the place of a lost one has nothing to release; the lost one may serve on, unheard.
            self._granted.get((epoch, stage), set[Name]()).discard(name)


def _told(name: Name) -> str:
    return f"record {name[1]} of fragment {name[0].hex()[:8]}"
