"""What a source, a transform and a sink must be, and what they may be besides.

A task builds each stage once from its parameters and calls it from one thread. A stage holds no state that a record's
fate depends on, so that reading a record again gives the same verdict. A sink's `write` may run on a second thread,
one call at a time, while `measure` is called on the first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headrace.stages.runtime.batch import Batch, BatchDraft
from headrace.stages.runtime.errors import (
    DeviceFailed as DeviceFailed,
    FragmentChanged as FragmentChanged,
    InputError as InputError,
)
from headrace.store import ObjectStore
from headrace.store.ledger import Counts, Fragment, Gap, StoredObject
from headrace.store.shards import RecordName


@dataclass(frozen=True, slots=True)
class FragmentEnd:
    """A fragment was read to its end: it holds `count` records, and its stored bytes have this checksum, if any.

    A reader that resumed in the middle gives no checksum, so ends are compared without it.
    """

    count: int
    checksum: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True)
class ContentAnswer:
    """The answer to `Source.compare`: the checksum of the bytes that stand in the place of a fragment.

    `continues`: the bytes that follow it are a fragment of their own.
    """

    checksum: bytes
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first bytes of a fragment, as they are stored, in which all lies that was read of it; and their checksum."""

    size: int
    checksum: bytes


@dataclass(slots=True)
class WrittenShard:
    """What a sink wrote: objects by role, and what became of the records."""

    objects: tuple[StoredObject, ...]
    counts: Counts


class _Stage(ABC):  # noqa: B024 - each kind of stage has abstract methods of its own
    """What all stages share. A subclass does not inherit `borrows` and `merges`: it knows what it keeps itself."""

    #: True: it keeps none of the rows that it is given, except in the batch that it returns. The runtime then lends it
    #: the link's memory; other stages get a copy. A sink that borrows spills.
    borrows: ClassVar[bool] = False
    #: True: it takes merged batches (`headrace.stages.runtime.batch.Batch`). A source that merges gives drafts, and a
    #: sink that merges spills.
    merges: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Reset the promises that the class does not make itself."""
        super().__init_subclass__()
        cls.borrows, cls.merges = cls.__dict__.get("borrows", False), cls.__dict__.get("merges", False)

    def facts(self) -> Mapping[str, str]:
        """What a run's status shows of this stage, by name."""
        return {}


class Source(_Stage):
    """Lists fragments and reads their gaps."""

    @property
    @abstractmethod
    def bytes_read(self) -> int:
        """Bytes of uncompressed input that were read into batches."""

    @property
    @abstractmethod
    def bytes_skipped(self) -> int:
        """Bytes of it that were skipped to reach a gap."""

    @property
    @abstractmethod
    def stored_read(self) -> int:
        """Bytes of the stored objects that `bytes_read` came from: sizes of fragments add up to these."""

    #: Of a source that merges: about how many bytes, and at most how many records, a batch holds.
    batch_bytes: int = 0
    batch_records: int = 0

    @abstractmethod
    def list(self) -> Iterator[Fragment | None]:
        """Every fragment under the source, in a stable order. Raises InputError.

        None: there is no other yet; a task asks again after a while, and a run of such a source does not end before
        its listing does.
        """

    @abstractmethod
    def read(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | FragmentEnd]:
        """The records of the gaps in order, as batches that never cross a gap's edge.

        A gap whose `offset` is known is read by seeking. When the last gap is unbounded, the last item is a
        FragmentEnd. Raises InputError, FragmentChanged.
        """

    def drafts(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[BatchDraft | Batch | FragmentEnd]:
        """As `read`, but small batches come as drafts, which the runtime may merge."""
        return self.read(fragment, gaps)

    def compare(self, fragment: Fragment) -> Iterator[ContentAnswer | None]:
        """Read the fragment's bytes for their checksum alone, under the version that it is given with.

        If the fragment has an `end`, the answer says whether the bytes that were appended after it are a fragment of
        their own. Gives None while there is more to read. Raises InputError, FragmentChanged.
        """
        del fragment
        yield ContentAnswer(b"")

    def prefix(self, fragment: Fragment) -> Prefix | None:
        """In which bytes all lies that `read` has given of the fragment that it read last; None: nobody can tell."""
        del fragment
        return None

    def expect(self, fragment: Fragment, gaps: Sequence[Gap]) -> None:
        """Prepare for these: `read` may be called with them next. Raises InputError."""

    def skipped(self) -> str:
        """What the newest listing skipped, in one line for people; "" for nothing."""
        return ""

    def all_below(self) -> str:
        """With what the URIs begin of which a listing names all that the source has; "": it names what it finds.

        Where such a listing lacks an object that was read, others are taken to hold its records.
        """
        return ""

    def read_singly(self) -> bool:
        """From now on give batches of one record; False where it cannot."""
        return False


class Transform(_Stage):
    """Returns each batch with what it keeps and a verdict for each row that it does not."""

    #: True: it may return several parts of a record.
    splits: ClassVar[bool] = False
    #: True: it changes nothing of a record that it keeps, unless its parameter `tag` is set. A run with a base does not
    #: give it what it had kept there. Not inherited.
    judges: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Reset the promise that the class does not make itself."""
        super().__init_subclass__()
        cls.judges = cls.__dict__.get("judges", False)

    @abstractmethod
    def process(self, batch: Batch) -> Batch:
        """The batch after this stage. An exception quarantines: the runtime finds the record that raised."""

    def stand_behind(self, remembering: int) -> None:
        """Before the first batch: so many stages that remember stand before it, and each has keys of its own."""

    def delegated_cpu_s(self) -> float:
        """Seconds of processor time that other processes have spent for it so far, such as a command."""
        return 0.0


class IndexPart(ABC):
    """A partition of what a stateful transform remembers, in a task of its own."""

    @abstractmethod
    def begin(self, store: ObjectStore | None, epoch: int, sinks: Sequence[str]) -> None:
        """See `StatefulTransform.begin`."""

    @abstractmethod
    def prepare(self, store: ObjectStore, sinks: Sequence[str]) -> None:
        """See `StatefulTransform.prepare`."""

    @abstractmethod
    def serve(self, request: bytes) -> bytes:
        """The answer to a request of the decider. ValueError where it is none."""

    @abstractmethod
    def refuse(self, request: bytes) -> bytes:
        """The answer of a partition that lets nothing through. ValueError where the request is none."""


class StatefulTransform(Transform):
    """A transform that remembers what it let through: dedup. One replica decides; others may be partitions."""

    name: str

    @abstractmethod
    def part(self, partitions: int) -> None:
        """Before `begin`: what it remembers lies in so many partitions, which are asked before each batch."""

    @abstractmethod
    def share(self, number: int, partitions: int) -> IndexPart:
        """Partition `number` of so many, in place of the one that decides."""

    @abstractmethod
    def requests(self, question: Batch | bytes) -> list[bytes]:
        """What each partition is asked before a batch is processed, or a `question` decided. ValueError for neither."""

    @abstractmethod
    def answered(self, question: Batch | bytes, answers: Sequence[bytes]) -> None:
        """All partitions have answered the last requests, and what they were for is next. ValueError: one is none."""

    @property
    @abstractmethod
    def fenced(self) -> bool:
        """Whether it lets nothing through until the epoch is raised."""

    @abstractmethod
    def begin(self, store: ObjectStore | None, epoch: int, sinks: Sequence[str]) -> None:
        """Learn what sinks have kept up to an epoch's position, before the first batch; None: nothing.

        Raises PipelineError, StoreError.
        """

    @abstractmethod
    def prepare(self, store: ObjectStore, sinks: Sequence[str]) -> None:
        """Before `begin`, learn what sinks have kept by now. Raises as that."""

    @abstractmethod
    def forbid(self) -> None:
        """In place of `begin`: let nothing through."""

    @abstractmethod
    def recall(self, matches: Mapping[RecordName, Any]) -> None:
        """In place of `begin`: decide as these verdicts say, so that a shard can be made again."""

    @abstractmethod
    def fits(self, question: bytes) -> bool:
        """Whether bytes that another process sent may be a `question`."""

    @abstractmethod
    def question(self, batch: Batch) -> bytes:
        """What `decide` is to be asked for a batch of one record, in another process."""

    @abstractmethod
    def decide(self, name: RecordName, question: bytes) -> Any:
        """Decide on one record as if its batch had come: its match with what it is a duplicate of, or None."""

    @abstractmethod
    def release(self, names: Sequence[RecordName]) -> None:
        """Forget records that it let through: they are not kept after all."""


class Sink(_Stage):
    """Writes batches into objects."""

    #: The size at which a shard is sealed, in the bytes that `measure` counts; 0: the runtime's default.
    shard_bytes: int = 0

    @abstractmethod
    def begin(self, dataset: str, version: str) -> None:
        """Called once, before the first batch: the dataset's name and the version of the pipeline that makes it."""

    @abstractmethod
    def measure(self, batch: Batch) -> int:
        """How many bytes of the shard's target size the batch's kept rows will take."""

    def spill(self, batch: Batch, store: ObjectStore) -> Batch:
        """The same batch, which `write` takes too, with its large columns in a spill file; as it is by default."""
        del store
        return batch

    @abstractmethod
    def write(self, batches: Sequence[Batch], store: ObjectStore, prefix: str) -> WrittenShard:
        """Write a shard of whole batches under `prefix`, create-if-absent, under names that follow from the bytes.

        The same batches in the same order give the same objects.
        """

    def use_older_layout(self) -> bool:
        """From now on write the same records in the layout before this one; False where there is none."""
        return False
