"""A dataset as its ledger tells it: shards, balance, manifest, and how whole it is. Reading one changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.store import FormatError, NoDataset, ObjectStore, counted, open_store, whole_number
from headrace.store.datasets.manifest import MANIFEST_FORMAT
from headrace.store.ledger import (
    Balance,
    Closed,
    ClosedShard,
    EntryError,
    FoldError,
    ForeignLog,
    LedgerState,
    Log,
    StoredObject,
    balance_of,
    fold_log,
    lacks_input,
    main_sink,
)
from headrace.store.shards import read_plain_header

if TYPE_CHECKING:
    from headrace.store.datasets.verify import Report


#: The roles of a shard's objects (`StoredObject.role`) that the manifest names.
TOKENS: Final = "tokens"
DOCUMENTS: Final = "documents"
VERDICTS: Final = "verdicts"
#: Since which version rows of a table of documents are shown no more, and the rows.
Retraction = tuple[int, list[int]]


def main_object(closed: Closed) -> StoredObject | None:
    """The object by whose key rows of a shard are retracted: its tokens, else its documents."""
    objects = {item.role: item for item in closed.objects}
    return objects.get(TOKENS) or objects.get(DOCUMENTS)


@dataclass(frozen=True, slots=True)
class Description:
    """What the tokens of a dataset mean; None where neither shard nor pipeline tells."""

    #: The hash of the tokenizer's file.
    tokenizer: str | None
    #: tokens
    seq_len: int | None
    pad_id: int | None
    eos_id: int | None
    #: The hash that names the pipeline applied last.
    pipeline_version: str


def fold_ledger(store: ObjectStore, state: LedgerState | None = None) -> LedgerState:
    """Fold the ledger's entries behind `state` (from the start by default) into it, and return it.

    Raises `FormatError` for an entry that cannot be read or contradicts those before it, `NoDataset` for the log of a
    cluster.
    """
    state = LedgerState() if state is None else state
    try:
        return fold_log(Log(store), state)
    except ForeignLog as error:
        if state.pipeline_number >= 0:
            raise FormatError(f"{store.uri}: {error}; restore the entry from a copy") from error
        raise NoDataset(
            f"{store.uri} holds the log of a cluster and no dataset ({error}); name a dataset's folder"
        ) from error
    except EntryError as error:
        raise FormatError(str(error)) from error
    except FoldError as error:
        number = state.number + 1
        raise FormatError(f"{store.uri}: ledger entry {number}: {error}; restore the entry from a copy") from error


class Dataset:
    """A dataset up to the ledger's last entry when it was opened."""

    __slots__ = ("_history", "_retractions", "_shards", "_version", "state", "store")

    def __init__(
        self, store: ObjectStore, state: LedgerState, version: int | None = None, history: LedgerState | None = None
    ) -> None:
        self.store = store
        self.state = state
        #: What the whole ledger says, where `state` is what one version shows.
        self._history = history or state
        #: The version that is read; None: the newest.
        self._version = version
        self._shards = tuple(state.shards)
        self._retractions: dict[str, list[Retraction]] | None = None

    @staticmethod
    def open(uri: str, *, removed: bool = False) -> Dataset:
        """Fold the ledger of the dataset at `uri`. Raises `NoDataset` where there is none, and `FormatError`.

        One that was removed is none, unless its remains are asked for by `removed`.
        """
        store = open_store(uri)
        state = fold_ledger(store)
        if state.number < 0:
            raise NoDataset(f"{store.uri} holds no dataset (its ledger has no entry); check the URI, or run a pipeline")
        if state.removed and not removed:
            raise NoDataset(f"{store.uri} holds no dataset: it was removed; run a pipeline to begin another")
        return Dataset(store, state)

    @property
    def uri(self) -> str:
        """The URI of the dataset's store."""
        return self.store.uri

    @property
    def version(self) -> int:
        """The version that is read: the newest unless another was asked for; 0 where none was published."""
        return self.state.version if self._version is None else self._version

    @property
    def shards(self) -> tuple[ClosedShard, ...]:
        """Every shard that the ledger names, in its order."""
        return self._shards

    def of_main_sink(self, shards: Iterable[ClosedShard]) -> list[ClosedShard]:
        """Of these shards those of the main sink among theirs: each sink sees every record."""
        found = list(shards)
        main = main_sink({shard.closed.sink: self.state.counts[shard.closed.sink] for shard in found})
        return [shard for shard in found if shard.closed.sink == main]

    def with_tokens(self) -> list[ClosedShard]:
        """The shards of tokens, of one sink."""
        return self.of_main_sink(shard for shard in self._shards if shard.object(TOKENS) is not None)

    def describe(self) -> Description:
        """Read the first shard's header; where there is no shard, what the pipeline declares."""
        facts = self._facts()
        tokenizer = next((facts[name] for name in _TOKENIZER_NAMES if facts.get(name) not in (None, "")), None)
        return Description(
            tokenizer=None if tokenizer is None else str(tokenizer),
            seq_len=whole_number(facts.get("seq_len")),
            pad_id=whole_number(facts.get("pad_id")),
            eos_id=whole_number(facts.get("eos_id")),
            pipeline_version=self.state.pipeline_version,
        )

    def balance(self, sink: str | None = None) -> Balance:
        """What became of the records, by the word of `sink`; without one, by that of the main sink."""
        return balance_of(self.state, sink)

    def manifest(self, described: Description | None = None) -> dict[str, Any]:
        """Return `manifest.json`: the shards of the version that is read, or all where none was published.

        Without `described` the first shard's header is read; with it, nothing is.
        """
        described = described or self.describe()
        shards = self.of_version(self._version).with_tokens()
        listed, read = [self._listed(shard) for shard in shards], self.version
        named = {fields[TOKENS] for fields in listed}
        retracted = [
            {"version": since if read == self.state.version else min(since, read), "tokens": key, "documents": rows}
            for since, key, rows in self.state.retracted
            if key in named and self.state.hides(since, read)
        ]
        shown = self.state.published.get(read)
        return {
            "format": MANIFEST_FORMAT,
            "dataset": str(self.state.pipeline.get("name", "")),
            "version": read,
            "entry": -1 if shown is None else shown.number,
            "complete": self.complete(read),
            "pipeline": shards[-1].closed.version if shards else self.state.pipeline_version,
            "tokenizer": described.tokenizer or "",
            "seq_len": described.seq_len or 0,
            "pad_id": described.pad_id or 0,
            "eos_id": described.eos_id,
            "shards": listed,
            **({"retracted": retracted} if retracted else {}),
        }

    def _listed(self, shard: ClosedShard) -> dict[str, Any]:
        """A shard as the manifest names it; `records` are all that it closes, `checksum` is that of the tokens.

        `layout` is the first checksum of tokens of which some are erased.
        """
        objects = {role: shard.object(role) for role in (TOKENS, DOCUMENTS, VERDICTS)}
        tokens, counts = objects[TOKENS], shard.closed.counts
        erased = None if tokens is None else self.state.erased.get(tokens.key)
        return {
            **{role: None if item is None else item.key for role, item in objects.items()},
            "checksum": None if tokens is None else tokens.checksum,
            "records": counts.records,
            "kept": counts.kept,
            "token_count": counts.tokens,
            "sequences": counts.sequences,
            "pipeline": shard.closed.version,
            **({} if erased is None else {"layout": erased[0]}),
        }

    def of_version(self, version: int | None = None) -> Dataset:
        """The dataset with the shards of one published version: of the newest, or with all where none was published.

        What was taken down since is not shown in an older version either. Raises `ValueError` for an unknown one.
        """
        published = self.state.published
        if version is not None and version not in published:
            known = ", ".join(str(number) for number in sorted(published))
            raise ValueError(f"{self.uri} has no version {version}; it has {known or 'none yet: run it to its end'}")
        wanted = published.get(self.state.version if version is None else version)
        shown = Dataset(self.store, self.state, version, self._history)
        if wanted is not None:
            shown._shards = tuple(shard for shard in self._shards if wanted.shows_entry(shard.number))
        return shown

    def complete(self, version: int | None = None) -> bool:
        """Whether a version's input was read to the end: of the one read, which none is before one is published."""
        wanted = self.state.published.get(self.version if version is None else version)
        return wanted is not None and wanted.complete

    def completeness(self, version: int | None = None) -> Completeness:
        """How whole a version is: the one read, if none is named. The whole ledger says it."""
        return completeness_of(self._history, self._version if version is None else version)

    def hidden_rows(self, shard: ClosedShard) -> frozenset[int]:
        """Rows of a shard's documents table that are shown no more."""
        main = main_object(shard.closed)
        return frozenset() if main is None else self.retracted(main.key)

    def retracted(self, tokens: str) -> frozenset[int]:
        """Rows of the documents table that are shown no more, of the shard whose tokens have this key."""
        hidden = (rows for since, rows in self.retractions(tokens) if self.state.hides(since, self.version))
        return frozenset(row for rows in hidden for row in rows)

    def retractions(self, tokens: str) -> Sequence[Retraction]:
        """What was ever retracted from the shard whose tokens have this key: since which version, and the rows."""
        if self._retractions is None:
            found: dict[str, list[Retraction]] = {}
            for since, key, rows in self.state.retracted:
                found.setdefault(key, []).append((since, rows))
            self._retractions = found
        return self._retractions.get(tokens, ())

    def verify(self) -> Report:
        """Check every object that the ledger names, and that its tables account for every record that it closes.

        Of one version nothing but its shards is checked.
        """
        # Here, since a controller reads datasets too, and has no other use for numpy and Arrow.
        from headrace.store.datasets.verify import verify_shards

        return verify_shards(self.store, self.state, shards_only=self._version is not None)

    def _facts(self) -> Mapping[str, Any]:
        for shard in self.with_tokens():
            tokens = shard.object(TOKENS)
            if tokens is not None:
                return read_plain_header(self.store, tokens.key).metadata
        facts: dict[str, Any] = {}
        for stage in self.state.pipeline.get("stages", ()):
            # Identity holds a tokenizer's hash, and the parameter of the same name only its path.
            facts = {**stage.get("parameters", {}), **facts}
            facts.update({name: value for name, value in stage.get("identity", {}).items() if value is not None})
        return facts


_TOKENIZER_NAMES = ("tokenizer_sha256", "tokenizer_hash", "tokenizer")


_UNFINISHED = "its run ended before it had closed all of its input"


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
    #: Whether a rollback hides a part of its input, with which no run goes on; and whether a later version stands.
    lacks_input: bool = False
    superseded: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """What a reader of the version should know, a sentence each without its stop; none where it is whole."""
        said = [f"version {self.version + 1} is held by its gate: {'; '.join(self.held)}"] if self.held else []
        if not self.version and self.held:
            return tuple(said)
        if not self.version:
            return ("no version is published yet: a run goes on, or ended before it had closed all of its input",)
        if not self.complete:
            why = "a rollback hides a part of its input" if self.lacks_input else _UNFINISHED
            goes_on = "" if self.lacks_input or self.superseded else "; the same run again goes on with it"
            said.append(f"version {self.version} is incomplete: {why}{goes_on}")
        if self.unshown:
            shards = counted(self.unshown, "shard is", "shards are")
            said.append(f"{shards} closed that version {self.version} does not show: a run goes on, or was killed")
        if self.rolled_back:
            shards = counted(self.rolled_back, "shard is", "shards are")
            said.append(
                f"{shards} hidden by a rollback: `headrace dataset rollback` to a version that shows them undoes it"
            )
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
        return Completeness(asked, complete, 0, superseded=True)
    lacks = not complete and lacks_input(ledger)
    return Completeness(asked, complete, ledger.unshown, ledger.rolled_back, ledger.held, lacks)
