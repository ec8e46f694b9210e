"""Which documents were in step N, and in which steps was document X: from a loader's state alone.

Nothing was logged for it. The state names the datasets, the order and the journal, and all of these are functions with
an inverse: a step is a range of positions (`plan.Timeline`), a position is a row (`mixture.Mixture`), a row is pieces
of documents (the shard), and each of the three goes both ways.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.loader.dataset import Source, Sources, TokenDataset, known_part, open_dataset
from headrace.loader.order import (
    CONSTRUCTION,
    SCHEDULE,
    Difference,
    Event,
    LoaderError,
    OrderMode,
    Recut,
    Shuffle,
    Skipped,
    StateMismatch,
    Timeline,
    versions_at,
)
from headrace.loader.state import mixture_of, place_of, require_format, unpacked
from headrace.store.datasets import fold_ledger, hidden_at
from headrace.store.shards import column_names, read_table, rows_named

#: What is known of a document.
_FACTS = ("id", "source", "row")


@dataclass(frozen=True, slots=True)
class TracedPiece:
    """A piece of a document in a row: `start` and `length` in tokens."""

    document: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class TracedRow:
    """One row of one rank's batch, in the order of the batch; `position` is that in the pass."""

    rank: int
    row: int
    position: int
    source: str
    #: the key of the shard's tokens, and the row in them
    shard: str
    shard_row: int
    pieces: tuple[TracedPiece, ...]
    #: the hash of the pipeline that closed the shard: a dataset that was amended is of several
    pipeline: str = ""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """What one step read over all ranks. `taken` says whether the state lies behind it."""

    step: int
    pass_: int
    batch_size: int
    world_size: int
    taken: bool
    rows: tuple[TracedRow, ...]


@dataclass(frozen=True, slots=True)
class DocumentUse:
    """One time that a piece of a document is read, by the journal as it stands; `taken`: before the state."""

    step: int
    pass_: int
    rank: int
    row: int
    position: int
    start: int
    length: int
    taken: bool


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """A piece of a document as a step read it: the shard by its number over all sources, rows and tokens in it."""

    source: str
    shard: int
    #: the key of the shard's tokens
    tokens_key: str
    #: the row of the documents table
    document: int
    row: int
    start: int
    length: int
    #: the position in its pass
    position: int
    pipeline: str


class Trace:
    """Answers for one state. `sources` are the datasets, where they no longer lie where the state says.

    Raises LoaderError for what is no state, StateMismatch where a dataset is not the one that was read, and the
    store's errors.
    """

    def __init__(self, state: Mapping[str, Any], sources: Sequence[Source] | None = None) -> None:
        require_format(state)
        state = unpacked(state)
        self._place = place_of(state)
        try:
            listed = state.get("sources") or [{**state, "name": state["dataset"]}]
            weights = state.get("weights") or [1.0]
            order = state["order"]
            if sources is None:
                sources = [Source(one["uri"], weight, one["name"]) for one, weight in zip(listed, weights, strict=True)]
            self._samples = int(state["samples"])
            shuffle = Shuffle(
                int(state["seed"]), OrderMode(order["mode"]), order["window_blocks"] or 1, order["block_rows"] or 1
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise LoaderError(f"the state is malformed: {error!r}") from error
        if order.get("construction") != CONSTRUCTION:
            raise StateMismatch([Difference("order.construction", order.get("construction"), CONSTRUCTION)])
        if len(listed) > 1 and state.get("schedule") != SCHEDULE:
            raise StateMismatch([Difference("schedule", state.get("schedule"), SCHEDULE)])
        opened = [_opened(one.dataset) for one in sources]
        # as they lie: what of it a step saw depends on the version that was read then
        parts = [_as_read(dataset, bound) for dataset, bound in zip(opened, listed, strict=True)]
        self._sources = Sources([replace(one, dataset=part) for one, part in zip(sources, parts, strict=True)])
        #: a dataset that grew between two passes has a state of before, each time that it grew
        sources = [replace(one, dataset=dataset) for one, dataset in zip(sources, opened, strict=True)]
        self._before = [Trace(one, sources) for one in state.get("before", ())]
        self._check(listed)
        try:
            self._mixture = mixture_of(self._sources, shuffle, weights, self._samples, self._place.events)
            # what is wrong with the arguments of an order is said by the first
            self._mixture.order(0, 0)
        except (TypeError, ValueError) as error:
            raise LoaderError(f"the state is malformed: {error}") from error
        self._timeline = Timeline(self._samples, self._place.events)
        self._hidden: dict[tuple[int, int], Mapping[str, frozenset[int]]] = {}
        self._here = self._place.pass_ * self._samples + self._place.position

    @property
    def steps(self) -> int:
        """How many steps lie behind the state."""
        return self._place.step

    @property
    def places(self) -> dict[str, str]:
        """Where each dataset lies, by its name."""
        stores = (dataset.store.uri for dataset in self._sources.datasets)
        return dict(zip(self._sources.names, stores, strict=True))

    def step(self, number: int) -> TracedStep:
        """The rows and documents of step `number`; raises IndexError where there is no such step."""
        for earlier in self._before:
            if number < earlier.steps:
                return earlier.step(number)
        step = self._timeline.step(number)
        shards, rows = self._mixture.locate(step.positions)
        names = self._document_ids(shards, rows)
        traced: list[TracedRow] = []
        for at, (position, shard, row) in enumerate(
            zip(step.positions.tolist(), shards.tolist(), rows.tolist(), strict=True)
        ):
            rank, place = divmod(at, step.cut.batch_size)
            pieces = tuple(
                TracedPiece(names[shard, document], start, length)
                for start, length, document, _ in self._sources.shard(shard).row_pieces(row).tolist()
                if not self._retracted(shard, document, position)
            )
            source = int(self._mixture.source_of(np.array([shard]))[0])
            entry, name = self._sources.entry(shard)[1], self._sources.names[source]
            place_in_pass = position % self._samples
            traced.append(TracedRow(rank, place, place_in_pass, name, entry.tokens, row, pieces, entry.pipeline))
        return TracedStep(
            step=number,
            pass_=step.pass_,
            batch_size=step.cut.batch_size,
            world_size=step.cut.world_size,
            taken=number < self._place.step,
            rows=tuple(traced),
        )

    def journal(self) -> list[tuple[int, Event]]:
        """The journal's events, each with the first step that it holds for; of an older journal too."""
        found = [event for earlier in self._before for event in earlier.journal()]
        for event in self._place.events:
            position = event.first if isinstance(event, Skipped) else event.position
            found.append((event.step if isinstance(event, Recut) else self._timeline.step_from(position), event))
        return found

    def pieces_of(self, number: int, rows_max: int) -> list[ReadPiece]:
        """The pieces of documents that step `number` read, of at most `rows_max` of its rows, spread over them.

        What was retracted before is left out. Raises IndexError as `step`.
        """
        for earlier in self._before:
            if number < earlier.steps:
                return earlier.pieces_of(number, rows_max)
        positions = self._timeline.step(number).positions
        if positions.size > rows_max:
            positions = positions[np.linspace(0, positions.size - 1, rows_max).astype(np.int64)]
        shards, rows = self._mixture.locate(positions)
        found: list[ReadPiece] = []
        for position, shard, row in zip(positions.tolist(), shards.tolist(), rows.tolist(), strict=True):
            entry = self._sources.entry(shard)[1]
            source = self._sources.names[int(self._mixture.source_of(np.array([shard]))[0])]
            for start, length, document, _ in self._sources.shard(shard).row_pieces(row).tolist():
                if not self._retracted(shard, document, position):
                    place = position % self._samples
                    found.append(
                        ReadPiece(source, shard, entry.tokens, document, row, start, length, place, entry.pipeline)
                    )
        return found

    def tokens_of(self, pieces: Sequence[ReadPiece]) -> list[Any]:
        """The tokens [k] of each piece."""
        found: list[Any] = []
        for piece in pieces:
            shard = self._sources.shard(piece.shard)
            shard.wait(np.array([piece.row], dtype=np.int64))
            found.append(shard.tokens[piece.row, piece.start : piece.start + piece.length].copy())
        return found

    def facts_of(self, pieces: Sequence[ReadPiece]) -> list[dict[str, Any]]:
        """Id, source and ordinal of each piece's document, as far as the documents table has them."""
        wanted: dict[int, set[int]] = {}
        for piece in pieces:
            wanted.setdefault(piece.shard, set()).add(piece.document)
        facts: dict[tuple[int, int], dict[str, Any]] = {}
        for shard, documents in wanted.items():
            chosen = sorted(documents)
            dataset, entry = self._sources.entry(shard)
            names = [name for name in _FACTS if name in column_names(dataset.store, entry.documents)]
            rows = self._documents(shard, *names).take(pa.array(chosen, pa.int64())).to_pylist()
            facts.update({(shard, document): row for document, row in zip(chosen, rows, strict=True)})
        return [facts[piece.shard, piece.document] for piece in pieces]

    def document(self, name: str) -> list[DocumentUse]:
        """Every time that a piece of the document is read up to the end of the state's pass, in order: of a record that
        was split those of its parts, and of all documents of this id where several have it.

        Empty where no step reads it; raises LoaderError where no dataset has such a document. Reads the ids of all
        documents, so it takes a pass over the sidecars.
        """
        uses = self.uses(name)
        if uses is None:
            raise LoaderError(
                f"no dataset of this state has a document {name!r}; ids are a record's `id`, or <uri>#<n>"
            )
        return uses

    def uses(self, name: str) -> list[DocumentUse] | None:
        """Like `document`, and None where no dataset has such a document."""
        found = False
        uses = [use for earlier in self._before for use in earlier.uses(name) or ()]
        end = (self._place.pass_ + 1) * self._samples
        for shard, row in self._find(name):
            found = True
            for sequence, start, length in self._sources.shard(shard).document_pieces(row):
                for position in self._mixture.positions_of(shard, sequence, end):
                    if self._retracted(shard, row, position):
                        continue
                    use = self._use(position, start, length)
                    if use is not None:
                        uses.append(use)
        if not found:
            return None
        return sorted(uses, key=lambda use: (use.step, use.rank, use.row, use.start))

    def steps_of(self, documents: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], list[int]]:
        """The steps before the state that read any of these documents: rows by the key of the shard's tokens.

        What they read then counts, whatever was retracted since.
        """
        found: dict[tuple[str, int], set[int]] = {}
        for earlier in self._before:
            for name, steps in earlier.steps_of(documents).items():
                found.setdefault(name, set()).update(steps)
        for shard in range(sum(dataset.layout.shards for dataset in self._sources.datasets)):
            key = self._sources.entry(shard)[1].tokens
            for row in documents.get(key, ()):
                for sequence, start, length in self._sources.shard(shard).document_pieces(row):
                    for position in self._mixture.positions_of(shard, sequence, self._here):
                        if not self._retracted(shard, row, position):
                            use = self._use(position, start, length)
                            found.setdefault((key, row), set()).update([use.step] if use is not None else [])
        return {name: sorted(steps) for name, steps in found.items() if steps}

    def _use(self, position: int, start: int, length: int) -> DocumentUse | None:
        reading = self._timeline.reading(position)
        if reading is None:
            return None
        return DocumentUse(
            step=reading.step,
            pass_=reading.pass_,
            rank=reading.rank,
            row=reading.row,
            position=position % self._samples,
            start=start,
            length=length,
            taken=position < self._here,
        )

    def _retracted(self, shard: int, document: int, position: int) -> bool:
        """Whether the version that an absolute position was read at did not show a document."""
        versions = versions_at(position, self._place.events)
        if versions is None:
            return False
        source = int(self._mixture.source_of(np.array([shard]))[0])
        key = self._sources.entry(shard)[1].tokens
        return document in self._hidden_at(source, versions[source]).get(key, ())

    def _hidden_at(self, source: int, version: int) -> Mapping[str, frozenset[int]]:
        """The rows that a version of a source hid, by the ledger: of what a rollback undid since, no manifest tells."""
        found = self._hidden.get((source, version))
        if found is None:
            dataset = self._sources.datasets[source]
            state = fold_ledger(dataset.store)
            found = hidden_at(state, version) if state.number >= 0 else dataset.manifest.retracted_at(version)
            self._hidden[source, version] = found
        return found

    def _check(self, listed: Sequence[Mapping[str, Any]]) -> None:
        differences = [
            Difference(f"sources[{at}].layout_root", one.get("layout_root"), dataset.layout.root)
            for at, (one, dataset) in enumerate(zip(listed, self._sources.datasets, strict=True))
            if one.get("layout_root") != dataset.layout.root
        ]
        if differences:
            raise StateMismatch(differences)

    def _document_ids(self, shards: Any, rows: Any) -> dict[tuple[int, int], str]:
        """The ids of all documents with a piece in these rows, by (shard, row of the documents table)."""
        wanted: dict[int, set[int]] = {}
        for shard, row in zip(shards.tolist(), rows.tolist(), strict=True):
            pieces = self._sources.shard(shard).row_pieces(row)
            wanted.setdefault(shard, set()).update(pieces[:, 2].tolist())
        names: dict[tuple[int, int], str] = {}
        for shard, documents in wanted.items():
            chosen = sorted(documents)
            ids = self._documents(shard, "id").column("id").take(pa.array(chosen, pa.int64())).to_pylist()
            names.update({(shard, document): str(one) for document, one in zip(chosen, ids, strict=True)})
        return names

    def _find(self, name: str) -> Iterator[tuple[int, int]]:
        for number in range(sum(dataset.layout.shards for dataset in self._sources.datasets)):
            # several where ids are not unique, or where a stage split the record
            for row in np.flatnonzero(rows_named(self._documents(number, "id", "part"), name)).tolist():
                yield number, row

    def _documents(self, number: int, *columns: str) -> pa.Table:
        dataset, entry = self._sources.entry(number)
        return read_table(dataset.store, entry.documents, columns)


def _opened(dataset: TokenDataset | str | os.PathLike[str]) -> TokenDataset:
    return dataset if isinstance(dataset, TokenDataset) else open_dataset(os.fspath(dataset))


def _as_read(dataset: TokenDataset, bound: Mapping[str, Any]) -> TokenDataset:
    """The shards that a state knows, with all that was retracted from them since."""
    return (known_part(dataset, bound) or dataset).at_version(0)


def trace_step(state: Mapping[str, Any], step: int, sources: Sequence[Source] | None = None) -> TracedStep:
    """What step `step` (from 0) read, over all ranks. See `Trace`."""
    return Trace(state, sources).step(step)


def steps_of(
    state: Mapping[str, Any], documents: Mapping[str, Sequence[int]], sources: Sequence[Source] | None = None
) -> dict[tuple[str, int], list[int]]:
    """Which steps have read which of these documents. See `Trace`."""
    return Trace(state, sources).steps_of(documents)


def trace_document(
    state: Mapping[str, Any], document: str, sources: Sequence[Source] | None = None
) -> list[DocumentUse]:
    """In which steps the document of this id is read. See `Trace`."""
    return Trace(state, sources).document(document)
