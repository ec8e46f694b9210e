"""The source of tar archives of text, as WebDataset writes them: a record a sample, the members of one name.

Nothing is unpacked: a member's path is the id of its record, and leads nowhere.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from headrace.stages.runtime import Batch, Columns, DamagedInput, WrongFormat
from headrace.stages.sources.base import StreamedSource, columns_of
from headrace.stages.sources.lines import BOM
from headrace.stages.sources.objects import HEAD_BYTES, TAR, InputStream, data_format, to_path
from headrace.store.ledger import Fragment, Gap

BLOCK_BYTES: Final = 512
#: Bytes of what a header says in blocks of its own: long names, and records of pax.
LONG_BYTES_MAX: Final = 1 << 20
#: Bytes of a member that a header may name.
MEMBER_BYTES_MAX: Final = 1 << 60
#: Members of one sample.
MEMBERS_MAX: Final = 1000
#: Characters of a field's name that are remembered, which a header may give a MiB of.
KIND_CHARACTERS: Final = 40
_SKIP_BYTES: Final = 1 << 20
_PLAIN: Final = (b"0", b"\0", b"7")
_LONG_NAME, _PAX, _SPARSE, _BESIDE = b"L", b"x", b"S", (b"K", b"g", b"X")


@dataclass(frozen=True, slots=True)
class TarMember:
    """A file of an archive: its path, where its bytes lie, and where the next header does."""

    path: str
    at: int
    size: int

    @property
    def stop(self) -> int:
        """The byte behind its last block."""
        return self.at + -(-self.size // BLOCK_BYTES) * BLOCK_BYTES

    def split(self) -> tuple[str, str]:
        """Key and field: what stands before the first dot of the name, and behind it."""
        folder, slash, name = self.path.rpartition("/")
        begin = name[:1]
        key, _, kind = name[1:].partition(".")
        return folder + slash + begin + key, kind.lower()


@dataclass(slots=True)
class _Sample:
    """The members of one key; `stop` is the byte behind the last one."""

    key: str
    stop: int = 0
    kinds: list[str] = field(default_factory=list[str])
    #: Bytes of members that count, by their field.
    held: dict[str, bytes] = field(default_factory=dict[str, bytes])
    fault: str = ""
    raw: bytes = b""
    raw_bytes: int = 0


class TarSource(StreamedSource):
    """Reads the text of `key.txt`, of `key.<text_key>`, or of that field of `key.json`, whose others are metadata.

    A sample without a text is quarantined; members of other kinds are passed over.
    """

    FORMAT = TAR
    READER = "tar/1"

    def _gap(self, file: InputStream, fragment: Fragment, gap: Gap) -> Generator[Batch, None, int]:
        """Batches up to the gap's end; returns the ordinal behind them."""
        ordinal, at = (gap.first, gap.offset) if gap.offset >= 0 and gap.first else (0, 0)
        columns, first, begin = columns_of(fragment), ordinal, at
        damage = ""
        try:
            for sample in self._samples(file, fragment, at):
                if ordinal < gap.first:
                    self.bytes_skipped += sample.stop - begin
                    ordinal += 1
                    first, begin = ordinal, sample.stop
                    continue
                self._take(columns, ordinal, sample)
                ordinal, at = ordinal + 1, sample.stop
                full = at - begin >= self.batch_bytes or ordinal - first == self.batch_records
                if full or ordinal == gap.end:
                    yield self._batch(columns, file, fragment, first, ordinal - first, begin, at)
                    columns, first, begin = columns_of(fragment), ordinal, at
                if ordinal == gap.end:
                    return ordinal
        except DamagedInput as error:
            if not self._salvages:
                raise
            damage = error.why
        if ordinal > first:
            yield self._batch(columns, file, fragment, first, ordinal - first, begin, at)
        if damage:
            if ordinal >= gap.first:
                yield self.lost(fragment, ordinal, damage)
            ordinal += 1
        return ordinal

    def _batch(
        self, columns: Columns, file: InputStream, fragment: Fragment, first: int, count: int, begin: int, stop: int
    ) -> Batch:
        file.check()
        self.bytes_read += stop - begin
        self.stored_read += file.stored_since() if file.compressed else stop - begin
        return columns.batch(fragment, self.name, first, count, begin, stop - begin)

    def _samples(self, file: InputStream, fragment: Fragment, at: int) -> Iterator[_Sample]:
        name, sample = to_path(fragment.uri), _Sample("")
        for member in members(file, name, at):
            key, kind = member.split()
            if sample.kinds and (key != sample.key or len(sample.kinds) >= MEMBERS_MAX):
                yield sample
                sample = _Sample("")
            sample.key, sample.stop = key, member.stop
            sample.kinds.append(kind[:KIND_CHARACTERS])
            if kind in (*self._text_kinds(), "json"):
                self._hold(sample, kind, member, file, name)
        if sample.kinds:
            yield sample

    def _text_kinds(self) -> tuple[str, ...]:
        return self.options.text_key.lower(), "txt"

    def _hold(self, sample: _Sample, kind: str, member: TarMember, file: InputStream, name: str) -> None:
        limit = self.options.max_record_bytes
        data = _taken(file, member, min(member.size, limit + 1), name)
        if member.size > limit:
            sample.fault = f"text too long: .{kind} has {member.size} bytes, the limit is {limit}"
            sample.raw, sample.raw_bytes = data, member.size
        elif kind in sample.held:
            sample.fault = f"malformed sample: it has two members .{kind}"
            sample.raw, sample.raw_bytes = data, member.size
        else:
            sample.held[kind] = data

    def _take(self, columns: Columns, ordinal: int, sample: _Sample) -> None:
        """The sample as a record, or why it is none."""
        if sample.fault:
            columns.reject(ordinal, sample.key, sample.fault, sample.raw, sample.raw_bytes)
            return
        around = sample.held.get("json", b"{}")
        try:
            record: Any = orjson.loads(around)
        except orjson.JSONDecodeError as error:
            columns.reject(ordinal, sample.key, f"malformed JSON: {error.msg} in .json", around)
            return
        if type(record) is not dict:
            columns.reject(ordinal, sample.key, "malformed sample: its .json is no object", around)
            return
        kind = next((kind for kind in self._text_kinds() if kind in sample.held), "")
        text: Any = sample.held[kind].removeprefix(BOM) if kind else record.pop(self.options.text_key, None)
        if type(text) is bytes:
            try:
                text = text.decode()
            except UnicodeDecodeError as error:
                why = f"invalid UTF-8: byte 0x{error.object[error.start]:02x} at byte {error.start} of .{kind}"
                columns.reject(ordinal, sample.key, why, sample.held[kind])
                return
        if type(text) is not str:
            others = ", ".join(f".{kind}" for kind in sample.kinds[:10])
            columns.reject(ordinal, sample.key, f"no text: the sample has {others}", around)
            return
        identity: Any = record.get(self.options.id_key)
        if type(identity) in (str, int) and identity != "":
            del record[self.options.id_key]
        else:
            identity = sample.key
        columns.keep(ordinal, identity, text.encode(), record)


def members(file: InputStream, name: str, at: int) -> Iterator[TarMember]:
    """The files of an archive from a header on, over zeros. Raises DamagedInput."""
    said, is_ended = dict[str, str](), False
    while True:
        block = _read(file, at, BLOCK_BYTES)
        if not block.strip(b"\0"):
            if len(block) < BLOCK_BYTES:
                if at and not is_ended:
                    raise DamagedInput(name, f"cut off at byte {at}, before the zeros that end an archive")
                return
            at, is_ended = at + BLOCK_BYTES, True
            continue
        is_ended = False
        size = _size_of(block)
        if len(block) < BLOCK_BYTES or not _is_header(block) or size < 0:
            if not at and (what := data_format(block[:HEAD_BYTES])) and b"ustar" not in block:
                raise WrongFormat(name, what, TAR.name)
            raise DamagedInput(name, f"no tar header is where one should be, at byte {at}")
        kind = block[156:157]
        if kind in (_LONG_NAME, _PAX, *_BESIDE):
            if size > LONG_BYTES_MAX:
                raise DamagedInput(name, f"a header at byte {at} has {size} bytes, the limit is {LONG_BYTES_MAX}")
            data = _taken(file, TarMember("", at + BLOCK_BYTES, size), size, name)
            if kind == _LONG_NAME:
                said["path"] = data.rstrip(b"\0").decode("utf-8", "replace")
            elif kind == _PAX:
                said |= pax_of(data)
            at = TarMember("", at + BLOCK_BYTES, size).stop
            continue
        if kind == _SPARSE or "sparse" in said:
            raise DamagedInput(name, f"a sparse file is at byte {at}, whose bytes are not its text: archive it whole")
        if (size := _number(said.get("size", ""), size)) < 0:
            raise DamagedInput(name, f"a header at byte {at} gives no size")
        member = TarMember(said.get("path") or _path_of(block), at + BLOCK_BYTES, 0 if kind in b"123456" else size)
        said = {}
        if kind in _PLAIN and not member.path.endswith("/"):
            yield member
        at = member.stop
        _check_whole(file, member, name)


def _check_whole(file: InputStream, member: TarMember, name: str) -> None:
    end = member.at + member.size
    if member.size and file.tell() < end and not _read(file, end - 1, 1):
        raise DamagedInput(name, f"cut off within {member.path[:200]!r}, which has {member.size} bytes")


def pax_of(data: bytes) -> dict[str, str]:
    """The path and the size that records of pax give, and whether a file is sparse; nothing where they are none."""
    found, at = dict[str, str](), 0
    while at < len(data):
        length, space, _ = data[at : at + 24].partition(b" ")
        if not space or not length.isdigit() or not len(length) + 3 <= int(length) <= len(data) - at:
            return found
        record, at = data[at + len(length) + 1 : at + int(length)], at + int(length)
        key, _, value = record.removesuffix(b"\n").partition(b"=")
        if not record.endswith(b"\n"):
            return found
        if key in (b"path", b"size"):
            found[key.decode()] = value.decode("utf-8", "replace")
        elif key.startswith(b"GNU.sparse."):
            found["sparse"] = "yes"
    return found


def _number(said: str, otherwise: int) -> int:
    if not said:
        return otherwise
    return int(said) if said.isascii() and said.isdigit() and len(said) <= 18 else -1


def _is_header(block: bytes) -> bool:
    said = block[148:156].strip(b" \0")
    if not said or any(digit not in b"01234567" for digit in said):
        return False
    return int(said, 8) == sum(block[:148]) + sum(block[156:512]) + 8 * 32


def _size_of(block: bytes) -> int:
    """The size in a header; -1 for none."""
    said = block[124:136]
    if said[:1] == b"\x80":
        size = int.from_bytes(said[1:], "big")
        return size if size <= MEMBER_BYTES_MAX else -1
    digits = said.strip(b" \0")
    return int(digits or b"0", 8) if all(digit in b"01234567" for digit in digits) else -1


def _path_of(block: bytes) -> str:
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "replace")


def _taken(file: InputStream, member: TarMember, size: int, name: str) -> bytes:
    data = _read(file, member.at, size)
    if len(data) < size:
        raise DamagedInput(name, f"cut off within {member.path[:200]!r}, which has {member.size} bytes")
    return data


def _read(file: InputStream, at: int, size: int) -> bytes:
    if file.tell() != at and file.seek(at) != at:
        return b""
    parts: list[bytes] = []
    while size > 0 and (part := file.read(min(size, _SKIP_BYTES))):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
