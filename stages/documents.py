"""The source of plain text files: a record a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.stages.batch import Batch
from headrace.stages.contract import FragmentEnd
from headrace.stages.lines import BOM
from headrace.stages.listing import check_unchanged, find_documents, list_fragments, open_fragment, to_path
from headrace.stages.records import Columns
from headrace.store.entries import Fragment
from headrace.store.intervals import UNBOUNDED, Gap

READER = "file/1"


class FilesSource:
    """Reads each file as one record of UTF-8 text, with its path and size in bytes as metadata.

    A file that is not UTF-8, or above `max_record_bytes`, is quarantined.
    """

    def __init__(self, name: str, input: list[str], max_record_bytes: int = 8 << 20) -> None:  # noqa: A002
        self.name = name
        self.patterns = input
        self.max_record_bytes = max_record_bytes
        self.bytes_read = 0
        self.bytes_skipped = 0

    def list(self) -> Iterator[Fragment]:
        """Every file, in the order of their paths. Raises InputError."""
        return list_fragments(find_documents(self.patterns), stage=self.name, reader=READER, fragment_bytes=None)

    def read(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | FragmentEnd]:
        """The file as record 0, if a gap holds it."""
        if any(gap.first == 0 < gap.end for gap in gaps):
            yield self._batch(fragment)
        if gaps and gaps[-1].end == UNBOUNDED:
            yield FragmentEnd(1)

    def _batch(self, fragment: Fragment) -> Batch:
        with open_fragment(fragment) as file:
            data = file.read(self.max_record_bytes + 1)
            check_unchanged(file, fragment)
        columns = Columns(fragment.uri)
        size = fragment.size
        if size > self.max_record_bytes:
            reason = f"file too large: {size} bytes, the limit is {self.max_record_bytes}"
            columns.reject(0, None, reason, data, size)
        else:
            self._decode(columns, fragment, data)
        self.bytes_read += size
        return columns.batch(fragment, self.name, 0, 1, 0, size)

    def _decode(self, columns: Columns, fragment: Fragment, data: bytes) -> None:
        try:
            text = data.removeprefix(BOM).decode()
        except UnicodeDecodeError as error:
            columns.reject(0, None, f"invalid UTF-8: byte 0x{error.object[error.start]:02x} at {error.start}", data)
            return
        path = to_path(fragment.uri).encode("utf-8", "replace").decode()
        columns.keep(0, None, text, {"path": path, "bytes": len(data)})
