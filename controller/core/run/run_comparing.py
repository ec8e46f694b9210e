"""A run's objects that were read and stand in another version: what follows from comparing them."""

from __future__ import annotations

from headrace.controller.core.run.input import ChangedInput, Compared, Finding, said_of
from headrace.controller.core.run.run_base import RunBase
from headrace.store import counted
from headrace.store.ledger import FragmentsListed, VersionSeen

#: Objects that are named at the end of a run.
ALTERED_SHOWN = 5


class Altered(RunBase):
    """From a listing that shows another version of what was read, to what is done about it."""

    def _take_compared(self) -> None:
        """Do as the run was asked about what has been compared; meanwhile nothing is read of it."""
        for state in self.listing.comparing.take_met():
            self.intake.withhold(state.fragment.id)
        for item in self.listing.comparing.take():
            if item.finding is Finding.OTHER:
                self._is_another(item)
                continue
            fresh = self.listing.add(item.behind()) if item.finding is Finding.GROWN else ()
            listed = (FragmentsListed(tuple(fresh)),) if fresh else ()
            self.leadership.submit(VersionSeen(item.stage, item.uri, item.version, True), *listed)

    def _version_seen(self, change: VersionSeen) -> None:
        """An object is known to be the same in another version: what is open of it is read under that."""
        for state in self.listing.comparing.tile_of(change) if change.same else ():
            if self.intake.release(state.fragment.id):
                self._dirty = True

    def _is_another(self, item: Compared) -> None:
        for state in item.tile:
            if not state.done(self.sinks):
                self._halt_fragment(state.fragment.id, f"{item.uri} has changed since it was listed: {item.why}")
        if self._changed_input is ChangedInput.HALT:
            self._altered.append(item)
        elif self._changed_input is ChangedInput.DROP:
            self.listing.note_passed(item)
            self.leadership.submit(VersionSeen(item.stage, item.uri, item.version, False))
        else:
            self.listing.note_repeated(item)
            self.leadership.submit(FragmentsListed(tuple(self.listing.add(item.listed))))

    def _why_altered(self) -> str:
        """What is said at the end of a run that found other bytes where it had read."""
        if not self._altered:
            return ""
        objects = counted(
            len(self._altered), "object that was read has changed since", "objects that were read have changed since"
        )
        return (
            f"{objects}: {said_of(self._altered, ALTERED_SHOWN)}. All else is closed. Put the old ones back and run "
            "again, or choose: --changed-input drop goes on without what they hold now, --changed-input reread reads "
            "them whole, beside what is closed of the old ones: a record that stands in both is then in the dataset "
            "twice, unless a dedup stage finds it"
        )

    def _halt_fragment(self, fragment: bytes, why: str) -> None:
        """A fragment cannot be read as it was listed: go on without it, and settle it when all else is."""
        self.intake.halt(fragment)
        if not self.ledger.fragments[fragment].done(self.sinks):
            self._changed[fragment] = why
            self._settled = False
