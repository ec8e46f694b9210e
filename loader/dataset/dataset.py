"""Reading a dataset's token shards, in numpy: through the manifest, mapped into memory, checked once."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from headrace.loader.cache import (
    LOOK_S,
    Arriving,
    CacheFull,
    Checking,
    HeldShard,
    PartialShard,
    RowBlocks,
    ShardCache,
    SpaceWait,
    never,
    not_wanted,
    parse_blocks,
)
from headrace.loader.dataset.manifest import Manifest, ShardEntry, parse_manifest
from headrace.loader.dataset.shard import Shard, mapped_rows, mapping_of
from headrace.loader.dataset.verify import FIRST_BYTES_MAX, WAIT_S_MAX, Verifier
from headrace.loader.order import I64, LoaderError, SampleLayout
from headrace.store import FormatError, ObjectMissing, ObjectStore, counted, open_store
from headrace.store.datasets import MANIFEST_KEY, doubt as doubt_of
from headrace.store.files import store as _files  # noqa: F401 - imported when the loader is, not when a resume is timed
from headrace.store.shards import BlockTable, ShardHeader, malformed, read_header, read_plain_header, read_shard

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("headrace.loader")

#: two windows of the default size touch no more; each is a mapping, of which 65,530 are the usual limit
SHARDS_OPEN_MAX: Final = 512
#: descriptors of an open shard, and of one in a cache; shards of one loader take a third of those of the process
DESCRIPTORS: Final = 1
DESCRIPTORS_CACHED: Final = 3
#: how long a thread waits for another that opens the same shard
LOAD_S_MAX: Final = 900.0


class TokenDataset:
    """The newest version of a dataset, for reading; made by `open_dataset`.

    Any number of threads may call it at once. Shards are opened when first read, at most `open_max` at a time;
    `headrace.loader.dataset.verify` says when each is checked against its checksum. With a `cache`, shards are read
    from copies on the local disk, which a store without local files needs; without one such a store is read whole
    shards at a time, into memory.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest: Manifest,
        *,
        verify: bool = True,
        cache: ShardCache | None = None,
        version: int | None = None,
    ) -> None:
        self.store = store
        self.manifest = manifest
        self.cache = cache
        #: tokens a sequence, and the token that fills what no document does
        self.seq_len, self.pad_id = manifest.seq_len, manifest.pad_id
        #: whether the version's input was read to its end; not where its run was stopped before
        self.complete = manifest.complete
        identity = "\n".join(manifest.shards.layouts).encode()
        sequences = np.array(manifest.shards.sequences, dtype=np.int64)
        self.layout = SampleLayout(sequences, identity)
        #: what was retracted up to this version is not shown; the manifest's own by default
        self.version = manifest.version if version is None else version
        self._retracted = manifest.retracted_at(self.version)
        self.verify = verify
        self.verifier = Verifier(store)
        #: whether large local shards are checked by blocks, before their rows, and not as a whole, behind them
        self._by_blocks = False
        #: shards that may be open at a time; who reads several datasets gives each its part
        self.open_max = SHARDS_OPEN_MAX
        self._changed = threading.Condition()
        #: in order of opening; those opened first are let go of first
        self._open: dict[int, Shard] = {}
        self._loading: set[int] = set()
        #: shards of which so much is wanted that they are fetched whole once they are opened
        self._whole: set[int] = set()

    def __repr__(self) -> str:
        return f"<TokenDataset {self.manifest.dataset!r} at {self.store.uri}, {counted(self.layout.samples, 'sample')}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # for processes that are spawned: threads, locks and mappings stay behind
        return _reopened, (self.store.uri, self.manifest, self.verify, self.cache, self.version)

    def documents(self) -> "pa.RecordBatchReader":
        """The kept documents of this version as a stream of Arrow, without those that were retracted.

        pandas, polars, DuckDB and pyarrow take the reader. It needs pyarrow, and folds the ledger. Raises StoreError,
        FormatError.
        """
        return self._rows("documents")

    def verdicts(self) -> "pa.RecordBatchReader":
        """A row a record that was not kept: the stage, its verdict and its reason. As `documents`."""
        return self._rows("verdicts")

    def quarantine(self) -> "pa.RecordBatchReader":
        """A row a record that was quarantined, with its raw bytes. As `documents`."""
        return self._rows("quarantine")

    def log(self) -> "pa.RecordBatchReader":
        """A row a version that was published up to now, the oldest first: when, why and its balance. As `documents`."""
        from headrace.store.datasets import fold_ledger
        from headrace.store.history import log_rows

        return log_rows(fold_ledger(self.store))

    def _rows(self, role: str) -> "pa.RecordBatchReader":
        # here, since a training host may have no pyarrow
        from headrace.store.datasets import Dataset, fold_ledger, read_rows

        whole = Dataset(self.store, fold_ledger(self.store))
        return read_rows(whole.of_version(self.version if whole.state.published else None), role)

    def replica(self) -> "TokenDataset":
        """The same dataset with threads, locks and open shards of its own: for a process that was forked.

        It checks a row's own blocks before it gives the row, and reads through no large shard behind the reader, since
        another process, which knows nothing of that, is to believe what it gives.
        """
        found = self._with(None if self.cache is None else self.cache.replica(), self.version)
        found._by_blocks = True
        return found

    def at_version(self, version: int) -> "TokenDataset":
        """The same shards as an older version shows them: what was retracted later is there."""
        return self._with(self.cache, version)

    def first_shards(self, count: int) -> "TokenDataset":
        """The first `count` shards alone: this dataset as it was before it had more."""
        manifest = self.manifest.first_shards(count)
        return TokenDataset(self.store, manifest, verify=self.verify, cache=self.cache, version=self.version)

    def _with(self, cache: ShardCache | None, version: int) -> "TokenDataset":
        return TokenDataset(self.store, self.manifest, verify=self.verify, cache=cache, version=version)

    @property
    def verified_bytes(self) -> int:
        """Bytes that were read to check checksums."""
        return self.verifier.bytes

    @property
    def verified_shards(self) -> int:
        """Shards whose checksum was checked."""
        return self.verifier.shards

    def rows(self, shard: int, rows: I64) -> NDArray[Any]:
        """Tokens [k, seq_len] of `rows` [k] of a shard, copied, in the shard's own dtype; padding for the retracted."""
        opened = self.shard(shard)
        opened.wait(rows)
        tokens = opened.tokens[rows]
        for document in self._retracted.get(opened.key, ()):
            for sequence, start, length in opened.document_pieces(document):
                tokens[rows == sequence, start : start + length] = self.pad_id
        return tokens

    def shard(self, number: int, stopped: Callable[[], bool] = never) -> Shard:
        """The shard, opened if it was not; `stopped` ends each wait. Raises the store's errors, LoaderClosed."""
        found = self._open.get(number)
        return self._opened(number, stopped) if found is None else found

    def at_hand(self, number: int) -> Shard | None:
        """The shard where nothing has to be fetched for it: of a local store, or open."""
        if self.cache is None and not self.store.is_remote:
            return self.shard(number)
        return self._open.get(number)

    def _opened(self, number: int, stopped: Callable[[], bool]) -> Shard:
        with self._changed:
            deadline = time.monotonic() + LOAD_S_MAX
            while number in self._loading:
                if stopped():
                    raise not_wanted(self.manifest.shards[number].tokens)
                if time.monotonic() > deadline:
                    raise LoaderError(f"{self.manifest.shards[number].tokens} did not open within {LOAD_S_MAX:.0f} s")
                self._changed.wait(LOOK_S)
            found = self._open.get(number)
            if found is not None:
                return found
            self._loading.add(number)
        try:
            shard = self._load(number, stopped)
            with self._changed:
                self._open[number] = shard
                while len(self._open) > self.open_max:
                    del self._open[next(iter(self._open))]
            return shard
        finally:
            with self._changed:
                self._loading.discard(number)
                self._changed.notify_all()

    def fetch_whole(self, number: int) -> None:
        """Have all of a shard fetched when it is opened, by one request; without a cache this changes nothing."""
        with self._changed:
            if number not in self._open:
                self._whole.add(number)

    def release(self, needed: set[int]) -> None:
        """Let go of open shards that are not `needed`, so that a cache may evict them."""
        with self._changed:
            self._whole &= needed
            for number in [number for number in self._open if number not in needed]:
                del self._open[number]

    def wait_verified(self, timeout_s: float = WAIT_S_MAX) -> None:
        """Return when every shard that was read from has been checked; raises ChecksumMismatch, LoaderError."""
        self.verifier.wait(timeout_s)

    def close(self) -> None:
        """Stop the threads, and let go of the shards; a later read opens them again."""
        self.verifier.close()
        with self._changed:
            self._open.clear()

    def _load(self, number: int, stopped: Callable[[], bool]) -> Shard:
        entry = self.manifest.shards[number]
        if self.cache is not None:
            held = self._hold(self.cache, entry, number in self._whole, stopped)
            with self._changed:
                self._whole.discard(number)
            arriving, local = None, cast("ObjectStore", held.opened)
            header = read_header(local, entry.tokens)
            if isinstance(held, PartialShard) and not self.verify:
                held.unchecked = None
            if isinstance(held, PartialShard) and not held.is_whole:
                arriving = self._arriving(self.cache, held, entry, header, stopped)
            shard = self._made(entry, read_shard(local, entry.tokens, header))
            shard.held, shard.arriving = held, arriving
            shard.mapped = mapped_rows(local.open_local(entry.tokens), shard.tokens)
            self.verifier.count(number, held.size)
            return shard
        table = self._blocks(entry) if self.verify and self._by_blocks else None
        if self.verify and table is None:
            self.verifier.first(number, entry.tokens, entry.checksum)
        header = read_header(self.store, entry.tokens)
        shard = self._made(entry, read_shard(self.store, entry.tokens, header))
        if table is not None:
            shard.arriving = self._checking(entry, header, table, shard)
        shard.mapped = mapped_rows(self.store.open_local(entry.tokens), shard.tokens)
        if shard.mapped is not None:
            shard.mapped.scatter()
        return shard

    def _blocks(self, entry: ShardEntry) -> BlockTable | None:
        """The checksums of a large local shard's blocks; None of a small one's, which is checked whole."""
        info = self.store.head(entry.tokens)
        is_large = info is not None and info.size > FIRST_BYTES_MAX
        if not is_large or not entry.sequences or self.store.open_local(entry.tokens) is None:
            return None
        plain = read_plain_header(self.store, entry.tokens)
        try:
            return parse_blocks(self.store.get(entry.tokens, 0, plain.body))
        except FormatError as error:
            raise malformed(self.store, entry.tokens, str(error)) from error

    def _checking(self, entry: ShardEntry, header: ShardHeader, table: BlockTable, shard: Shard) -> Checking:
        """What checks the rows of a local shard; everything else of it was."""
        mapping, tokens = mapping_of(shard.tokens), header.tensors["tokens"]
        assert mapping is not None, f"{entry.tokens} is a local file with rows"
        rows = RowBlocks(table, tokens.offset, tokens.size // max(entry.sequences, 1))
        count = self.verifier.count_part
        checking = Checking(
            rows, memoryview(mapping), self.store.uri, entry.tokens, lambda size, is_last: count(size, is_last=is_last)
        )
        for first, end in _beside_tokens(header, table):
            checking.check(first, end)
        return checking

    def _arriving(
        self,
        cache: ShardCache,
        partial: PartialShard,
        entry: ShardEntry,
        header: ShardHeader,
        stopped: Callable[[], bool],
    ) -> Arriving:
        """The rows of a shard that is on its way; everything else of it is there."""
        tokens = header.tensors.get("tokens")
        if tokens is None:
            raise FormatError(f"{entry.tokens}: the shard has no tokens; it is no token shard of Headrace")
        cache.spans.wait(partial, _beside_tokens(header, partial.table), stopped=stopped)
        return Arriving(partial, cache.spans, tokens.offset, tokens.size // max(entry.sequences, 1))

    def _made(self, entry: ShardEntry, arrays: dict[str, NDArray[Any]]) -> Shard:
        hidden = self._retracted.get(entry.tokens, frozenset())
        shard = Shard(entry.tokens, arrays, entry.sequences, self.seq_len, hidden)
        if self.pad_id > np.iinfo(shard.tokens.dtype).max:
            raise FormatError(f"{entry.tokens}: its {shard.tokens.dtype} cannot hold the pad_id {self.pad_id}")
        return shard

    def _hold(
        self, cache: ShardCache, entry: ShardEntry, whole: bool, stopped: Callable[[], bool]
    ) -> HeldShard | PartialShard:
        """The cached shard; where all of the cache is in use, the shards that were opened first are given up."""
        wait, needed = SpaceWait(cache.said, stopped), 0
        while True:
            try:
                return cache.hold(self.store, entry.tokens, entry.checksum, whole=whole, needed=needed, stopped=stopped)
            except CacheFull as full:
                needed = full.needed
                with self._changed:
                    if self._open:
                        del self._open[next(iter(self._open))]
                        continue
                # in use by other threads and processes, which let go as they move on
                wait.go_on(full)


def _beside_tokens(header: ShardHeader, table: BlockTable) -> list[tuple[int, int]]:
    """The blocks (first, end) of each array but the tokens."""
    others = [one for name, one in header.tensors.items() if name != "tokens" and one.size]
    return [table.covering(one.offset, one.offset + one.size) for one in others]


def open_dataset(uri: str | os.PathLike[str], *, verify: bool = True, cache: ShardCache | None = None) -> TokenDataset:
    """Open the newest version of the dataset at `uri` (a path, `file://...`, `s3://...`), or `uri@3`, `uri@tag`.

    `verify=False` trusts the shards' bytes. A store without local files gets the user's own cache
    (`ShardCache.default`) unless one is given. Raises FormatError, also where there is no manifest.
    """
    uri = os.fspath(uri)
    if "@" in uri:
        # here, since few name a version, and it folds the ledger
        from headrace.store.history import manifest_at, split_address

        uri, name = split_address(uri)
        if name:
            store, manifest = manifest_at(uri, name)
            found = parse_manifest(json.dumps(manifest).encode(), store.uri)
            cache = ShardCache.default() if cache is None and store.is_remote else cache
            return TokenDataset(store, found, verify=verify, cache=cache)
    return dataset_in(open_store(uri), verify=verify, cache=cache)


def dataset_in(store: ObjectStore, *, verify: bool = True, cache: ShardCache | None = None) -> TokenDataset:
    """Like `open_dataset`, in a store that is open already."""
    try:
        data = store.get(MANIFEST_KEY)
    except ObjectMissing as error:
        raise FormatError(_unfinished(store)) from error
    manifest = parse_manifest(data, store.uri)
    doubt = doubt_of(store, manifest.entry, manifest.version)
    if doubt:
        manifest = _by_ledger(store, doubt)
    if not manifest.complete:
        logger.warning(
            "%s: version %d is incomplete: its run ended before it had read all of its input; "
            "the same run again goes on with it, unless a rollback hides the rest",
            *(store.uri, manifest.version),
        )
    if cache is None and store.is_remote:
        cache = ShardCache.default()
    return TokenDataset(store, manifest, verify=verify, cache=cache)


def _by_ledger(store: ObjectStore, doubt: str) -> Manifest:
    """The newest version as the ledger tells it, where `manifest.json` does not. Raises FormatError."""
    # here, since a loader whose manifest is up to date folds no ledger
    from headrace.store.datasets import Dataset, fold_ledger

    state = fold_ledger(store)
    if state.removed or state.newest is None:
        what = "the dataset was removed" if state.removed else "no version was published"
        raise FormatError(f"{store.uri}: {MANIFEST_KEY} {doubt}; by the ledger {what}: run its pipeline again")
    logger.warning("%s: %s %s; version %d is read from the ledger", store.uri, MANIFEST_KEY, doubt, state.version)
    return parse_manifest(json.dumps(Dataset(store, state).manifest()).encode(), store.uri)


def _unfinished(store: ObjectStore) -> str:
    """What is so where there is no manifest."""
    # here, since a loader that finds one reads no ledger
    from headrace.store.ledger import Log

    if store.head(Log(store).key(0)) is None:
        return f"{store.uri}: no {MANIFEST_KEY}, so no dataset was finished here; check the URI, or write it first"
    return (
        f"{store.uri}: no {MANIFEST_KEY}, though a run has begun here: its first version is not finished, or the "
        f"dataset was removed; `headrace dataset show {store.uri}` says which, and the same run again goes on with it; "
        f"if a version was published, `headrace dataset gc {store.uri}` derives its manifest anew"
    )


def _reopened(
    uri: str, manifest: Manifest, verify: bool, cache: ShardCache | None, version: int | None
) -> TokenDataset:
    return TokenDataset(open_store(uri), manifest, verify=verify, cache=cache, version=version)
