"""The source of files of several formats, told apart by their suffixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from headrace.stages.runtime import (
    Batch,
    BatchDraft,
    ContentAnswer,
    FragmentEnd,
    InputError,
    Prefix,
    Source,
    load_target,
)
from headrace.stages.sources.base import FileSource
from headrace.stages.sources.objects import FORMATS, Format, Inputs, check_format, format_of, globs_of, to_path
from headrace.stages.sources.options import ReadOptions
from headrace.store.ledger import Fragment, Gap


class MixedSource(Source):
    """Reads each file with the source of its format; a folder stands for the files of all formats below it."""

    merges = True

    def __init__(self, name: str, input: Sequence[str], **options: Any) -> None:  # noqa: A002 (as of FileSource)
        self.name = name
        self.options = ReadOptions(**options)
        self.batch_bytes, self.batch_records = self.options.batch_bytes, self.options.batch_records
        self.inputs = Inputs(input, globs_of(FORMATS), follow_links=self.options.follow_links)
        self._sources: dict[Format, FileSource] = {}

    @property
    def bytes_read(self) -> int:
        """See `Source.bytes_read`."""
        return sum(source.bytes_read for source in self._sources.values())

    @property
    def bytes_skipped(self) -> int:
        """See `Source.bytes_skipped`."""
        return sum(source.bytes_skipped for source in self._sources.values())

    @property
    def stored_read(self) -> int:
        """See `Source.stored_read`."""
        return sum(source.stored_read for source in self._sources.values())

    def list(self) -> Iterator[Fragment]:
        """Every fragment of every file, in the order of the files' names. Raises InputError, StoreError."""
        for found in self.inputs:
            check_format(to_path(found.uri), FORMATS)
            yield from self._source(found.uri).fragments(found)

    def skipped(self) -> str:
        """See `Source.skipped`."""
        return self.inputs.skipped.line()

    def read_singly(self) -> bool:
        """See `Source.read_singly`."""
        self.options = replace(self.options, batch_records=1)
        self.batch_records = 1
        return True

    def expect(self, fragment: Fragment, gaps: Sequence[Gap]) -> None:
        """See `Source.expect`."""
        self._source(fragment.uri).expect(fragment, gaps)

    def read(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | FragmentEnd]:
        """See `Source.read`."""
        return self._source(fragment.uri).read(fragment, gaps)

    def drafts(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[BatchDraft | Batch | FragmentEnd]:
        """See `Source.drafts`."""
        return self._source(fragment.uri).drafts(fragment, gaps)

    def prefix(self, fragment: Fragment) -> Prefix | None:
        """See `Source.prefix`."""
        return self._source(fragment.uri).prefix(fragment)

    def compare(self, fragment: Fragment) -> Iterator[ContentAnswer | None]:
        """See `Source.compare`."""
        return self._source(fragment.uri).compare(fragment)

    def _source(self, uri: str) -> FileSource:
        """The source of a file's format. It is imported for the first such file, with the libraries that it needs."""
        found = format_of(to_path(uri))
        if found is None:
            raise InputError(f"{uri!r} is of no format that can be read")
        if found not in self._sources:
            source: FileSource = load_target(found.source, self.name)(self.name, [], **asdict(self.options))
            source.inputs = self.inputs
            self._sources[found] = source
        return self._sources[found]
