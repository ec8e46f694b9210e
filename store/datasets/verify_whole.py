"""Checks that take more than one shard: overlaps, the targets of duplicates, and objects that nobody names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.store import ObjectInfo, ObjectStore, StoreError, counted
from headrace.store.datasets.collection import named_keys
from headrace.store.ledger import ClosedShard, IntervalSet, LedgerState, OverlapError
from headrace.store.shards import FOLDERS, KEYS_ROLE, epoch_of, kind_of, read_table, whole_ids

_BROKEN_LEADER = "two shards account for the same records: the leader that wrote the entry is broken, report it"
_BROKEN_DEDUP = "the stage that decided it is broken, write the dataset again and report it"

_FICKLE = (
    "that stage let it through when it was read before, so it is not deterministic: mend it and write the dataset again"
)


def whole_problems(store: ObjectStore, state: LedgerState) -> Iterator[str]:
    """Yield what is wrong between shards. Tables that cannot be read are passed over: they are told of elsewhere."""
    yield from overlap_problems(state)
    yield from target_problems(store, state)
    yield from key_problems(store, state)


def unnamed_objects(store: ObjectStore, state: LedgerState) -> list[ObjectInfo]:
    """The objects in the folders of sinks that no entry names: harmless, and left by sinks that died."""
    listed = (info for folder in FOLDERS for info in store.list(f"{folder}/"))
    named = named_keys(state)
    return [info for info in listed if epoch_of(info.key) is not None and info.key not in named]


def overlap_problems(state: LedgerState) -> Iterator[str]:
    """No record is closed twice for one sink, and what the fold holds as closed is what the shards close."""
    found: dict[tuple[str, bytes], IntervalSet] = {}
    for shard in state.shards:
        for item in shard.closed.ranges:
            intervals = found.setdefault((shard.closed.sink, item.fragment), IntervalSet())
            try:
                intervals.add(item.first, item.end)
            except OverlapError as error:
                uri = _uri(state, item.fragment)
                yield f"entry {shard.number}: of {uri}, {error} that an earlier entry closed; {_BROKEN_LEADER}"
                intervals.cover(item.first, item.end)
    for fragment, known in state.fragments.items():
        for sink, closed in known.closed.items():
            mine = found.get((sink, fragment), IntervalSet())
            if mine != closed:
                runs = f"{list(closed)[:4]} closed for {sink}, its shards {list(mine)[:4]}"
                yield f"{known.fragment.uri}: the fold has {runs}"


def target_problems(store: ObjectStore, state: LedgerState) -> Iterator[str]:
    """The target of a duplicate is decided by an entry at or before that of its verdict.

    It is kept, or a stage behind the one that named it filtered it or found it to be a duplicate.
    """
    wanted: dict[tuple[str, str], tuple[int, str, str]] = {}
    for shard in state.shards:
        if not shard.closed.counts.duplicate:
            continue
        for key, name, target, stage in _duplicates(store, shard):
            place = target, stage
            if not target:
                yield f"entry {shard.number}: {key} has record {name} as duplicate of nothing; {_BROKEN_DEDUP}"
            elif place not in wanted or shard.number < wanted[place][0]:
                wanted[place] = (shard.number, key, name)
    kept = _kept_at(store, state, {target for target, _ in wanted}) if wanted else {}
    if kept is None:
        return  # a table of documents is broken, which is told of with its shard
    late = {place[0] for place, (number, _, _) in wanted.items() if kept.get(place[0], number + 1) > number}
    lost, decided = _lost_as(store, state, late)
    for (target, stage), (number, key, name) in sorted(wanted.items()):
        what = f"entry {number}: {key} has record {name} as duplicate of {target}"
        standing = [entry for entry, before in decided.get(target, ()) if stage in before]
        standing += [kept[target]] if target in kept else []
        if not standing:
            yield f"{what}, which is not kept{lost.get(target, '; ' + _BROKEN_DEDUP)}"
        elif min(standing) > number:
            yield f"{what}, which is kept by entry {min(standing)} only, behind it; {_BROKEN_DEDUP}"


def key_problems(store: ObjectStore, state: LedgerState) -> Iterator[str]:
    """A file of keys has one key of a text or URL for each kept record of its shard, of which 0 is none, and where a
    stage before the sink decided no two of one sink are the same.
    """
    found: dict[tuple[str, str], list[npt.NDArray[np.uint64]]] = {}
    for shard in state.shards:
        for item in shard.closed.objects:
            table = _columns(store, item.key, ["high", "low", "word"]) if kind_of(item.role) == KEYS_ROLE else None
            if table is None:
                continue
            texts = table.filter(pc.equal(table.column("word"), pa.scalar(0, pa.uint16())))
            if texts.num_rows != shard.closed.counts.kept:
                kept = shard.closed.counts.kept
                yield f"entry {shard.number}: {item.key} has {texts.num_rows} keys of texts, {kept} records are kept"
            pairs = np.empty((texts.num_rows, 3), np.uint64)
            pairs[:, 0], pairs[:, 1] = (np.asarray(texts.column(name), np.uint64) for name in ("high", "low"))
            pairs[:, 2] = shard.number
            if shard.closed.sink in _dedup_before(state, shard.closed.version):
                found.setdefault((shard.closed.sink, item.role), []).append(pairs)
    for same_keys in found.values():
        yield from _shared_keys(np.concatenate(same_keys))


def _shared_keys(keys: npt.NDArray[np.uint64]) -> Iterator[str]:
    """What is wrong where two records that one sink keeps share a key. `keys` `[n, 3]`: high, low, entry."""
    keys = keys[keys[:, 1] != 0]
    keys = keys[np.lexsort((keys[:, 2], keys[:, 1], keys[:, 0]))]
    same = np.flatnonzero((keys[1:, :2] == keys[:-1, :2]).all(axis=1))
    if len(same):
        one, other = (int(keys[same[0] + step, 2]) for step in (0, 1))
        many = counted(len(same), "kept record")
        yield (
            f"entry {other}: of {many} the text or URL is that of another kept record, the first one's of "
            f"one that entry {one} closes; {_BROKEN_DEDUP}"
        )


def _duplicates(store: ObjectStore, shard: ClosedShard) -> Iterator[tuple[str, str, str, str]]:
    for item in shard.closed.objects:
        if item.role != "verdicts":
            continue
        table = _columns(store, item.key, ["id", "verdict", "duplicate_of", "stage"])
        if table is not None:
            table = table.filter(pc.equal(table.column("verdict"), pa.scalar("duplicate")))
            columns = (table.column(name).to_pylist() for name in ("id", "duplicate_of", "stage"))
            for name, target, stage in zip(*columns, strict=True):
                yield item.key, str(name), str(target or ""), str(stage)


def _kept_at(store: ObjectStore, state: LedgerState, wanted: Collection[str]) -> dict[str, int] | None:
    """The entry that keeps each of these records, or a part of them; None where a table cannot be read."""
    found: dict[str, int] = {}
    values = pa.array(sorted(wanted), pa.string())
    for shard in state.shards:
        for item in shard.closed.objects:
            if item.role != "documents":
                continue
            table = _columns(store, item.key, ["id", "part", "fragment", "row"])
            if table is None:
                return None
            for column in (table.column("id"), whole_ids(table), _ledger_names(table)):
                for name in column.filter(pc.is_in(column, values)).to_pylist():
                    found.setdefault(str(name), shard.number)
    return found


def _ledger_names(table: pa.Table) -> Any:
    rows: Any = pc.cast(table.column("row"), pa.string())
    return pc.binary_join_element_wise(table.column("fragment"), rows, "#")


def _lost_as(
    store: ObjectStore, state: LedgerState, wanted: Iterable[str]
) -> tuple[dict[str, str], dict[str, list[tuple[int, frozenset[str]]]]]:
    """Of these records those that a stage has dropped for a reason of its own, with that, in words.

    And those that a stage behind dedup filtered or found to be duplicates, each with the entry and the dedup stages
    before that one: duplicates that these found are gone with them.
    """
    found: dict[str, str] = {}
    decided: dict[str, list[tuple[int, frozenset[str]]]] = {}
    values = pa.array(sorted(wanted), pa.string())
    tables = [(shard, item.key) for shard in state.shards for item in shard.closed.objects if item.role == "verdicts"]
    for shard, key in tables if len(values) else ():
        before = _dedup_before(state, shard.closed.version)
        table = _columns(store, key, ["id", "fragment", "row", "stage", "verdict", "reason"])
        if table is None:
            continue
        for names in (table.column("id"), _ledger_names(table)):
            for row in table.set_column(0, "id", names).filter(pc.is_in(names, values)).to_pylist():
                stages = before.get(row["stage"], frozenset())
                if row["verdict"] != "duplicate":
                    why = f"{row['verdict']} by stage {row['stage']} for {str(row['reason'])[:100]!r}"
                    found[str(row["id"])] = f" but {why}; {_FICKLE}"
                if row["verdict"] in ("filtered", "duplicate") and stages:
                    decided.setdefault(str(row["id"]), []).append((shard.number, stages))
    return found, decided


def _dedup_before(state: LedgerState, version: str) -> dict[str, frozenset[str]]:
    """The stages of a pipeline that stand behind one that decides on duplicates, each with those that do."""
    stages = state.pipelines[version].get("stages", ())
    found: dict[str, set[str]] = {}
    for deciding in (stage.get("name", "") for stage in stages if stage.get("kind") == "stateful"):
        behind = {deciding}
        # Each round goes a stage further.
        for _ in stages:
            behind |= {stage.get("name", "") for stage in stages if behind.intersection(stage.get("after", ()))}
        for name in behind - {deciding}:
            found.setdefault(name, set()).add(deciding)
    return {name: frozenset(before) for name, before in found.items()}


def _columns(store: ObjectStore, key: str, names: list[str]) -> pa.Table | None:
    try:
        return read_table(store, key, names)
    except (StoreError, KeyError, pa.ArrowException):
        return None


def _uri(state: LedgerState, fragment: bytes) -> str:
    known = state.fragments.get(fragment)
    return fragment.hex() if known is None else known.fragment.uri
