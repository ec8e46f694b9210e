"""`headrace dataset gc`, `retract`, `rm`, `compact` and `export`: what deletes or rewrites objects."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from headrace.cli.ui import console, megabytes, number, print_json, title
from headrace.client import CliError, UsageError
from headrace.controller import OfflineWriter, is_alive, with_offline_writer
from headrace.pipeline import Pipeline
from headrace.stages.runtime import InputError
from headrace.stages.sinks import groups, left_to_do, merge, retracted_rows, write_retracted
from headrace.store import DatasetBusy, ObjectMissing, ObjectStore, StoreError, counted, folder_of, open_store
from headrace.store.datasets import (
    MANIFEST_KEY,
    Collected,
    Dataset,
    ExpressionError,
    RecordPlaces,
    as_shown,
    bring_forward,
    clear_card,
    collect,
    find_records,
    mend,
    parse_where,
    removal,
    show_version,
    to_erase,
    write_rewritten,
)
from headrace.store.history import note_copy, open_at
from headrace.store.ledger import (
    Change,
    ClaimsReleased,
    EpochRaised,
    FragmentEnded,
    FragmentsListed,
    LedgerState,
    PipelineApplied,
    Removed,
    Retracted,
    StoredObject,
    VersionPublished,
)

#: Keys that are shown to people; `--json` gives all of them.
KEYS_SHOWN = 10


def collect_garbage(uri: str, *, dry_run: bool, as_json: bool) -> int:
    """Collect one dataset; the exit code."""
    dataset = Dataset.open(uri, removed=True)
    found = collect(dataset.store, dataset.state, dry_run=True)
    busy = "a run writes it" if _is_led(dataset.state) else ""
    mended = ""
    if not dry_run:
        if found.undecided and not busy:
            busy = _raise_floor(dataset.uri)
        state = Dataset.open(uri, removed=True).state if found.undecided else dataset.state
        found = collect(dataset.store, state, dry_run=False)
        if state.newest is not None:
            # Whoever published this version may have died before it said so.
            mended = mend(dataset.store, Dataset(dataset.store, state).manifest())
    if as_json:
        return print_json({**_facts(dataset.uri, found, dry_run=dry_run, busy=busy), "manifest": mended})
    out = console()
    verb = "would be deleted" if dry_run else "deleted"
    objects = f"{counted(len(found.keys), 'object')}, {megabytes(found.size)}, below epoch {found.floor} {verb}"
    out.print(title(dataset.uri, objects if found.keys else f"nothing below epoch {found.floor} is to be deleted"))
    for key in found.keys[:KEYS_SHOWN]:
        out.print(f"  {key}")
    if len(found.keys) > KEYS_SHOWN:
        out.print(f"  and {number(len(found.keys) - KEYS_SHOWN)} more; `--json` gives all of them")
    if mended:
        out.print(f"  {MANIFEST_KEY} {mended}: it was written again from the ledger")
    if found.undecided:
        left = (
            f"{counted(found.undecided, 'object')}, {megabytes(found.undecided_size)}, of this epoch, named by no entry"
        )
        then = f"left alone, since {busy}" if busy else "a collection raises the epoch first, and deletes that too"
        out.print(f"  {left}: {then}")
    return 0


def _is_led(state: LedgerState) -> bool:
    """Whether a living process of this host leads the log; of another host's only its silence would tell."""
    return not state.resigned and is_alive(state.leader) is True


def _raise_floor(dataset: str) -> str:
    """Fence off every writer that was born before now; why that cannot be done, or nothing."""

    async def raised(writer: OfflineWriter) -> None:
        await writer.commit(EpochRaised("collection"))

    try:
        with_offline_writer(dataset, raised)
    except DatasetBusy:
        return "a run writes it"
    return ""


def retract_records(
    uri: str, ids: list[str], sources: list[str], *, where: str = "", listed: bool = False, as_json: bool
) -> int:
    """Retract records by id, by source, or by their fields; the exit code. Ids that are `listed` may be none."""
    asks = bool(ids or sources or where)
    if not asks and not listed:
        raise UsageError(
            "give the ids of records, --list with a file of them, --source with the URI of what they were read from, "
            "or --where with an expression over their fields"
        )
    try:
        test = parse_where(where) if where else None
    except ExpressionError as error:
        raise UsageError(f"--where: {error}") from error
    dataset = Dataset.open(uri)
    if not asks:
        none = {"dataset": dataset.uri, "version": dataset.state.version, "records": 0, "documents": 0, "rewritten": []}
        if as_json:
            return print_json(none)
        console().print(title(dataset.uri, "the list names no record"))
        return 0
    store = dataset.store

    async def retracted(writer: OfflineWriter) -> RecordPlaces:
        found = await writer.beside(lambda: find_records(store, writer.ledger, ids, sources, test))
        missing = [name for name in ids if name not in found.named]
        missing += [name for name in sources if name not in found.sources]
        if missing or not found.ids:
            asked = [*missing, where][0]
            raise CliError(f"{dataset.uri}: no record has the id, source or fields {asked!r}: none retracted")
        if found.documents or found.rewritten:
            await writer.commit(EpochRaised("retraction"))
            replaced = await writer.beside(lambda: write_rewritten(store, found, writer.ledger.epoch))
            await commit_retraction(writer, "retraction", found.documents, replaced)
        # Also where nothing was left to retract: an earlier call may have been killed before it came to this.
        await write_manifest(writer, store)
        return found

    found = with_offline_writer(dataset.uri, retracted)
    if where and not found.fulfilled:
        print(f"headrace: no kept record fulfils --where {where!r}", file=sys.stderr)
    after = Dataset.open(uri)
    collect(store, after.state, dry_run=False)
    facts = {
        "dataset": dataset.uri,
        "version": after.state.version,
        "records": len(found.ids),
        "documents": found.kept,
        "rewritten": [item.key for item in found.rewritten],
    }
    if as_json:
        return print_json(facts)
    what = f"version {after.state.version} shows {counted(found.kept, 'document')} less"
    if after.state.newest is None:
        what = f"no version is published yet; the first one will show {counted(found.kept, 'document')} less"
    if not found.kept:
        what = "no version showed these records: they were not kept, or retracted before"
    if found.rewritten or found.texts:
        many = len(found.rewritten) + len(found.texts)
        what += f"; {counted(many, 'object is', 'objects are')} written anew without their text"
    if to_erase(after.state):
        what += "; their tokens stay until `headrace dataset purge`"
    console().print(title(dataset.uri, what))
    return 0


async def commit_retraction(
    writer: OfflineWriter,
    reason: str,
    documents: tuple[tuple[str, tuple[int, ...]], ...],
    replaced: tuple[tuple[str, StoredObject], ...] = (),
) -> None:
    """Commit the next version, without some rows of documents tables.

    It is of the shards that the newest one shows, and of no more that a run has closed since.
    """
    base, version = writer.ledger.newest, writer.ledger.version + 1
    shown = [] if base is None else [VersionPublished(version, reason, base.shows, base.complete)]
    await writer.commit(Retracted(version, documents, replaced), *shown)


async def publish_without(
    writer: OfflineWriter, dataset: Dataset, reason: str, rows: Mapping[str, Iterable[int]], since: str
) -> int:
    """Publish a version without these rows, by the key of the shard's tokens; its number.

    Raises CliError where the dataset has changed `since` it was looked at, with what to do then.
    """
    seen, now = dataset.state, writer.ledger
    if (seen.version, seen.retracted_at) != (now.version, now.retracted_at):
        raise CliError(f"{dataset.uri} has changed since {since}")
    await writer.commit(EpochRaised(reason))
    await commit_retraction(writer, reason, tuple((key, tuple(sorted(rows[key]))) for key in sorted(rows)))
    await write_manifest(writer, dataset.store)
    return writer.ledger.version


async def write_manifest(writer: OfflineWriter, store: ObjectStore) -> None:
    """Bring the manifest to the newest version, if there is one."""
    if writer.ledger.newest is not None:
        fresh = Dataset(store, writer.ledger)
        described = await writer.beside(fresh.describe)
        if said := await writer.beside(lambda: show_version(fresh, fresh.manifest(described))):
            print(f"headrace: {said}", file=sys.stderr)


def remove_dataset(uri: str, *, agreed: bool, as_json: bool) -> int:
    """Remove a dataset; the exit code. After a kill, the next call continues."""
    dataset = Dataset.open(uri, removed=True)
    store = dataset.store
    objects = [item for shard in dataset.shards for item in shard.closed.objects]
    kept = sum(counts.kept for counts in dataset.state.counts.values())
    what = f"{counted(kept, 'kept record')} in {counted(len(objects), 'object')}"
    if not agreed:
        size = megabytes(sum(item.size for item in objects))
        raise UsageError(f"{dataset.uri} holds {what}, {size}: add --yes to delete them; this cannot be undone")

    async def removed(writer: OfflineWriter) -> None:
        if not writer.ledger.removed:
            await writer.commit(EpochRaised("removal"), Removed("removal"))
        # Before the shards, so that new readers are not sent to deleted objects.
        await writer.beside(lambda: bring_forward(store, removal(writer.ledger.number)))
        await writer.beside(lambda: clear_card(store))

    with_offline_writer(dataset.uri, removed)
    found = collect(store, Dataset.open(uri, removed=True).state, dry_run=False)
    if as_json:
        return print_json({"dataset": dataset.uri, "objects": len(found.keys), "bytes": found.size})
    gone = f"removed: {counted(len(found.keys), 'object')}, {megabytes(found.size)}"
    console().print(title(dataset.uri, gone))
    return 0


def _facts(uri: str, found: Collected, *, dry_run: bool, busy: str) -> dict[str, object]:
    return {
        "dataset": uri,
        "dry_run": dry_run,
        "floor": found.floor,
        "objects": len(found.keys),
        "bytes": found.size,
        "keys": list(found.keys),
        "undecided": found.undecided,
        "undecided_bytes": found.undecided_size,
        "live": bool(busy),
    }


#: Fragments in one entry, as in a page of a listing.
PAGE_FRAGMENTS = 1000
REASON = "compaction"


def compact_dataset(uri: str, into: str, *, shard_bytes: int, as_json: bool) -> int:
    """Compact one dataset into another; the exit code. After a kill, the next call continues."""
    old = as_shown(Dataset.open(uri))
    target = open_store(into)
    if target.uri == old.uri:
        raise UsageError("compact into another place: readers of the old dataset need it as it is")

    try:
        fresh = with_offline_writer(target.uri, lambda writer: _compact(writer, old, target.uri, shard_bytes))
    except InputError as error:
        raise CliError(f"{target.uri}: {error}") from error
    except ObjectMissing as error:
        raise CliError(
            f"{error}: it went away while it was read, as by a retraction; compact again to go on"
        ) from error
    new = Dataset.open(target.uri)
    facts = {
        "dataset": new.uri,
        "from": old.uri,
        "fresh": fresh,
        "version": new.state.version,
        "shards": len(new.shards),
        "shards_before": len(old.shards),
        "bytes": _bytes(new),
        "bytes_before": _bytes(old),
        "padding": sum(counts.padding for counts in new.state.counts.values()),
        "padding_before": sum(counts.padding for counts in old.state.counts.values()),
    }
    if as_json:
        return print_json(facts)
    before = counted(len(old.shards), "shard has", "shards have")
    what = f"{before} become {number(len(new.shards))}, {megabytes(_bytes(new))}"
    console().print(title(new.uri, what if fresh else "stands already, nothing is to be done"))
    return 0


async def _compact(writer: OfflineWriter, old: Dataset, target: str, shard_bytes: int) -> bool:
    """Close group after group, then publish. False if it was done already."""
    # Refuse another's dataset before anything is written to it.
    todo = left_to_do(old.state, writer.ledger)
    store = open_store(target)
    if writer.ledger.retracted:
        await writer.beside(partial(retracted_rows, old, Dataset(store, writer.ledger)))
    is_fresh = bool(todo) or not writer.ledger.version
    if is_fresh or old.state.retracted_at >= 0:
        await writer.commit(*applied(old.state, writer.ledger, target), EpochRaised(REASON))
    if is_fresh:
        for page in listed(old.state, writer.ledger):
            await writer.commit(*page)
        for group in groups(todo, shard_bytes):
            await writer.commit(await writer.beside(partial(merge, old.store, group, store, writer.ledger.epoch)))
    has_published = await _publish(writer, old, store, is_fresh=is_fresh)
    new = Dataset(store, writer.ledger)
    described = await writer.beside(new.describe)
    manifest = new.manifest(described)
    if said := await writer.beside(lambda: show_version(new, manifest)):
        print(f"headrace: {said}", file=sys.stderr)
    return has_published


async def _publish(writer: OfflineWriter, old: Dataset, store: ObjectStore, *, is_fresh: bool) -> bool:
    """Publish what was merged, without what the old dataset has lost meanwhile; whether there was anything to publish.

    A retraction or a rollback may come between a look at the old ledger and our entry, so that it is looked at again
    behind it; and the manifest is written when nothing has come.
    """
    base = old.state.newest
    has_published = False
    while True:
        now = as_shown(Dataset.open(old.uri))
        hidden: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {}
        replaced: tuple[tuple[str, StoredObject], ...] = ()
        if now.state.retracted_at >= 0:
            new = Dataset(store, writer.ledger)
            hidden = await writer.beside(partial(retracted_rows, now, new))
            replaced = await writer.beside(partial(write_retracted, now, new, writer.ledger.epoch))
        if not (is_fresh or hidden or replaced):
            return has_published
        complete, taken_down = base is not None and base.complete, hidden.pop("", ())
        if is_fresh or taken_down or replaced:
            # The old dataset may have listed and given up more since, of which no shard is.
            for page in listed(old.state, writer.ledger):
                await writer.commit(*page)
            version = writer.ledger.version + 1
            retraction = [Retracted(version, taken_down, replaced)] if taken_down or replaced else []
            published = VersionPublished(version, REASON, writer.ledger.number, complete)
            await writer.commit(*_settled(old.state, writer.ledger), *retraction, published)
        # Behind it, so that a rollback to it shows these again, as it does in the old dataset.
        for reason, rows in hidden.items():
            version = writer.ledger.version + 1
            published = VersionPublished(version, reason, writer.ledger.number, complete)
            await writer.commit(Retracted(version, rows, ()), published)
        is_fresh, has_published = False, True
        then = Dataset.open(old.uri).state
        if (then.version, then.retracted_at) == (now.state.version, now.state.retracted_at):
            return True


def _settled(old: LedgerState, new: LedgerState) -> list[Change]:
    """What the old dataset has given up, and the claims that it has released, as far as the new one does not know."""
    given_up = [
        state.dropped
        for name, state in old.fragments.items()
        if state.dropped is not None and new.fragments[name].dropped is None
    ]
    released = [
        ClaimsReleased(sink, ((name, tuple(sorted(rows))),))
        for name, state in old.fragments.items()
        for sink, rows in state.released.items()
        if not rows <= new.fragments[name].released.get(sink, set())
    ]
    return [*given_up, *released]


def applied(old: LedgerState, new: LedgerState, target: str) -> Iterator[Change]:
    """The pipelines of the old dataset that the new one does not know, the one in force last."""
    if new.pipeline_version == old.pipeline_version:
        return
    for version in sorted(old.pipelines, key=lambda version: version == old.pipeline_version):
        pipeline = replace(Pipeline.from_dict(old.pipelines[version]), dataset=target)
        yield PipelineApplied(version, pipeline.to_dict())


def listed(old: LedgerState, new: LedgerState, only: Collection[bytes] | None = None) -> Iterator[list[Change]]:
    """The fragments, or `only` these, that the new dataset does not know, and the ends that are logged, in pages."""
    states = [(name, state) for name, state in old.fragments.items() if only is None or name in only]
    for begin in range(0, len(states), PAGE_FRAGMENTS):
        page = states[begin : begin + PAGE_FRAGMENTS]
        fresh = tuple(state.fragment for name, state in page if name not in new.fragments)
        changes: list[Change] = [FragmentsListed(fresh)] if fresh else []
        for name, state in page:
            known = new.fragments.get(name)
            if state.count is not None and (known is None or known.count is None):
                changes.append(FragmentEnded(name, state.count))
        if changes:
            yield changes


def _bytes(dataset: Dataset) -> int:
    return sum(item.size for shard in dataset.shards for item in shard.closed.objects)


FORMATS = ("megatron", "mds", "parquet")


@contextmanager
def _noted(dataset: Dataset, out: str, kind: str) -> Iterator[None]:
    """Note a copy in its dataset, and take that back where its writing fails; a warning where it cannot be noted."""
    place, forget = folder_of(out), None
    try:
        forget = note_copy(dataset, place, kind)
    except StoreError as error:
        print(f"headrace: a purge of {dataset.uri} will not know of {place}: {error}", file=sys.stderr)
    try:
        yield
    except BaseException:
        if forget is not None:
            forget()
        raise


def export_dataset(uri: str, out: str, kind: str, version: int | None, *, as_json: bool) -> int:
    """Write one version of a dataset to a folder; the exit code."""
    if kind not in FORMATS:
        raise UsageError(f"--format {kind!r}: choose one of {', '.join(FORMATS)}")
    from headrace.stages.export import EXPORTS

    whole = open_at(uri)
    try:
        dataset = whole.of_version(version)
    except ValueError as error:
        raise CliError(str(error)) from error
    standing = whole.completeness(version)
    version = standing.version
    done = EXPORTS[kind](dataset, out, _noted(dataset, out, kind))
    pipelines = sorted({shard.closed.version for shard in dataset.shards})
    if as_json:
        told = {"dataset": dataset.uri, **standing.to_dict(), "pipelines": pipelines, **dataclasses.asdict(done)}
        return print_json(told)
    rows = [(done.documents, "document"), (done.sequences, "sequence"), (done.tokens, "token")]
    held = ", ".join(counted(count, word) for count, word in rows if count)
    size = f"{counted(done.files, 'file')}, {megabytes(done.bytes)}"
    console().print(
        title(out, f"{kind} of {f'version {version}' if version else 'what is closed'}: {held or 'nothing'}; {size}")
    )
    if len(pipelines) > 1:
        said = f"made by {len(pipelines)} recipes: `headrace dataset show {dataset.uri}` says which part each"
        console().print(f"  {said}", markup=False)
    for words in standing.words:
        console().print(f"  {words}", style="yellow", markup=False)
    return 0


def push_dataset(uri: str, place: str, *, replaces: bool, as_json: bool) -> int:
    """Push a version with text to the hub; the exit code. After a kill, the next call sends what is missing."""
    from headrace.stages.export import push

    dataset = open_at(uri)
    done = push(dataset, place, replaces=replaces)
    if as_json:
        return print_json({"dataset": dataset.uri, "version": dataset.version, **dataclasses.asdict(done)})
    said = f"{counted(done.sent, 'file')} sent, {done.standing:,} stood there, {done.deleted:,} deleted"
    console().print(title(place, said if done.commit else f"holds version {dataset.version} already"))
    return 0


def mirror_dataset(uri: str, delta: str, iceberg: str, name: str, *, as_json: bool) -> int:
    """Commit the versions of a dataset to a table; the exit code. After a kill, the next call continues."""
    if bool(delta) == bool(iceberg):
        raise UsageError("give --delta FOLDER or --iceberg CATALOG")
    from headrace.stages.export import DeltaMirror, IcebergMirror, mirror

    dataset = Dataset.open(uri)
    origin = f"headrace-{dataset.state.origin}"
    table = DeltaMirror(delta, origin) if delta else IcebergMirror(iceberg, name, origin)
    made = mirror(dataset, table)
    if as_json:
        return print_json({"dataset": dataset.uri, "table": delta or iceberg, "versions": made})
    said = f"{counted(len(made), 'version')} of {dataset.uri}" if made else f"has every version of {dataset.uri}"
    console().print(title(delta or f"{iceberg}, {name}", said))
    return 0
