"""Addresses of versions: `URI@3` and `URI@tag`, and the dataset as a version shows it.

A view is a dataset whose ledger state is that of its version: shards, counts and verdicts of later entries are not in
it, so whatever reads a dataset reads a version.
"""

from __future__ import annotations

from functools import reduce
from operator import add

from headrace.store import NoDataset, ObjectStore, open_store
from headrace.store.datasets import MANIFEST_KEY, Dataset, fold_ledger
from headrace.store.history.tags import is_tag, read_tags, stands_for
from headrace.store.ledger import Counts, FragmentState, LedgerState, Log

#: Digits of the number of a version.
_DIGITS_MAX = 18


def split_address(address: str) -> tuple[str, str]:
    """The URI of a dataset, and the version or tag behind `@`; "" where it names none.

    A folder whose own name ends like that is taken as it stands, where it holds a dataset.
    """
    path, mark, query = address.partition("?") if address.lower().startswith("s3://") else (address, "", "")
    place, at, name = path.rstrip("/").rpartition("@")
    if not at or not place or not (is_tag(name) or (name.isascii() and name.isdigit() and len(name) <= _DIGITS_MAX)):
        return address, ""
    store = open_store(address)
    if store.head(Log(store).key(0)) is not None or store.head(MANIFEST_KEY) is not None:
        return address, ""
    return f"{place}{mark}{query}", name


def version_named(store: ObjectStore, state: LedgerState, name: str) -> int:
    """The version that a number or a tag names. Raises NoDataset where there is none, FormatError."""
    if name.isdigit():
        version = int(name)
        if version in state.published:
            return version
        known = ", ".join(map(str, sorted(state.published)[-10:]))
        raise NoDataset(f"{store.uri} has no version {version}; the newest are {known or 'none yet'}")
    tags = read_tags(store)
    tag = tags.get(name)
    if tag is None:
        known = ", ".join(sorted(tags)[:10])
        raise NoDataset(f"{store.uri} has no tag {name!r}; it has {known or 'none'}")
    if not stands_for(state, tag):
        raise NoDataset(f"{store.uri}: tag {name!r} names version {tag.version} of a dataset that was removed")
    return tag.version


def open_at(address: str) -> Dataset:
    """The dataset at a URI, or as the version that the address names shows it. Raises as `Dataset.open` does."""
    uri, name = split_address(address)
    whole = Dataset.open(uri)
    return view(whole, version_named(whole.store, whole.state, name)) if name else whole


def manifest_at(uri: str, name: str) -> tuple[ObjectStore, dict[str, object]]:
    """The store of a dataset, and the manifest of the version that a number or tag names, by the ledger."""
    store = open_store(uri)
    state = fold_ledger(store)
    return store, Dataset(store, state).of_version(version_named(store, state, name)).manifest()


def view(dataset: Dataset, version: int) -> Dataset:
    """A dataset as one published version shows it."""
    return Dataset(dataset.store, state_at(dataset.state, version), version)


def state_at(state: LedgerState, version: int) -> LedgerState:
    """What the ledger says of the shards that a published version shows; of fragments, those of which it shows any."""
    shown = state.published[version]
    shards = [shard for shard in state.shards if shown.shows_entry(shard.number)]
    found = LedgerState(
        number=state.number, term=state.term, leader=state.leader, resigned=state.resigned, origin=state.origin,
        pipelines=state.pipelines, pipeline_number=state.pipeline_number, epoch=state.epoch, seen=state.seen,
        shards=shards, version=version,
    )  # fmt: skip
    found.pipeline_version = shards[-1].closed.version if shards else state.pipeline_version
    found.pipeline = state.pipelines.get(found.pipeline_version, state.pipeline)
    found.published = {number: item for number, item in state.published.items() if number <= version}
    # What was taken down since is gone from this version too, as if from its beginning.
    found.retracted = [
        [min(since, version), key, rows] for since, key, rows in state.retracted if state.hides(since, version)
    ]
    found.erased = state.erased
    found.retracted_at = state.retracted_at if found.retracted else -1
    for shard in shards:
        sink = shard.closed.sink
        for item in shard.closed.ranges:
            known = state.fragments[item.fragment]
            held = found.fragments.get(item.fragment)
            if held is None:
                held = FragmentState(known.fragment, known.count, known.checksum, dropped=known.dropped)
                held.released = known.released
                found.fragments[item.fragment] = held
            held.of(sink).add(item.first, item.end, item.offset, item.stop)
    for sink in dict.fromkeys(shard.closed.sink for shard in shards):
        found.counts[sink] = reduce(add, (item.closed.counts for item in shards if item.closed.sink == sink), Counts())
    found.totals = found.totals.of(found.fragments.values())
    return found
