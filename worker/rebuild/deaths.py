"""The records of a shard that killed their processes, as its verdicts tell it: what a rebuild must not run again."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.pipeline import Pipeline
from headrace.protos import control_pb2 as pb
from headrace.stages.runtime import QUARANTINED, Batch, reason_class, uncut
from headrace.store import FormatError, ObjectMissing, ObjectStore
from headrace.store.ledger import UNKNOWN, Closed, Fragment, Gap, Range
from headrace.store.shards import read_table
from headrace.worker.task import Chain
from headrace.worker.task.batch import KILLED

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
        first, offset = item.first, item.offset
        for ordinal in sorted(self._by_fragment.get(item.fragment, ())):
            if not item.first <= ordinal < item.end:
                continue
            if first < ordinal:
                yield Gap(first, ordinal, offset), False
            yield Gap(ordinal, ordinal + 1, offset if first == ordinal else UNKNOWN), True
            first, offset = ordinal + 1, UNKNOWN
        if first < item.end:
            yield Gap(first, item.end, offset), False

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
