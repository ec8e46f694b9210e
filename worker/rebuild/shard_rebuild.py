"""Make a shard again from its source, without a controller, and compare it with what the ledger names.

The ledger says which records a shard closed, where their bytes begin, and which version of the pipeline made it. The
same stages over the same records give the same tokens, so the object's name, which is the hash of its bytes, is the
proof. What cannot be made again is said: a source that changed, or a stage that is not deterministic.

A record that killed its process is not given to that stage again: its verdict is taken from the shard's record of
verdicts (`PoisonRecords`). Likewise which records are duplicates is taken from the record: it hung on all that came
before.

All other verdicts are made again. A stage that judges otherwise than it did, since it is of another version or reads
what has changed, keeps what it had quarantined or filtered: then the shard is not the same, and `Rebuilt.fates` says
of how many records.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.pipeline import Pipeline, Stage
from headrace.protos import control_pb2 as pb
from headrace.stages.runtime import QUARANTINED, Batch, FragmentEnd, Sink, reason_class, uncut
from headrace.stages.sinks import count_fates
from headrace.store import FormatError, ObjectMissing, ObjectStore, StoreRefused, counted, find, open_store, put
from headrace.store.datasets import fold_ledger
from headrace.store.ledger import Closed, ClosedShard, Counts, Fragment, Gap, LedgerState, Range, StoredObject
from headrace.store.shards import read_table
from headrace.worker.task import Chain, KeyWriter, recall_verdicts
from headrace.worker.task.batch import KILLED, split_at

_COLUMNS = ("fragment", "row", "stage", "verdict", "reason")


class PoisonRecords:
    """Which records of one shard are poison, at which stage, and why.

    Raises FormatError where the ledger counts such records and the table that names them cannot be read: what killed
    is then not known, and everything might.
    """

    def __init__(self, store: ObjectStore, closed: Closed) -> None:
        self._by_fragment: dict[bytes, dict[int, pb.PoisonRecord]] = {}
        self._chains: dict[tuple[str, ...], Chain] = {}
        if closed.counts.quarantined:
            self._learn(store, closed)

    def around(self, item: Range) -> Iterator[tuple[Gap, bool]]:
        """The range in parts that stop and begin at each poison record, and whether a part is such a record."""
        poison = sorted(self._by_fragment.get(item.fragment, ()))
        return split_at(Gap(item.first, item.end, item.offset), poison)

    def decide(self, pipeline: Pipeline, path: list[str], fragment: Fragment, gap: Gap) -> Batch:
        """The batch of one poison record: it has gone through all stages before the one that it killed."""
        key = tuple(path)
        if key not in self._chains:
            self._chains[key] = chain = Chain(pipeline, path, alone=True)
            for dedup in chain.dedups:
                # What killed behind dedup was let through.
                dedup.recall({})
        chain = self._chains[key]
        assert chain.isolation is not None
        death = self._by_fragment[fragment.id][gap.first]
        chain.isolation.learn(pb.ReadFragment(fragment=pb.Fragment(id=fragment.id), poison=[death]))
        for batch in chain.read(fragment, [gap]):
            if isinstance(batch, Batch):
                return chain.probe(chain.process(batch))
        raise FormatError(f"{fragment.uri}: it has no record {gap.first} any more; the source was changed")

    def _learn(self, store: ObjectStore, closed: Closed) -> None:
        key = next((item.key for item in closed.objects if item.role == "verdicts"), "(none)")
        try:
            rows = read_table(store, key, _COLUMNS).to_pylist()
        except ObjectMissing as error:
            if not any(name.endswith(f"/{reason_class(KILLED)}") for name in closed.counts.quarantined_by):
                return
            raise FormatError(
                f"{store.uri}: records of this shard killed their processes, and {key!r}, which names them, "
                "is missing; restore it from a copy: without it the shard cannot be made again safely"
            ) from error
        for row in rows:
            if row["verdict"] != QUARANTINED or not row["reason"].startswith(KILLED):
                continue
            story = uncut(row["reason"].removeprefix(KILLED))
            poison = pb.PoisonRecord(ordinal=row["row"], stage=row["stage"], story=story)
            self._by_fragment.setdefault(bytes.fromhex(row["fragment"]), {})[row["row"]] = poison


#: Shards that a refusal names where several have what was given in a key.
CANDIDATES_SHOWN = 10


#: Places that are named of those that a rebuild reads.
PLACES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What became of one shard: objects by role as the ledger names them, and as they were made again."""

    named: dict[str, StoredObject]
    made: dict[str, StoredObject]
    restored: tuple[str, ...] = ()
    #: By fate, stage and reason, where they differ: records that the ledger counts, and those that were counted now.
    fates: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    @property
    def identical(self) -> bool:
        """Whether what is promised is the same byte by byte: the tokens; of a sink without tokens, everything."""
        if "tokens" in self.named:
            return self.named["tokens"].checksum == self.made["tokens"].checksum
        return not self.differing()

    def differing(self) -> list[str]:
        """The roles whose bytes differ."""
        return [role for role, item in self.named.items() if self.made.get(role) != item]


@dataclass(frozen=True, slots=True)
class RebuildOrder:
    """A shard that is to be made again, and by what; nothing of it has run yet."""

    store: ObjectStore
    state: LedgerState
    closed: Closed
    pipeline: Pipeline

    def code(self) -> list[str]:
        """What runs on this machine when the shard is made again, a line each: the word of the ledger, not ours."""
        return [line for stage in self.pipeline.stages for line in code_of(stage, self.pipeline.modules)]

    def places(self) -> list[str]:
        """What is read for it, with this user's rights and keys, a line each: the word of the ledger, too."""
        found = {self.state.fragments[item.fragment].fragment.uri: None for item in self.closed.ranges}
        more = len(found) - PLACES_SHOWN
        return [*list(found)[:PLACES_SHOWN], *([f"and {counted(more, 'object')} more"] if more > 0 else [])]


def order(uri: str, shard: str) -> RebuildOrder:
    """Find the shard that has `shard` in a key of it, and the pipeline that made it. Raises StoreError, PipelineError.

    The ledger is read, and nothing that it names is imported.
    """
    store = open_store(uri)
    state = fold_ledger(store)
    closed = find_shard(state, shard, store.uri)
    if any(state.erased_rows(item.key) for item in closed.objects):
        raise StoreRefused(f"{store.uri}: texts of this shard were erased: it cannot be made again from its source")
    return RebuildOrder(store, state, closed, _pipeline_of(store.uri, state, closed.version))


def code_of(stage: Stage, modules: Mapping[str, str]) -> Iterator[str]:
    """What runs for a stage of a pipeline with these modules, a line each."""
    targets = [stage.target, str(stage.parameters.get("function", ""))]
    for target in targets:
        module = target.partition(":")[0]
        shipped = next((name for name in modules if module == name or module.startswith(f"{name}.")), None)
        if shipped is not None:
            where = f"its text is in the ledger, {len(modules[shipped].encode()):,} bytes"
        elif module.partition(".")[0] == "headrace":
            where = "of this Headrace"
        else:
            where = "as it is installed here"
        if target:
            yield f"{stage.name}: {target}, {where}"
    if "arguments" in stage.parameters:
        yield f"{stage.name}: runs the program {stage.parameters['arguments']!r}"


def rebuild(work: RebuildOrder, *, restore: bool = False) -> Rebuilt:
    """Make the shard again: this runs the code that the ledger names (`RebuildOrder.code`), with this process's rights.

    With `restore`, objects that are missing in the store and came out identical are put back; one that stands there
    and is another is refused. Raises StoreError, InputError and PipelineError.
    """
    store, state, closed, pipeline = work.store, work.state, work.closed, work.pipeline
    key_writer = KeyWriter.of(pipeline, closed.sink)
    sink = Chain(pipeline, [closed.sink]).sink
    assert sink is not None
    sink.begin(pipeline.name, closed.version)
    named = {item.role: item for item in closed.objects}
    with tempfile.TemporaryDirectory(prefix="headrace-rebuild-") as folder:
        scratch = open_store(folder)
        read = _read_again(store, pipeline, state, closed)
        batches = [sink.spill(batch, scratch) for batch in read]
        objects = _written(sink, batches, scratch, closed, named)
        if key_writer is not None:
            keys = key_writer.write(batches, scratch, f"shards/{closed.epoch}/")
            objects |= {item.role: item for item in keys}
        restored = tuple(_put_back(store, scratch, named, objects)) if restore else ()
        fates = other_fates(closed.counts, count_fates(batches, tokens=0, sequences=0, padding=0))
    return Rebuilt(named, objects, restored, fates)


def other_fates(named: Counts, made: Counts) -> dict[str, tuple[int, int]]:
    """The fates, with stage and reason, of which there are not as many: how many there were, and are."""
    before, now = (
        {
            "kept": counts.kept,
            "duplicate": counts.duplicate,
            **{f"filtered by {reason}": count for reason, count in counts.filtered_by.items()},
            **{f"quarantined by {reason}": count for reason, count in counts.quarantined_by.items()},
        }
        for counts in (named, made)
    )
    both = {fate: (before.get(fate, 0), now.get(fate, 0)) for fate in {**before, **now}}
    return {fate: counts for fate, counts in both.items() if counts[0] != counts[1]}


def _written(
    sink: Sink, batches: list[Batch], scratch: ObjectStore, closed: Closed, named: dict[str, StoredObject]
) -> dict[str, StoredObject]:
    """The objects of the shard, in the layout that it was written in."""
    prefix = f"shards/{closed.epoch}/"
    first: dict[str, StoredObject] | None = None
    best: dict[str, StoredObject] | None = None
    # Its object may be gone, so that nobody can look how it was written.
    while True:
        made = {item.role: item for item in sink.write(batches, scratch, prefix).objects}
        first = first or made
        if all(named.get(role, item) == item for role, item in made.items()):
            return made
        if best is None and Rebuilt(named, made).identical:
            best = made
        if not sink.use_older_layout():
            return best or first


def _put_back(
    store: ObjectStore, scratch: ObjectStore, named: dict[str, StoredObject], made: dict[str, StoredObject]
) -> Iterable[str]:
    for role, item in named.items():
        if made.get(role) != item:
            continue
        data = scratch.get(item.key)
        if not find(store, item.key, [data]):
            put(store, item.key, [data])
            yield item.key


def find_shard(state: LedgerState, shard: str, uri: str) -> Closed:
    """The one shard that has `shard` in a key. FormatError where none has, or several; it says how each is named."""
    found = [entry for entry in state.shards if any(shard in item.key for item in entry.closed.objects)]
    if not found:
        raise FormatError(
            f"{uri}: no shard of the ledger has {shard!r} in a key; give the hash of one, as the manifest names it"
        )
    if len(found) > 1:
        # Shards that kept nothing have the same empty tokens; what tells them apart is the table of their verdicts.
        names = [f"{own_key(state, entry)} of entry {entry.number}" for entry in found[:CANDIDATES_SHOWN]]
        more = f" and {len(found) - CANDIDATES_SHOWN} more" if len(found) > CANDIDATES_SHOWN else ""
        raise FormatError(
            f"{uri}: {len(found)} shards of the ledger have {shard!r} in a key; give a key that one of them alone has: "
            f"{', '.join(names)}{more}"
        )
    return found[0].closed


def own_key(state: LedgerState, entry: ClosedShard) -> str:
    """A key that no other shard has; where it has none, its first key."""
    others = {item.key for other in state.shards if other is not entry for item in other.closed.objects}
    keys = [item.key for item in entry.closed.objects]
    return next((key for key in keys if key not in others), keys[0])


def _pipeline_of(uri: str, state: LedgerState, version: str) -> Pipeline:
    if version not in state.pipelines:
        raise FormatError(f"{uri}: the ledger names no pipeline of version {version}")
    return Pipeline.from_dict(state.pipelines[version])


def _read_again(store: ObjectStore, pipeline: Pipeline, state: LedgerState, closed: Closed) -> Iterable[Batch]:
    deaths = PoisonRecords(store, closed)
    chains: dict[str, Chain] = {}
    for item in closed.ranges:
        fragment = state.as_it_stands(state.fragments[item.fragment].fragment)
        path = path_between(pipeline, fragment.stage, closed.sink)
        if fragment.stage not in chains:
            chains[fragment.stage] = Chain(pipeline, path[:-1])
            recall_verdicts(chains[fragment.stage], store, closed)
        chain = chains[fragment.stage]
        for gap, poison in deaths.around(item):
            if poison:
                yield deaths.decide(pipeline, path, fragment, gap)
                continue
            for batch in chain.read(fragment, [gap]):
                if not isinstance(batch, FragmentEnd):
                    yield chain.process(batch)


def path_between(pipeline: Pipeline, source: str, sink: str) -> list[str]:
    """The stages from a source to a sink; validation sees to it that there is one way only."""
    if source == sink:
        return [sink]
    for stage in pipeline.downstream(source):
        rest = path_between(pipeline, stage, sink)
        if rest:
            return [source, *rest]
    return []
