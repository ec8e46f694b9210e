"""How whole a version is: whether its input was read to the end, and what is closed that it does not show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.store import counted
from headrace.store.ledger import LedgerState


@dataclass(frozen=True, slots=True)
class Completeness:
    """One version of a dataset; 0 where none is published, and then all that is closed is meant."""

    version: int
    #: Whether its input was read to the end, and all of it closed or given up.
    complete: bool
    #: Shards that are closed and that the newest version does not show; 0 for an older version.
    unshown: int
    #: Shards that a rollback hides from it.
    rolled_back: int = 0
    #: Why a gate holds the version after it.
    held: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """What a reader of the version should know, a sentence each without its stop; none where it is whole."""
        said = [f"version {self.version + 1} is held by its gate: {'; '.join(self.held)}"] if self.held else []
        if not self.version and self.held:
            return tuple(said)
        if not self.version:
            return ("no version is published yet: a run goes on, or ended before it had closed all of its input",)
        if not self.complete:
            said.append(
                f"version {self.version} is incomplete: its run ended before it had closed all of its input; "
                "the same run again goes on with it"
            )
        if self.unshown:
            shards = counted(self.unshown, "shard is", "shards are")
            said.append(f"{shards} closed that version {self.version} does not show: a run goes on, or was killed")
        if self.rolled_back:
            shards = counted(self.rolled_back, "shard is", "shards are")
            said.append(f"{shards} hidden by a rollback: `headrace dataset rollback` to a later version undoes it")
        return tuple(said)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        hidden: dict[str, Any] = {"held": list(self.held)} if self.held else {}
        hidden |= {"shards_unshown": self.unshown, "shards_rolled_back": self.rolled_back}
        return {"version": self.version, "version_complete": self.complete, **hidden}


def completeness_of(ledger: LedgerState, version: int | None = None) -> Completeness:
    """How whole a published version is; the newest one by default."""
    asked = ledger.version if version is None else version
    shown = ledger.published.get(asked)
    complete = shown is not None and shown.complete
    if asked != ledger.version:
        return Completeness(asked, complete, 0)
    return Completeness(asked, complete, ledger.unshown, ledger.rolled_back, ledger.held)
