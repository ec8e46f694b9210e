"""The source of WARC and WET files: a record a response, with the text of its HTML, or a record a conversion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str, detect_encoding
from resiliparse.parse.html import HTMLTree

from headrace.stages.batch import Batch
from headrace.stages.contract import FragmentChanged, FragmentEnd
from headrace.stages.errors import DamagedInput
from headrace.stages.inputs import to_path
from headrace.stages.records import Columns
from headrace.stages.source import STOP, FileSource
from headrace.stages.streams import InputStream
from headrace.store.entries import Fragment
from headrace.store.intervals import UNBOUNDED, Gap

#: Records that hold a page or a text; requests, metadata and revisits hold none.
KINDS = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion
HTML = ("text/html", "application/xhtml+xml")
#: Bytes of a record's headers.
HEADER_BYTES_MAX = 1 << 20


class WarcSource(FileSource):
    """Reads responses, resources and conversions; a response that is no text, or no answer of 200, is filtered.

    The id is the record's own, the metadata its URL, date, type and language. `main_content` leaves menus, headers
    and footers of a page out.
    """

    KIND = "warc"
    READER = "warc/1"

    def __init__(
        self,
        name: str,
        input: list[str],  # noqa: A002 (the word of the command line)
        main_content: bool = True,
        batch_bytes: int = 1 << 20,
        batch_records: int = 1024,
        max_record_bytes: int = 8 << 20,
        damaged: str = STOP,
    ) -> None:
        super().__init__(name, input, damaged)
        self.main_content = main_content
        self.batch_bytes, self.batch_records = batch_bytes, batch_records
        self.max_record_bytes = max_record_bytes

    def read(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | FragmentEnd]:
        """The records of the gaps. Offsets are those of the uncompressed file."""
        ordinal = 0
        for gap in gaps:
            with InputStream(self.inputs, fragment) as file:
                ordinal = yield from self._gap(file, fragment, gap)
                file.check()
                self.bytes_skipped += file.skipped
        if gaps and gaps[-1].end == UNBOUNDED:
            yield FragmentEnd(ordinal)

    def _gap(self, file: InputStream, fragment: Fragment, gap: Gap) -> Iterator[Any]:
        """Batches up to the gap's end; returns the ordinal behind them."""
        known = gap.offset >= 0 and gap.first > 0
        ordinal, at = (gap.first, gap.offset) if known else (0, 0)
        filling = _Filling(self, fragment, ordinal, at)
        stop = at
        try:
            for place, record in self._records(file, fragment, at):
                if ordinal == gap.first and filling.count == 0:
                    self.bytes_skipped += place - filling.at if ordinal and not known else 0
                    filling = _Filling(self, fragment, ordinal, filling.at if known or not ordinal else place)
                elif filling.full:
                    yield filling.batch(place)
                    filling = _Filling(self, fragment, ordinal, place)
                if ordinal >= gap.end:
                    if filling.count:
                        yield filling.batch(place)
                    return ordinal
                if ordinal >= gap.first:
                    self._take(filling, record, ordinal, place)
                else:
                    _pass(record)
                    filling.at = place
                ordinal += 1
                stop = place
            stop = file.tell()
        except DamagedInput as error:
            if not self.salvage:
                raise
            if filling.count:
                yield filling.batch(-1)
            yield self.lost(fragment, ordinal, error.why)
            return ordinal + 1
        if filling.count:
            file.check()
            yield filling.batch(stop)
        if ordinal < gap.first or gap.end != UNBOUNDED and ordinal < gap.end:
            raise FragmentChanged(f"{fragment.uri} ends after record {ordinal}, before the records {gap.first}..")
        return ordinal
