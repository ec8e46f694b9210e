"""Which segments of a spool a dataset has closed: these may go, and make room for what is pushed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headrace.pipeline import Pipeline, StageKind
from headrace.stages.sources.objects import to_path
from headrace.store import open_store
from headrace.store.ledger import LedgerState, Log, fold_log


class Releases:
    """Follows the ledger of one dataset. Its verbs raise StoreError, FormatError, EntryError and FoldError."""

    def __init__(self, dataset: str, folder: Path) -> None:
        self._log = Log(open_store(dataset))
        self._folder = folder.absolute()
        self._ledger = LedgerState()
        self._told: set[bytes] = set()

    def closed(self) -> list[str]:
        """The names of the segments that have become done since the last call, at every sink of the pipeline."""
        fold_log(self._log, self._ledger)
        return list(self._done())

    def _done(self) -> Iterator[str]:
        if not self._ledger.pipeline:
            return
        graph = Pipeline.from_dict(self._ledger.pipeline)
        sinks = tuple(stage.name for stage in graph.of_kind(StageKind.SINK))
        for name, state in self._ledger.fragments.items():
            if name in self._told or not state.done(sinks):
                continue
            self._told.add(name)
            path = Path(to_path(state.fragment.uri))
            if path.parent == self._folder:
                yield path.name
