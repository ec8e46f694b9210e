"""What the sources of files share: patterns, listing, and what becomes of a damaged file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from headrace.stages.runtime import (
    Batch,
    BatchDraft,
    Columns,
    ContentAnswer,
    FragmentChanged,
    FragmentEnd,
    InputError,
    Prefix,
    Source,
)
from headrace.stages.sources.objects import (
    FETCHED_BYTES_MAX,
    WINDOW_BYTES,
    Content,
    Format,
    InputObject,
    Inputs,
    InputStream,
    Unpacker,
    UpTo,
    check_format,
    codec_of,
    expect,
    globs_of,
    has_several,
    open_raw,
    partition_of,
    to_path,
)
from headrace.stages.sources.options import QUARANTINE, ReadOptions
from headrace.store.ledger import UNBOUNDED, Fragment, Gap

#: What the reader of a fragment is called further, where a compressed file was cut at stored bytes.
UNITS = "+units/1"
#: How many times fewer bytes such a fragment has than one that is not compressed.
UNITS_A_PLAIN = 4
#: Fragments of one file; of a larger one, or one that a server says is larger, each is larger.
FRAGMENTS_A_FILE_MAX = 1 << 17
#: From so many bytes on it is said that a compressed file cannot be cut.
NOTED_BYTES = 256 << 20


class EndingStream(InputStream):
    """The uncompressed bytes of a fragment that ends where its object did, whatever was appended since."""

    #: Bytes that are remembered.
    TAIL_BYTES = 4

    def __init__(self, inputs: Inputs, fragment: Fragment, window_bytes_max: int = WINDOW_BYTES) -> None:
        super().__init__(inputs, fragment, window_bytes_max)
        self._stored = UpTo(self._raw, fragment.start + fragment.size)
        self._told = fragment.start
        if not self.compressed:
            self._raw.seek(fragment.start)
        #: The last bytes that were read.
        self.tail = b""

    def _units(self, end: int) -> Unpacker:
        del end  # it ends where the object did
        return super()._units(-1)

    def read(self, size: int = -1) -> bytes:
        """See InputStream."""
        found = super().read(size)
        self.tail = (self.tail + found[-self.TAIL_BYTES :])[-self.TAIL_BYTES :]
        return found


_Stream = TypeVar("_Stream", bound=InputStream)


def step_of(size: int, wanted: int) -> int:
    """Bytes of each fragment of a file that says it has so many: the controller remembers every one."""
    return max(1, wanted, -(-size // FRAGMENTS_A_FILE_MAX))


def prefix_of(fragment: Fragment) -> str:
    """By what a record of a fragment is named that has no id of its own, before its number."""
    return f"{fragment.uri}@{fragment.start}" if fragment.start else fragment.uri


def columns_of(fragment: Fragment) -> Columns:
    """What the records of a fragment are gathered in."""
    return Columns(prefix_of(fragment), partition_of(fragment.uri))


class FileSource(Source):
    """The base of the sources that read one format."""

    FORMAT: ClassVar[Format]
    #: Part of each fragment's name: a change of what is a record, and which number it has, needs another.
    READER: ClassVar[str]
    #: Whether a file is read from its first byte on.
    FROM_FRONT: ClassVar[bool] = True
    #: With what each record ends, where a file is a row of records that anybody may append to.
    ROW: ClassVar[bytes] = b""
    #: With what the first unit of a record begins, where compressed files of many units are cut; None: they are not.
    UNIT: ClassVar[bytes | None] = None
    bytes_read: int = 0
    bytes_skipped: int = 0
    stored_read: int = 0
    #: The options, where none are given.
    DEFAULTS: ClassVar[ReadOptions] = ReadOptions()

    def __init__(self, name: str, input: Sequence[str], **options: Any) -> None:  # noqa: A002 (the command line's word)
        self.name = name
        self.options = replace(self.DEFAULTS, **options)
        self.inputs = Inputs(input, globs_of((self.FORMAT,)), follow_links=self.options.follow_links)
        self.batch_bytes, self.batch_records = self.options.batch_bytes, self.options.batch_records
        #: What was opened last.
        self._at: InputStream | None = None

    def list(self) -> Iterator[Fragment | None]:
        """Every fragment of every file, in the order of the files' names. Raises InputError, StoreError."""
        for found in self.inputs:
            check_format(to_path(found.uri), (self.FORMAT,))
            yield from self.fragments(found)

    def skipped(self) -> str:
        """See `Source.skipped`."""
        return self.inputs.skipped.line()

    def read_singly(self) -> bool:
        """See `Source.read_singly`."""
        self.batch_records = 1
        return True

    def fragments(self, found: InputObject) -> Iterator[Fragment]:
        """The fragments of one file: ranges of a compressed one that has many units, the whole of any other."""
        step = step_of(found.size, self.options.fragment_bytes // UNITS_A_PLAIN)
        if not (self.UNIT is not None and codec_of(found.uri) and found.size > step and self._has_units(found)):
            yield found.fragment(self.name, self.READER)
            return
        yield from found.fragments(self.name, self.READER + UNITS, range(0, found.size, step))

    def _has_units(self, found: InputObject) -> bool:
        whole, window = found.fragment(self.name, self.READER), self.options.window_bytes_max
        with open_raw(self.inputs, whole, ahead=False, size=found.size) as raw:
            several = has_several(raw.fetched, codec_of(found.uri), found.size, self.UNIT or b"", window)
        if not several and found.size >= NOTED_BYTES:
            self.inputs.skipped.add_whole(to_path(found.uri), found.size)
        return several

    def stream(self, fragment: Fragment, kind: type[_Stream]) -> _Stream:
        """The bytes of a fragment, with the first unit found where it is one of many."""
        file = self._at = kind(self.inputs, fragment, self.options.window_bytes_max)
        if fragment.reader.endswith(UNITS):
            try:
                file.cut(self.UNIT or b"")
            except BaseException:
                file.close()
                raise
        return file

    def expect(self, fragment: Fragment, gaps: Sequence[Gap]) -> None:
        """See `Source.expect`."""
        if self.FROM_FRONT and fragment.start == 0 and gaps and gaps[0].first == 0:
            expect(self.inputs, fragment)

    def read(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | FragmentEnd]:
        """See `Source.read`."""
        for item in self.drafts(fragment, gaps):
            yield item.batch() if isinstance(item, BatchDraft) else item

    def drafts(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[BatchDraft | Batch | FragmentEnd]:
        """See `Source.drafts`. A source has this, or `read`."""
        yield from self.read(fragment, gaps)

    @staticmethod
    def pass_to(file: InputStream, position: int) -> None:
        """Read up to a byte for the checksum alone, before it is read on there; as much as is fetched for that."""
        if file.compressed or position - file.fragment.start > FETCHED_BYTES_MAX:
            return
        file.seek(file.content.at)
        while file.tell() < position and file.read(position - file.tell()):
            pass

    def prefix(self, fragment: Fragment) -> Prefix | None:
        """See `Source.prefix`."""
        found = self._at.content.prefix() if self._at is not None and self._at.fragment == fragment else None
        return Prefix(*found) if found is not None else None

    def compare(self, fragment: Fragment) -> Iterator[ContentAnswer | None]:
        """See `Source.compare`."""
        if fragment.end < 0 or not self.ROW:
            with open_raw(self.inputs, fragment, ahead=True) as raw:
                content = Content(fragment)
                for _ in content.rest(raw):
                    yield None
                raw.check()
            yield ContentAnswer(content.checksum())
            return
        with self.stream(fragment, EndingStream) as file:
            continues = True
            try:
                for _ in self.skip_through(file, fragment):
                    yield None
            except InputError:
                file.check()
                continues = False
            checksum = file.checksum()
            file.check()
        yield ContentAnswer(checksum, not fragment.size or (continues and file.tail.endswith(self.ROW)))

    def skip_through(self, file: EndingStream, fragment: Fragment) -> Iterator[None]:
        """Read what ends with the fragment, some at a time. Raises DamagedInput where it is not whole."""
        del fragment
        while file.read():
            yield None

    @property
    def _salvages(self) -> bool:
        """Whether what can be read of a damaged file is kept."""
        return self.options.damaged == QUARANTINE

    def lost(self, fragment: Fragment, ordinal: int, why: str) -> Batch:
        """The batch of one record that stands for what cannot be read of a damaged file.

        It has no bytes, so that nobody seeks to what would stand behind it.
        """
        columns = Columns(fragment.uri)
        columns.reject(ordinal, None, f"damaged file: {why}; what follows is lost", b"")
        return columns.batch(fragment, self.name, ordinal, 1, -1, -1)


class StreamedSource(FileSource):
    """The base of those that read a fragment as one stream, gap by gap."""

    def read(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | FragmentEnd]:
        """The records of the gaps. Offsets are those of the uncompressed file."""
        ordinal, checksum = 0, b""
        for gap in gaps:
            with self.stream(fragment, InputStream) as file:
                if gap is gaps[-1] and gap.offset > 0:
                    self.pass_to(file, fragment.start + gap.offset)
                ordinal = yield from self._gap(file, fragment, gap)
                checksum = file.checksum() if gap.end == UNBOUNDED else b""
                file.check()
                self.bytes_skipped += file.skipped
            if ordinal < gap.first or (gap.end != UNBOUNDED and ordinal < gap.end):
                raise FragmentChanged(f"{fragment.uri} ends after record {ordinal}, before the records {gap.first}..")
        if gaps and gaps[-1].end == UNBOUNDED:
            yield FragmentEnd(ordinal, checksum)

    @abstractmethod
    def _gap(self, file: InputStream, fragment: Fragment, gap: Gap) -> Generator[Batch, None, int]:
        """Batches up to the gap's end; returns the ordinal behind them."""
