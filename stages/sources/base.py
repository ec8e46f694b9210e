"""What the sources of files share: patterns, listing, and what becomes of a damaged file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from headrace.pipeline import PipelineError
from headrace.stages.runtime import Batch, Columns, Compared, Draft, FragmentEnd, InputError
from headrace.stages.sources.objects import (
    WINDOW_BYTES,
    Content,
    EndingStream,
    InputObject,
    Inputs,
    check_format,
    expect,
    globs_of,
    open_raw,
    to_path,
)
from headrace.store.ledger import Fragment, Gap

#: A damaged file ends the run, or is read as far as it goes and the rest quarantined as one record.
STOP = "stop"
QUARANTINE = "quarantine"


class FileSource:
    """The base of the sources that read one format."""

    #: The format, as `patterns.SUFFIXES` has it.
    KIND: ClassVar[str]
    #: Part of each fragment's name: a change of what is a record, and which number it has, needs another.
    READER: ClassVar[str]
    #: Whether a file is read from its first byte on.
    FROM_FRONT: ClassVar[bool] = True
    #: With what each record ends, where a file is a row of records that anybody may append to.
    ROW: ClassVar[bytes] = b""
    #: What a stream of zstd may take of memory.
    window_bytes_max: int = WINDOW_BYTES

    def __init__(self, name: str, patterns: Sequence[str], damaged: str = STOP, *, follow_links: bool = False) -> None:
        if damaged not in (STOP, QUARANTINE):
            raise PipelineError(f'stage "{name}": damaged is {damaged!r}; it must be "{STOP}" or "{QUARANTINE}"')
        self.name = name
        self.salvage = damaged == QUARANTINE
        self.inputs = Inputs(patterns, globs_of(self.KIND), follow_links=follow_links)
        self.bytes_read = 0
        self.bytes_skipped = 0
        self.stored_read = 0

    def list(self) -> Iterator[Fragment | None]:
        """Every fragment of every file, in the order of the files' names. Raises InputError, StoreError."""
        for found in self.inputs:
            check_format(to_path(found.uri), self.KIND)
            yield from self.fragments(found)

    def passed_over(self) -> str:
        """See `Passing.passed_over`."""
        return self.inputs.passed_over.words()

    def fragments(self, found: InputObject) -> Iterator[Fragment]:
        """The fragments of one file: the whole of it."""
        yield found.fragment(self.name, self.READER)

    def expect(self, fragment: Fragment, gaps: Sequence[Gap]) -> None:
        """See `Expecting.expect`."""
        if self.FROM_FRONT and fragment.start == 0 and gaps and gaps[0].first == 0:
            expect(self.inputs, fragment)

    def read(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | FragmentEnd]:
        """See `Source.read`."""
        for item in self.drafts(fragment, gaps):
            yield item.batch() if isinstance(item, Draft) else item

    def drafts(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Draft | Batch | FragmentEnd]:
        """See `Drafting.drafts`. A source has this, or `read`."""
        yield from self.read(fragment, gaps)

    def compare(self, fragment: Fragment) -> Iterator[Compared | None]:
        """See `Comparing.compare`."""
        if fragment.end < 0 or not self.ROW:
            with open_raw(self.inputs, fragment, ahead=True) as raw:
                content = Content(fragment)
                for _ in content.rest(raw):
                    yield None
                raw.check()
            yield Compared(content.checksum())
            return
        with EndingStream(self.inputs, fragment, self.window_bytes_max) as file:
            continues = True
            try:
                for _ in self.pass_over(file, fragment):
                    yield None
            except InputError:
                file.check()
                continues = False
            checksum = file.checksum()
            file.check()
        yield Compared(checksum, not fragment.size or (continues and file.tail.endswith(self.ROW)))

    def pass_over(self, file: EndingStream, fragment: Fragment) -> Iterator[None]:
        """Read what ends with the fragment, some at a time. Raises DamagedInput where it is not whole."""
        del fragment
        while file.read():
            yield None

    def lost(self, fragment: Fragment, ordinal: int, why: str) -> Batch:
        """The batch of one record that stands for what cannot be read of a damaged file.

        It has no bytes, so that nobody seeks to what would stand behind it.
        """
        columns = Columns(fragment.uri)
        columns.reject(ordinal, None, f"damaged file: {why}; what follows is lost", b"")
        return columns.batch(fragment, self.name, ordinal, 1, -1, -1)
