"""What the sources of files share: patterns, listing, and what becomes of a damaged file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from headrace.stages.runtime import Batch, BatchDraft, Columns, ContentAnswer, FragmentEnd, InputError, Source
from headrace.stages.sources.objects import (
    Content,
    EndingStream,
    Format,
    InputObject,
    Inputs,
    check_format,
    expect,
    globs_of,
    open_raw,
    to_path,
)
from headrace.stages.sources.options import QUARANTINE, ReadOptions
from headrace.store.ledger import Fragment, Gap


class FileSource(Source):
    """The base of the sources that read one format."""

    FORMAT: ClassVar[Format]
    #: Part of each fragment's name: a change of what is a record, and which number it has, needs another.
    READER: ClassVar[str]
    #: Whether a file is read from its first byte on.
    FROM_FRONT: ClassVar[bool] = True
    #: With what each record ends, where a file is a row of records that anybody may append to.
    ROW: ClassVar[bytes] = b""
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
        """The fragments of one file: the whole of it."""
        yield found.fragment(self.name, self.READER)

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
        with EndingStream(self.inputs, fragment, self.options.window_bytes_max) as file:
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
