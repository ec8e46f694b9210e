"""A store in a bucket: `s3://bucket/prefix`, on AWS, MinIO, SeaweedFS or whatever speaks S3.

`create` is a PUT with `If-None-Match: *`. An answer that was lost is found again by the writer's name in the object's
metadata, so that a retry which meets its own earlier write is told so. Large objects are read in parallel ranges, and
written in parallel parts where a race has shown that a conditional completion lets exactly one win.
"""

from __future__ import annotations

import contextlib
import io
import logging
import pathlib
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import xxhash

from headrace.store import (
    KEY_BYTES_MAX,
    RESERVED_SEGMENT,
    WHOLE_BYTES_MAX,
    Buffer,
    Capabilities,
    ChecksumMismatch,
    Decide,
    InvalidKey,
    ObjectInfo,
    ObjectMissing,
    StoreRefused,
    StoreUnavailable,
    Stream,
    validate_key,
)
from headrace.store.s3.connection import (
    CONNECTIONS_KEPT,
    READ_TIMEOUT_S,
    Answer,
    Body,
    NoAnswer,
    Wire,
    announced_bytes,
    resolve,
)
from headrace.store.s3.listing import BadListing, Listed, OutOfOrder, list_flat, list_folders
from headrace.store.s3.retry import AnswerKind, Pace, Retrier, RetryPolicy
from headrace.store.s3.upload import (
    CHECKSUM_HEADER,
    IF_ABSENT,
    Sizes,
    completes_once,
    if_match,
    in_parallel,
    new_writer,
    put,
    put_in_parts,
    replaces_once,
)

#: Times that a read starts over because the object was replaced, or damaged on its way, in between.
READS_MAX = 4
#: Times that an update starts over because another was faster.
UPDATES_MAX = 16

logger = logging.getLogger("headrace.store")

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)


class S3Store:
    """An `ObjectStore` whose objects lie under one prefix of one bucket.

    Construct it through `open_store`. Nothing is asked of the endpoint before the first operation.
    """

    def __init__(
        self,
        uri: str,
        retry_policy: RetryPolicy | None = None,
        pace: Pace | None = None,
        sizes: Sizes | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._target = resolve(uri)
        self._sizes = sizes or Sizes()
        wire = Wire(self._target, read_timeout_s)
        self._retrier = Retrier(self._target, wire, retry_policy or RetryPolicy(), pace or Pace())
        self._spare: deque[bytearray] = deque(maxlen=CONNECTIONS_KEPT)

    def __repr__(self) -> str:
        return f"S3Store({self.uri!r})"

    @property
    def uri(self) -> str:
        """The `s3://` URI with endpoint and region, and without secrets."""
        return self._target.uri

    @property
    def is_remote(self) -> bool:
        """See `ObjectStore.is_remote`."""
        return True

    @property
    def capabilities(self) -> Capabilities:
        """See `ObjectStore.capabilities`."""
        return Capabilities(
            stream=self.stream,
            get_with_info=self.get_with_info,
            create_gated=self.create_gated,
            bucket=f"s3://{self._target.bucket} at {self._target.where}",
            trouble=lambda: self._retrier.health.trouble,
        )

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        """See `ObjectStore.create`."""
        path = self._path(key)
        body = Body(parts)
        if body.size >= self._sizes.multipart_bytes_min and self._may_complete():
            if self._head(path) is not None:
                return False
            return put_in_parts(self._retrier, path, body, new_writer(), True, self._sizes.part_bytes)
        if body.size > self._sizes.put_bytes_max:
            raise StoreRefused(
                f"{self.uri}: cannot create {key!r}: {body.size} bytes are more than one PUT takes "
                f"({self._sizes.put_bytes_max}), and this endpoint lets two win a conditional upload in parts; "
                "make shards smaller"
            )
        return put(self._retrier, path, body, new_writer(), IF_ABSENT)

    def create_gated(self, key: str, parts: Sequence[Buffer], gate: Callable[[], None]) -> bool:
        """`create` of a small object, whose headers are sent before `gate` is called, and whose bytes behind it."""
        return put(self._retrier, self._path(key), Body(parts, gate), new_writer(), IF_ABSENT)

    def replace(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `ObjectStore.replace`."""
        path = self._path(key)
        body = Body(parts)
        if body.size >= self._sizes.multipart_bytes_min:
            put_in_parts(self._retrier, path, body, new_writer(), False, self._sizes.part_bytes)
        else:
            put(self._retrier, path, body, new_writer(), {})

    def update(self, key: str, decide: Decide) -> bool:
        """See `ObjectStore.update`. A PUT with `If-Match` of what was read, or with `If-None-Match: *` of nothing."""
        path = self._path(key)
        for _ in range(UPDATES_MAX):
            # Looked at before it is read: what is read may be newer, and then the write is refused.
            info = self.head(key)
            try:
                parts = decide(None if info is None else self.get(key))
            except ObjectMissing:
                continue
            if parts is None:
                return False
            condition = IF_ABSENT if info is None else if_match(info.version) if self._may_update() else {}
            if put(self._retrier, path, Body(parts), new_writer(), condition):
                return True
        raise StoreUnavailable(f"{self.uri}: cannot update {key!r}: others wrote it {UPDATES_MAX} times meanwhile")

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`. An object that is read whole is verified against its checksum."""
        if offset < 0 or (length is not None and length < 0):
            raise ValueError(f"get {key!r}: offset {offset} and length {length} must not be negative")
        path = self._path(key)
        if length == 0:
            if self.head(key) is None:
                raise ObjectMissing(key, self.uri)
            return b""
        expected = found = None
        for _ in range(READS_MAX):
            first = self._get_range(key, path, offset, self._first_bytes(length))
            if first is None:
                return b""
            data = self._complete(key, path, first, offset, length)
            if data is None:
                continue
            expected = first.headers.get(CHECKSUM_HEADER)
            if expected is None or offset or len(data) != self._total(key, first):
                return data
            found = str(xxhash.xxh3_64_hexdigest(data))
            if found == expected:
                return data
        if expected is not None and found is not None:
            raise ChecksumMismatch(key, self.uri, f"xxh3-64:{expected}", f"xxh3-64:{found}")
        raise self._replaced(key)

    def get_with_info(self, key: str, offset: int, length: int) -> tuple[bytes, ObjectInfo]:
        """See `headrace.store.contract.objects.get_with_info`. One request, up to the size of a range (64 MiB)."""
        path = self._path(key)
        for _ in range(READS_MAX):
            first = self._get_range(key, path, offset, self._first_bytes(length)) if length else None
            if first is None:
                info = self.head(key)
                if info is None:
                    raise ObjectMissing(key, self.uri)
                return b"", info
            data = self._complete(key, path, first, offset, length)
            if data is not None:
                return data, ObjectInfo(key, self._total(key, first), _etag(first))
        raise self._replaced(key)

    def stream(self, key: str, offset: int, length: int, piece_bytes: int, first_bytes: int | None = None) -> Stream:
        """See `headrace.store.contract.objects.stream`."""
        path = self._path(key)
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        reply = self._retrier.send(f"get {key!r}", "GET", path, headers=headers, is_stream=True)
        if reply.outcome is AnswerKind.MISSING:
            raise ObjectMissing(key, self.uri)
        rest = reply.answer.rest
        if rest is None:
            return  # it starts behind the end
        held = self._buffer(piece_bytes)
        try:
            size = announced_bytes(reply.answer.headers) or 0
            skip = 0 if reply.answer.status == 206 else offset
            buffer = memoryview(held)
            while skip and size:
                step = min(skip, piece_bytes, size)
                rest.read_into(buffer[:step])
                skip, size = skip - step, size - step
            left, wanted = min(length, size), first_bytes or piece_bytes
            while left:
                piece = buffer[: min(wanted, piece_bytes, left)]
                rest.read_into(piece)
                left -= piece.nbytes
                wanted = (yield piece) or piece_bytes
        except NoAnswer as error:
            raise StoreUnavailable(f"{self.uri}: cannot get {key!r}: {error}; ask again for what is left") from error
        finally:
            self._spare.append(held)
            rest.close()

    def _buffer(self, size: int) -> bytearray:
        """Memory for pieces of a stream: that of one which is over, since fresh memory costs as much as a copy."""
        try:
            found = self._spare.pop()
        except IndexError:
            found = bytearray()
        return found if len(found) == size else bytearray(size)

    def head(self, key: str) -> ObjectInfo | None:
        """See `ObjectStore.head`. The version is the ETag."""
        answer = self._head(self._path(key))
        if answer is None:
            return None
        return ObjectInfo(key, announced_bytes(answer.headers) or 0, _etag(answer))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`. A page of a thousand keys is held at a time."""
        if ".." in prefix.split("/") or prefix.startswith("/") or "\0" in prefix:
            raise InvalidKey(f"prefix {prefix!r} cannot start a key; prefixes look like 'shards/'")
        start = self._target.prefix + after if after else ""
        return self._infos(self._lines(self._target.prefix + prefix, start))

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        path = self._path(key)
        self._retrier.send(f"delete {key!r}", "DELETE", path)

    def open_local(self, key: str) -> pathlib.Path | None:
        """See `ObjectStore.open_local`: a bucket has no local paths."""
        validate_key(key)
        return None

    def _path(self, key: str) -> str:
        validate_key(key)
        path = self._target.prefix + key
        if len(path.encode()) > KEY_BYTES_MAX:
            raise InvalidKey(
                f"key {key!r} under {self.uri} has {len(path.encode())} bytes, the limit is {KEY_BYTES_MAX}; "
                "choose a shorter prefix"
            )
        return path

    def _head(self, path: str) -> Answer | None:
        what = f"look for {path!r}"
        reply = self._retrier.send(what, "HEAD", path)
        if reply.outcome is AnswerKind.MISSING:
            self._retrier.ensure_bucket(what)
            return None
        return reply.answer

    def _first_bytes(self, length: int | None) -> int:
        return self._sizes.read_bytes if length is None else min(length, self._sizes.read_bytes)

    def _get_range(self, key: str, path: str, offset: int, length: int) -> Answer | None:
        """The first range of an object; None where it starts behind the end. Raises `ObjectMissing`."""
        headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
        reply = self._retrier.send(f"get {key!r}", "GET", path, headers=headers)
        if reply.outcome is AnswerKind.MISSING:
            raise ObjectMissing(key, self.uri)
        return None if reply.outcome is AnswerKind.PAST_END else reply.answer

    def _complete(self, key: str, path: str, first: Answer, offset: int, length: int | None) -> bytes | None:
        """Fetch what the first range left, in parallel; None where the object was replaced meanwhile."""
        total = self._total(key, first)
        body = first.body if first.status == 206 else first.body[offset:]
        stop = total if length is None else min(total, offset + length)
        if length is None and stop - offset > WHOLE_BYTES_MAX:
            raise StoreRefused(
                f"{self.uri}: {key!r} has more than {WHOLE_BYTES_MAX:,} bytes, and no object of ours that is read "
                "whole has so many: see what else writes there, and restore it from a copy"
            )
        have = offset + len(body)
        if have >= stop:
            return body[: stop - offset]
        buffer = io.BytesIO()
        # Written in place and handed out without a copy: BytesIO gives its own bytes away once no view is left.
        buffer.seek(stop - offset - 1)
        buffer.write(b"\0")
        with buffer.getbuffer() as view:
            view[: len(body)] = body
            step = self._sizes.read_bytes
            ranges = [(start, min(start + step, stop)) for start in range(have, stop, step)]
            etag = first.headers.get("ETag", "")
            read = in_parallel(
                lambda span: self._read_into(key, path, etag, span[0], view[span[0] - offset : span[1] - offset]),
                ranges,
            )
        return buffer.getvalue() if all(read) else None

    def _read_into(self, key: str, path: str, etag: str, start: int, into: memoryview) -> bool:
        headers = {"Range": f"bytes={start}-{start + into.nbytes - 1}"} | ({"If-Match": etag} if etag else {})
        with into:
            reply = self._retrier.send(f"get {key!r}", "GET", path, headers=headers, into=into)
        if reply.outcome is AnswerKind.MISSING:
            raise ObjectMissing(key, self.uri)
        return reply.outcome is AnswerKind.DONE and reply.answer.status == 206

    def _total(self, key: str, first: Answer) -> int:
        """The whole object's size in bytes, from the first range of it."""
        if first.status != 206:
            return len(first.body)
        match = _RANGE.fullmatch(first.headers.get("Content-Range", ""))
        if match is None:
            raise StoreRefused(
                f"{self.uri}: cannot get {key!r}: the endpoint does not say which part of how many bytes it gave; "
                "correct the endpoint"
            )
        return int(match[3])

    def _replaced(self, key: str) -> StoreUnavailable:
        return StoreUnavailable(f"{self.uri}: cannot get {key!r}: it was replaced {READS_MAX} times while it was read")

    def _may_complete(self) -> bool:
        """Whether a conditional upload in parts can be trusted here; found out once."""
        health = self._retrier.health
        if health.completes_once is None:
            self._retrier.ensure_bucket("write")
            # A race finds the hole in SeaweedFS in one round of three; its name finds it always.
            health.completes_once = not health.server.startswith("SeaweedFS") and completes_once(
                self._retrier, f"{self._target.prefix}{RESERVED_SEGMENT}/completes-once/"
            )
        return health.completes_once

    def _may_update(self) -> bool:
        """Whether `If-Match` on a write is honoured here; found out once."""
        health = self._retrier.health
        if health.replaces_once is None:
            health.replaces_once = replaces_once(
                self._retrier, f"{self._target.prefix}{RESERVED_SEGMENT}/replaces-once/"
            )
            if not health.replaces_once:
                logger.warning(
                    "%s does not honour If-Match: two who derive a manifest at one instant may leave the older one; "
                    "readers that know the ledger are not misled",
                    self.uri,
                )
        return health.replaces_once

    def _lines(self, prefix: str, after: str) -> Iterator[Listed]:
        health = self._retrier.health
        try:
            if health.lists_folders is not True:
                with contextlib.suppress(OutOfOrder):
                    yield from list_flat(self._fetch, prefix, after)
                    return
                health.lists_folders = True
            folder, slash, _ = prefix.rpartition("/")
            yield from list_folders(self._fetch, folder + slash, prefix, after)
        except BadListing as error:
            health.lists_folders = True
            raise StoreUnavailable(f"{self.uri}: {error}") from error

    def _fetch(self, query: dict[str, str]) -> Answer:
        what = f"list {query['prefix'].removeprefix(self._target.prefix)!r}"
        reply = self._retrier.send(what, "GET", query=query)
        if reply.outcome is not AnswerKind.DONE:
            raise StoreRefused(f"{self.uri}: cannot {what}: it answered {reply.answer.status}; correct the endpoint")
        return reply.answer

    def _infos(self, lines: Iterator[Listed]) -> Iterator[ObjectInfo]:
        for line in lines:
            key = line.key.removeprefix(self._target.prefix)
            try:
                validate_key(key)
            except InvalidKey:
                continue  # an object that someone else put there under a name that is no key
            yield ObjectInfo(key, line.size, line.etag)


def _etag(answer: Answer) -> str:
    return answer.headers.get("ETag", "").strip('"')
