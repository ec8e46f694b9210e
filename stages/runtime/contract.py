"""What a source, a transform and a sink must be.

A task builds each stage once from its parameters and calls it from one thread. A stage holds no state that a record's
fate depends on, so that reading a record again gives the same verdict. A sink's `write` may run on a second thread,
one call at a time, while `measure` is called on the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.errors import (
    DeviceFailed as DeviceFailed,
    FragmentChanged as FragmentChanged,
    InputError as InputError,
)
from headrace.stages.runtime.records import Draft
from headrace.store import ObjectStore
from headrace.store.ledger import Counts, Fragment, Gap, StoredObject
from headrace.store.shards import RecordName


@dataclass(frozen=True, slots=True)
class FragmentEnd:
    """A fragment was read to its end: it holds `count` records, and its stored bytes have this checksum, if any.

    Who resumed in the middle says the same end without a checksum, so it is no part of what ends are compared by.
    """

    count: int
    checksum: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True)
class Compared:
    """The answer to `Comparing.compare`: the checksum of the bytes that stand there in the place of a fragment.

    `continues`: what lies behind them is a fragment of its own.
    """

    checksum: bytes
    continues: bool = False


@dataclass(slots=True)
class Shard:
    """What a sink wrote: objects by role, and what became of the records."""

    objects: tuple[StoredObject, ...]
    counts: Counts


class Source(Protocol):
    """Lists fragments and reads their gaps."""

    #: Bytes of uncompressed input that were read into batches, and bytes that had to be passed over to reach a gap.
    bytes_read: int
    bytes_skipped: int
    #: Bytes of the objects, as they are stored, behind `bytes_read`: what the sizes of fragments add up to.
    stored_read: int

    def list(self) -> Iterator[Fragment | None]:
        """Every fragment under the source, in a stable order. Raises InputError.

        None: there is no other yet; a task asks again after a while, and a run of such a source does not end before
        its listing does.
        """
        ...

    def read(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | FragmentEnd]:
        """The records of the gaps in order, as batches that never cross a gap's edge.

        A gap whose `offset` is known is read by seeking. When the last gap is unbounded, the last item is a
        FragmentEnd. Raises InputError, FragmentChanged.
        """
        ...


@runtime_checkable
class Comparing(Protocol):
    """A source that takes checksums of what it reads."""

    def compare(self, fragment: Fragment) -> Iterator[Compared | None]:
        """Read the fragment's bytes for their checksum alone, under the version that it is given with.

        With an `end` it is asked whether what lies behind that byte, and was appended, is a fragment of its own.
        None as often as there is more to read. Raises InputError, FragmentChanged.
        """
        ...


@runtime_checkable
class Expecting(Protocol):
    """A source that may prepare for what it will be asked to read next."""

    def expect(self, fragment: Fragment, gaps: Sequence[Gap]) -> None:
        """`read` will be called with these behind the one that is being read, or not at all. Raises InputError."""
        ...


@runtime_checkable
class Passing(Protocol):
    """A source whose listing passes something over."""

    def passed_over(self) -> str:
        """What the newest listing passed over, in one line for people; nothing where there is nothing to tell."""
        ...


class Transform(Protocol):
    """Gives each batch back with what it keeps and a verdict for each row that it does not."""

    def process(self, batch: Batch) -> Batch:
        """The batch after this stage. An exception quarantines: the runtime finds the record that raised."""
        ...


@runtime_checkable
class Borrowing(Protocol):
    """A stage that keeps nothing of the rows that it is given, but in the batch that it gives back.

    It is given them in the memory of the link, where others get a copy. A sink that borrows is one that shelves, and
    what it has shelved is a copy. Each class says so itself: of what it keeps, its base knows nothing.
    """

    borrows: bool


@runtime_checkable
class Elsewhere(Protocol):
    """A stage that has others work for it, such as a command: what a core spends on it is not spent by who calls it."""

    def elsewhere_s(self) -> float:
        """Seconds of processor time that others have spent for it so far."""
        ...


def does_borrow(stage: object) -> bool:
    """Whether the class of a stage says itself, and not only one that it is made from, that it borrows."""
    return vars(type(stage)).get("borrows") is True


@runtime_checkable
class Joining(Protocol):
    """A stage that takes joint batches (`headrace.stages.runtime.batch.Batch`): it asks of which fragment no record is.

    A source that joins gives drafts. Each class says so itself, as with `Borrowing`.
    """

    joins: bool


def does_join(stage: object) -> bool:
    """Whether the class of a stage says itself that it joins."""
    return vars(type(stage)).get("joins") is True


@runtime_checkable
class Drafting(Protocol):
    """A source that joins."""

    #: Bytes, and records, that a batch holds at most, or about: a joint one holds no more.
    batch_bytes: int
    batch_records: int

    def drafts(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Draft | Batch | FragmentEnd]:
        """As `Source.read`, but that what is not a batch yet may be one together with others."""
        ...


@runtime_checkable
class Shelving(Protocol):
    """A sink that does not hold in memory what it gathers."""

    def shelve(self, batch: Batch, store: ObjectStore) -> Batch:
        """The same batch, as `write` takes it too, but that what is large of its rows is in a scratch file."""
        ...


@runtime_checkable
class Relayouting(Protocol):
    """A sink that once wrote the same records as other bytes, and can do so again."""

    def as_before(self) -> bool:
        """From now on write in the layout before this one; False, and as now, where there is none."""
        ...


class StatefulTransform(Transform, Protocol):
    """A transform that remembers what it let through, of which one replica runs: dedup."""

    name: str

    @property
    def fenced(self) -> bool:
        """Whether it lets nothing through until the epoch is raised."""
        ...

    def begin(self, store: ObjectStore | None, epoch: int, sink: str) -> None:
        """Learn what a sink has kept up to an epoch's position, before the first batch; None: nothing.

        Raises PipelineError, StoreError.
        """
        ...

    def forbid(self) -> None:
        """In place of `begin`: let nothing through."""
        ...

    def recall(self, matches: Mapping[RecordName, Any]) -> None:
        """In place of `begin`: decide as these verdicts say, so that a shard can be made again."""
        ...

    @property
    def question_bytes(self) -> int:
        """Bytes of every `question`."""
        ...

    def question(self, batch: Batch) -> bytes:
        """What `decide` is to be asked for a batch of one record, in another process."""
        ...

    def decide(self, name: RecordName, question: bytes) -> Any:
        """Decide on one record as if its batch had come: its match with what it is a duplicate of, or None."""
        ...

    def release(self, names: Sequence[RecordName]) -> None:
        """Forget records that it let through: they are not kept after all."""
        ...


class Sink(Protocol):
    """Writes batches into objects."""

    #: The size at which a shard is sealed, in the bytes that `measure` counts; 0: the runtime's default.
    shard_bytes: int

    def begin(self, dataset: str, version: str) -> None:
        """Called once, before the first batch: the dataset's name and the version of the pipeline that makes it."""
        ...

    def measure(self, batch: Batch) -> int:
        """How many bytes of the shard's target size the batch's kept rows will take."""
        ...

    def write(self, batches: Sequence[Batch], store: ObjectStore, prefix: str) -> Shard:
        """Write a shard of whole batches under `prefix`, create-if-absent, under names that follow from the bytes.

        The same batches in the same order give the same objects.
        """
        ...
