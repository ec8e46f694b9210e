"""The source of WARC and WET files: a record a response, with the text of its HTML, or a record a conversion."""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5
from resiliparse.parse.html import HTMLTree

from headrace.stages.runtime import RAW_BYTES_MAX, Batch, Columns, DamagedInput, InputError, WrongFormat
from headrace.stages.sources.base import EndingStream, StreamedSource, columns_of
from headrace.stages.sources.lines import BOM
from headrace.stages.sources.objects import HEAD_BYTES, WARC, InputStream, misnamed, to_path
from headrace.stages.sources.options import ReadOptions
from headrace.stages.sources.warc_payloads import UndecodablePayload, decode_payload
from headrace.store.ledger import Fragment, Gap

#: Records that hold a page or a text; requests, metadata and revisits hold none.
KINDS = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion
#: Those of which nobody can say what they hold: their type is missing, or one that the standard does not know.
UNTOLD = {int(WarcRecordType.no_type): "none", int(WarcRecordType.unknown): "unknown"}
HTML = ("text/html", "application/xhtml+xml")
#: What a record carries that is an answer of a web server.
HTTP = "application/http"
#: How a page begins whose server has not said what it is, behind white space and comments.
_PAGE = re.compile(rb"<(?:!doctype\s+html|html|head)\b", re.IGNORECASE)
_COMMENT, _COMMENT_END = b"<!--", b"-->"
#: Elements within which main content is looked for at each level anew, so that its time grows with their depth.
_CONTAINER = re.compile(rb"<(/?)(?:div|article)\b")
#: Of them, one within the other; browsers go to 512 of all kinds.
NESTING_MAX = 256
#: How the first line of a WARC must not end.
_BARE = re.compile(rb"WARC/[0-9.]+\n")
#: Bytes of a record's headers.
HEADER_BYTES_MAX = 1 << 20
#: Headers of a record that are kept as metadata, under shorter names.
KEPT_HEADERS = {
    "WARC-Target-URI": "url",
    "WARC-Date": "date",
    "WARC-Identified-Content-Language": "language",
    "WARC-Truncated": "truncated",
}


class _TooDeepError(Exception):
    """A page's containers are nested more deeply than NESTING_MAX."""


@dataclass(frozen=True, slots=True)
class _Page:
    """What a record came to: its text, or why it is filtered or cannot be read. Bytes `[place, stop)` of the file."""

    id: str | None = None
    text: str | None = None
    filtered: str = ""
    fault: str = ""
    raw: bytes = b""
    size: int = 0
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class _Filling:
    """A batch while it fills."""

    columns: Columns
    first: int
    at: int
    count: int = 0
    size: int = 0


class WarcSource(StreamedSource):
    """Reads responses, resources and conversions; a response that is no text, or no answer of 200, is filtered.

    The id is the record's own; the metadata are its URL, date, type and language. `main_content` leaves menus,
    headers and footers of a page out. With `untyped`, a record whose type is missing or unknown is one, and filtered;
    it has no number without.
    """

    FORMAT = WARC
    READER = "warc/1"
    ROW = b"\r\n\r\n"
    UNIT = b"WARC/"
    DEFAULTS = ReadOptions(batch_records=1024)

    def _gap(self, file: InputStream, fragment: Fragment, gap: Gap) -> Generator[Batch, None, int]:
        """Batches up to the gap's end; returns the ordinal behind them."""
        ordinal, at = (gap.first, gap.offset) if gap.offset >= 0 and gap.first else (0, 0)
        at += fragment.start
        filling = _Filling(columns_of(fragment), ordinal, at)
        damage = ""
        for stop, page in self._pages(file, fragment, gap, ordinal, at):
            if isinstance(page, DamagedInput):
                damage = page.why
                break
            if ordinal < gap.first:
                self.bytes_skipped += stop - at
                filling = _Filling(columns_of(fragment), ordinal + 1, stop)
            else:
                self._take(filling, page, ordinal)
                full = filling.size >= self.batch_bytes or filling.count == self.batch_records
                if full or ordinal + 1 == gap.end or stop < 0:
                    file.check()
                    yield self._batch(filling, fragment, stop, file)
                    filling = _Filling(columns_of(fragment), ordinal + 1, stop)
            at, ordinal = stop, ordinal + 1
            if ordinal == gap.end:
                return ordinal
        if filling.count:
            file.check()
            yield self._batch(filling, fragment, at, file)
        if damage:
            if ordinal >= gap.first:
                yield self.lost(fragment, ordinal, damage)
            ordinal += 1
        return ordinal

    def _pages(
        self, file: InputStream, fragment: Fragment, gap: Gap, ordinal: int, at: int
    ) -> Iterator[tuple[int, _Page | DamagedInput]]:
        """Each record with the byte at which the next begins (-1: not known); a fault of the file comes last."""
        name = to_path(fragment.uri)
        held: _Page | None = None
        try:
            if file.seek(at) != at:
                raise DamagedInput(name, f"it ends before byte {at}")
            if at == fragment.start:
                _check_ends(file, name, at)
            for record in self._archive(file, name, fragment.start):
                if held is not None:
                    # FastWARC asks the file where it stands, and counts on from there.
                    yield record.stream_pos, held
                    held = None
                held = self._page(record, name) if ordinal >= gap.first else _skip(record, name)
                ordinal += 1
        except DamagedInput as error:
            if held is not None:
                yield -1, held
            if not self._salvages:
                raise
            yield -1, error
            return
        if held is not None:
            yield file.tell(), held

    def _archive(self, file: InputStream, name: str, begin: int, *, every: bool = False) -> Iterator[Any]:
        """The records that FastWARC finds. Raises DamagedInput where it finds none in what follows."""
        try:
            stream: Any = file
            wanted = WarcRecordType.any_type if self.options.untyped or every else KINDS
            for record in ArchiveIterator(
                stream, record_types=wanted, parse_http=True, max_header_len=HEADER_BYTES_MAX, stream_detect=False
            ):
                if every or record.record_type & KINDS or int(record.record_type) in UNTOLD:
                    yield record
        except InputError:
            raise
        except (OSError, ValueError) as error:
            file.check()
            place = file.tell()
            file.seek(begin)
            if what := misnamed(file.read(HEAD_BYTES), WARC.name):
                raise WrongFormat(name, what, WARC.name) from error
            raise DamagedInput(name, f"no WARC record where one should be, before byte {place} ({error})") from error

    def skip_through(self, file: EndingStream, fragment: Fragment) -> Iterator[None]:
        """See `FileSource.skip_through`: the end of each record is where its headers say."""
        name = to_path(fragment.uri)
        for record in self._archive(file, name, fragment.start, every=True):
            _skip(record, name)
            yield None

    # -- a record --

    def _page(self, record: Any, name: str) -> _Page:
        identity = str(record.record_id or "").strip("<>") or None
        body = self._body(record, name)
        if (untold := UNTOLD.get(int(record.record_type))) is not None:
            return _Page(identity, filtered=f"record type: {untold}", size=len(body))
        if record.content_length > self.options.max_record_bytes:
            why = f"record too long: {record.content_length} bytes, the limit is {self.options.max_record_bytes}"
            return _Page(identity, fault=why, raw=body, size=record.content_length)
        metadata = {short: record.headers.get(key) for key, short in KEPT_HEADERS.items() if record.headers.get(key)}
        kind = _content_type(record)
        if record.record_type == WarcRecordType.response:
            if record.http_headers is None or (status := record.http_headers.status_code) is None:
                carried = (record.headers.get("Content-Type") or HTTP).partition(";")[0].strip().lower()
                if carried != HTTP:  # such as that of a name server
                    return _Page(identity, filtered=f"not text: {carried}", size=len(body))
                raw = _as_it_came(record.http_headers, body)
                return _Page(identity, fault="malformed HTTP response", raw=raw, size=len(raw))
            if status != 200:
                return _Page(identity, filtered=f"http status: {status}", size=len(body))
            try:
                is_truncated = "truncated" in metadata
                body = decode_payload(
                    record.http_headers, body, self.options.max_record_bytes, is_truncated=is_truncated
                )
            except UndecodablePayload as error:
                return _Page(identity, fault=str(error), raw=body, size=len(body))
        kind = kind or _told_by(record, body)
        if kind:
            metadata["content_type"] = kind
        return self._text(record, identity, body, kind, metadata)

    def _text(self, record: Any, identity: str | None, body: bytes, kind: str, metadata: dict[str, Any]) -> _Page:
        size = len(body)
        try:
            if record.record_type == WarcRecordType.conversion:
                text = body.removeprefix(BOM).decode()
            elif kind in HTML:
                text = self._html(record, body, metadata)
            elif kind.startswith("text/"):
                text = bytes_to_str(body, _encoding(record, body, html=False))
            else:
                return _Page(identity, filtered=f"not text: {kind or 'no content type'}", size=size)
            text.encode()
        except UnicodeError as error:
            return _Page(identity, fault=f"invalid text: {str(error)[:200]}", raw=body, size=size)
        except _TooDeepError:
            why = f"nested too deeply: more than {NESTING_MAX} elements, within which main content is not looked for"
            return _Page(identity, fault=why, raw=body, size=size)
        if not text.strip():
            return _Page(identity, filtered="no text in the page", size=size)
        return _Page(identity, text, size=size, metadata=metadata)

    def _html(self, record: Any, body: bytes, metadata: dict[str, Any]) -> str:
        if self.options.main_content and nesting(body) > NESTING_MAX:
            raise _TooDeepError
        encoding = _encoding(record, body, html=True)
        tree = HTMLTree.parse(bytes_to_str(body, encoding))
        if tree.title:
            metadata["title"] = tree.title.strip()
        return str(extract_plain_text(tree, main_content=self.options.main_content, alt_texts=False))

    def _body(self, record: Any, name: str) -> bytes:
        """The record's content, or the beginning of one that is too long. Raises DamagedInput where it is cut off."""
        expected = record.content_length
        taken = expected if expected <= self.options.max_record_bytes else min(expected, RAW_BYTES_MAX)
        data: bytes = record.reader.read(taken) if taken else b""
        _check_whole(record, name, len(data), taken)
        _drain(record, name, len(data), expected)
        return data

    def _take(self, filling: _Filling, page: _Page, ordinal: int) -> None:
        if page.text is not None:
            filling.columns.keep(ordinal, page.id, page.text.encode(), page.metadata)
        elif page.filtered:
            filling.columns.drop(ordinal, page.id, page.filtered)
        else:
            filling.columns.reject(ordinal, page.id, page.fault, page.raw, page.size)
        filling.count += 1
        filling.size += len(page.text or "")

    def _batch(self, filling: _Filling, fragment: Fragment, stop: int, file: InputStream) -> Batch:
        length = stop - filling.at if stop >= 0 and filling.at >= 0 else -1
        self.bytes_read += max(0, length)
        self.stored_read += file.stored_since() if file.compressed else max(0, length)
        at = filling.at - fragment.start if length >= 0 else -1
        return filling.columns.batch(fragment, self.name, filling.first, filling.count, at, length)


def nesting(body: bytes) -> int:
    """How deeply the containers of a page of HTML lie within each other, by its tags; 0 where they are too few."""
    tags = body.lower()
    # Most pages have fewer in all, and are looked at no further.
    if tags.count(b"<div") + tags.count(b"<article") <= NESTING_MAX:
        return 0
    depth = deepest = 0
    for found in _CONTAINER.finditer(tags):
        depth = max(0, depth - 1) if found[1] else depth + 1
        deepest = max(deepest, depth)
    return deepest


def _check_ends(file: InputStream, name: str, begin: int) -> None:
    """Raise DamagedInput where lines end in LF alone: FastWARC would see one record without an end, and say nothing."""
    found = _BARE.match(file.read(HEAD_BYTES))
    file.seek(begin)
    if found:
        raise DamagedInput(name, "its lines end in LF, where those of a WARC's headers end in CR LF")


def _skip(record: Any, name: str) -> _Page:
    _drain(record, name, 0, record.content_length)
    return _Page()


def _drain(record: Any, name: str, found: int, expected: int) -> None:
    while found < expected and (part := record.reader.read(min(1 << 20, expected - found))):
        found += len(part)
    _check_whole(record, name, found, expected)


def _check_whole(record: Any, name: str, found: int, expected: int) -> None:
    if record.headers.get("Content-Length") is None:
        raise DamagedInput(name, "cut off within the headers of a record")
    if found < expected:
        who = record.record_id or "without an id"
        raise DamagedInput(name, f"cut off within the record {who}, which has {found} of {expected} bytes")


def _content_type(record: Any) -> str:
    kind = record.http_content_type
    if not kind and record.record_type == WarcRecordType.resource:
        kind = (record.headers.get("Content-Type") or "").partition(";")[0]
    return (kind or "").strip().lower()


def _as_it_came(headers: Any, body: bytes) -> bytes:
    """The content of a record of which FastWARC took the beginning for headers."""
    if headers is None or not headers.status_line:
        return body
    taken = io.BytesIO()
    headers.write(taken)
    return taken.getvalue() + body


def _told_by(record: Any, body: bytes) -> str:
    """What a page is whose server has not said it: what the crawler found, or what it begins as."""
    found = (record.headers.get("WARC-Identified-Payload-Type") or "").partition(";")[0].strip().lower()
    return found or (HTML[0] if _PAGE.match(_behind_comments(body[:HEAD_BYTES])) else "")


def _behind_comments(head: bytes) -> bytes:
    """What follows the white space and the comments that it begins with."""
    head = head.lstrip()
    while head.startswith(_COMMENT):
        head = head.partition(_COMMENT_END)[2].lstrip()
    return head


def _encoding(record: Any, body: bytes, *, html: bool) -> str:
    """A byte order mark, else what the server said, else what the page says of itself, else what it looks like."""
    for mark, encoding in ((BOM, "utf-8"), (b"\xfe\xff", "utf-16-be"), (b"\xff\xfe", "utf-16-le")):
        if body.startswith(mark):
            return encoding
    said = record.http_charset
    if said:
        return str(map_encoding_to_html5(str(said)))
    return str(detect_encoding(body, from_html_meta=html) or "utf-8")
