"""The source of files of several formats, told apart by their suffixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.stages.runtime import Batch, Compared, Draft, FragmentEnd, InputError
from headrace.stages.sources.base import STOP, FileSource
from headrace.stages.sources.objects import SUFFIXES, WINDOW_BYTES, Inputs, check_format, format_of, globs_of, to_path
from headrace.store.ledger import Fragment, Gap


class MixedSource:
    """Reads each file with the source of its format; a folder stands for the files of all formats below it."""

    joins = True

    def __init__(
        self,
        name: str,
        input: list[str],  # noqa: A002 (the word of the command line)
        text_key: str = "text",
        id_key: str = "id",
        main_content: bool = True,
        fragment_bytes: int = 64 << 20,
        batch_bytes: int = 1 << 20,
        batch_records: int = 4096,
        max_record_bytes: int = 8 << 20,
        window_bytes_max: int = WINDOW_BYTES,
        damaged: str = STOP,
        metadata_key: str = "",
        untyped: bool = False,
        follow_links: bool = False,
    ) -> None:
        self.name = name
        self.batch_bytes, self.batch_records = batch_bytes, batch_records
        self.inputs = Inputs(
            input, tuple(glob for kind in SUFFIXES for glob in globs_of(kind)), follow_links=follow_links
        )
        common = {"max_record_bytes": max_record_bytes, "damaged": damaged}
        batches = {**common, "batch_bytes": batch_bytes, "batch_records": batch_records}
        table = {**batches, "text_key": text_key, "id_key": id_key, "fragment_bytes": fragment_bytes}
        window = {"window_bytes_max": window_bytes_max}
        self._parameters: dict[str, dict[str, Any]] = {
            "jsonl": {**table, **window, "metadata_key": metadata_key},
            "parquet": table,
            "warc": {**batches, **window, "main_content": main_content, "untyped": untyped},
            "files": {"max_record_bytes": max_record_bytes},
        }
        self._sources: dict[str, FileSource] = {}

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
            check_format(to_path(found.uri), "")
            yield from self._source(found.uri).fragments(found)

    def passed_over(self) -> str:
        """See `Passing.passed_over`."""
        return self.inputs.passed_over.words()

    def expect(self, fragment: Fragment, gaps: Sequence[Gap]) -> None:
        """See `Expecting.expect`."""
        self._source(fragment.uri).expect(fragment, gaps)

    def read(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | FragmentEnd]:
        """See `Source.read`."""
        return self._source(fragment.uri).read(fragment, gaps)

    def drafts(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Draft | Batch | FragmentEnd]:
        """See `Drafting.drafts`."""
        return self._source(fragment.uri).drafts(fragment, gaps)

    def compare(self, fragment: Fragment) -> Iterator[Compared | None]:
        """See `Comparing.compare`."""
        return self._source(fragment.uri).compare(fragment)

    def _source(self, uri: str) -> FileSource:
        kind = format_of(to_path(uri))
        if kind is None:
            raise InputError(f"{uri!r} is of no format that can be read")
        if kind[0] not in self._sources:
            source = _load(kind[0])(name=self.name, input=[], **self._parameters[kind[0]])
            source.inputs = self.inputs
            self._sources[kind[0]] = source
        return self._sources[kind[0]]


def _load(kind: str) -> Any:
    """The source of a format. Each is imported when its first file is met, with the libraries that it needs."""
    if kind == "jsonl":
        from headrace.stages.sources.jsonl import JsonlSource

        return JsonlSource
    if kind == "parquet":
        from headrace.stages.sources.parquet import ParquetSource

        return ParquetSource
    if kind == "warc":
        from headrace.stages.sources.warc import WarcSource

        return WarcSource
    from headrace.stages.sources.documents import FilesSource

    return FilesSource
