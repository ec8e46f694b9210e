"""What near duplicates lean on, remembered for as long as one of several sinks may have them read again.

A judge weighs what two texts share by what it has seen, so that it may say otherwise of a record that comes again. One
sink would keep then what the others call a duplicate, and a third record could lean there on one that is not kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.stages.dedup.key_index import Match
from headrace.store.shards import RecordName

#: Verdicts that are remembered, the newest: 40 MiB. Older ones are judged anew.
VERDICTS_MAX = 1 << 17


class NearVerdicts:
    """The newest near duplicates, each with what it was found to be a duplicate of."""

    def __init__(self) -> None:
        self._matches: dict[tuple[bytes, int], Match] = {}

    def known(self, fragment: bytes, rows: Any) -> dict[int, Match]:
        """Of records `rows` `[n]` of a fragment those that are remembered, by their place among them."""
        matches = self._matches
        found = ((place, matches.get((fragment, row))) for place, row in enumerate(rows.tolist() if matches else ()))
        return {place: match for place, match in found if match is not None}

    def note(self, fragment: bytes, rows: Any, matches: Sequence[Match | None]) -> None:
        """Remember the near duplicates among these records."""
        for row, match in zip(rows.tolist(), matches, strict=True):
            if match is not None and match.near:
                self._matches[fragment, row] = match
        self._let_go()

    def learn(self, matches: Mapping[RecordName, Match]) -> None:
        """Remember what a sink has closed, so that what they lean on is kept."""
        for name, match in matches.items():
            if match.near:
                self._matches[name.fragment, name.row] = replace(match, settled=True)
        self._let_go()

    def forget(self, names: Collection[RecordName]) -> None:
        """Records are not kept after all: what leans on them is judged anew."""
        gone = set(names)
        self._matches = {record: match for record, match in self._matches.items() if match.name not in gone}

    def _let_go(self) -> None:
        while len(self._matches) > VERDICTS_MAX:
            del self._matches[next(iter(self._matches))]
