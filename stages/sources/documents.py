"""The source of plain text files: a record a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.stages.runtime import Batch, BatchDraft, Columns, DamagedInput, FragmentEnd
from headrace.stages.sources.base import FileSource, columns_of
from headrace.stages.sources.lines import BOM
from headrace.stages.sources.objects import (
    TEXT,
    Content,
    InputStream,
    LocalFile,
    RemoteFile,
    checksum_of,
    codec_of,
    open_raw,
    to_path,
)
from headrace.store.ledger import UNBOUNDED, Fragment, Gap


class FilesSource(FileSource):
    """Reads each file as one record of UTF-8 text, with its path and size in bytes as metadata.

    A compressed file is unpacked. One that is not UTF-8, or above `max_record_bytes`, is quarantined.
    """

    FORMAT = TEXT
    READER = "file/1"
    merges = True

    def drafts(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[BatchDraft | Batch | FragmentEnd]:
        """The file as record 0, if a gap holds it."""
        checksum = b""
        if any(gap.first == 0 < gap.end for gap in gaps):
            read = self._unpacked if codec_of(fragment.uri) else self._plain
            draft, checksum = read(fragment)
            yield draft
        if gaps and gaps[-1].end == UNBOUNDED:
            yield FragmentEnd(1, checksum)

    def _plain(self, fragment: Fragment) -> tuple[BatchDraft, bytes]:
        """The one record, and the checksum of the file."""
        with open_raw(self.inputs, fragment, ahead=True) as file:
            file.content = Content(fragment)
            data = self._taken(file)
            checksum = checksum_of(file)
            file.check()
        return self._draft(
            fragment, data, fragment.size, f"{fragment.size} bytes, the limit is {self.options.max_record_bytes}"
        ), checksum

    def _unpacked(self, fragment: Fragment) -> tuple[BatchDraft | Batch, bytes]:
        """The one record of a compressed file, and the checksum of the file as it is stored."""
        with self.stream(fragment, InputStream) as file:
            try:
                data = self._taken(file)
            except DamagedInput as error:
                if not self._salvages:
                    raise
                return self.lost(fragment, 0, error.why), file.checksum()
            checksum = file.checksum()
            file.check()
        return self._draft(
            fragment, data, len(data), f"more than {self.options.max_record_bytes} bytes once it is unpacked"
        ), checksum

    def _taken(self, file: LocalFile | RemoteFile | InputStream) -> bytes:
        """All bytes of a file, or one more than a record may have."""
        data, limit = b"", self.options.max_record_bytes
        while len(data) <= limit and (part := file.read(limit + 1 - len(data))):
            data += part
        return data

    def _draft(self, fragment: Fragment, data: bytes, size: int, words: str) -> BatchDraft:
        columns = columns_of(fragment)
        if size > self.options.max_record_bytes:
            columns.reject(0, None, f"file too large: {words}", data, size)
        else:
            self._decode(columns, fragment, data)
        self.bytes_read += size
        self.stored_read += fragment.size
        return BatchDraft(columns, fragment, self.name, 0, 1, 0, fragment.size)

    def _decode(self, columns: Columns, fragment: Fragment, data: bytes) -> None:
        text = data.removeprefix(BOM)
        try:
            text.decode()
        except UnicodeDecodeError as error:
            columns.reject(0, None, f"invalid UTF-8: byte 0x{error.object[error.start]:02x} at {error.start}", data)
            return
        path = to_path(fragment.uri).encode("utf-8", "replace").decode()
        columns.keep(0, None, text, {"path": path, "bytes": len(data)})
