"""What a command of the core ends as which raised: an event, whatever it was."""

from __future__ import annotations

import logging

from headrace.controller.core.messages import messages as core
from headrace.store import StoreError, StoreRefused, StoreStalled
from headrace.store.ledger import EntryError, FoldError, ForeignLog

logger = logging.getLogger("headrace.controller")


def outcome(command: core.Command, error: Exception) -> core.Event | None:
    """The event that a command ends as which raised; None for one that nobody waits for."""
    why, passes = in_words(error), isinstance(error, StoreStalled | TimeoutError)
    match command:
        case core.ReadLog():
            return core.LogUnreadable(command.log, why)
        case core.WriteEntry() if isinstance(error, StoreRefused):
            return core.EntryUnresolved(command.log, command.number, why, refused=True)
        case core.WriteEntry():
            return core.EntryFailed(command.log, command.number, why)
        case core.WriteSnapshot():
            logger.warning("snapshot %d of %s could not be written: %s", command.number, command.log, why)
            return core.SnapshotWritten(command.log, command.number, why)
        case core.WriteManifest():
            return core.ManifestWritten(command.log, command.term, why, passes)
        case core.AuditDataset():
            return core.DatasetAudited(command.log, command.term, command.final, error=why, stalled=passes)
        case core.TruncateLog():
            # What stands on is deleted after the next snapshot.
            logger.warning("%s could not be truncated up to entry %d: %s", command.log, command.upto, why)
            return None
        case _:
            return None


def in_words(error: Exception) -> str:
    """What an error says: those that are meant for people as they are."""
    if isinstance(error, ForeignLog):
        return f"{error}; another log stands there, name another folder"
    if isinstance(error, FoldError):
        return f"the ledger contradicts itself: {error}; run `headrace dataset verify`"
    if isinstance(error, (StoreError, EntryError, TimeoutError)):
        return str(error)
    return f"{type(error).__name__}: {error}; this is a defect of Headrace, see the controller's log"
