"""Uploads: one conditional PUT, or a large object in parts."""

from __future__ import annotations

import concurrent.futures
import contextlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from xml.sax.saxutils import escape

from headrace.store import StoreError, StoreRefused, StoreUnavailable
from headrace.store.s3.connection import Answer, BadXml, Body, read_xml
from headrace.store.s3.retry import AnswerKind, Retrier, problem_of

#: The largest object that one PUT takes (S3's own limit).
PUT_BYTES_MAX = 5 << 30
#: From here on an object is uploaded in parts, where parts keep their promise.
MULTIPART_BYTES_MIN = 64 << 20
#: One part; S3 wants at least 5 MiB, and at most 10,000 parts.
PART_BYTES = 16 << 20
PARTS_MAX = 10_000
#: Parts, or ranges, of one object on their way at once.
IN_FLIGHT = 4
#: One range of a read. A smaller object is one request into one buffer, which beats any assembly of parts while the
#: line is not the limit; readers of many objects have several under way as it is.
READ_BYTES = 64 << 20
#: From here on a conditional upload first asks whether the object stands: a refusal after the body would be dear.
LOOK_FIRST_BYTES = 1 << 20

#: Times that an object is uploaded in parts because the endpoint has forgotten the upload, or wants another.
UPLOADS_MAX = 3

#: Who wrote the object: tells our own write, whose answer was lost, from another's.
WRITER_HEADER = "x-amz-meta-headrace-writer"
#: xxh3-64 of the whole object, verified when it is read whole.
CHECKSUM_HEADER = "x-amz-meta-headrace-xxh3"

#: Conditions of an upload: that no object stands there, or that this one does.
IF_ABSENT = {"If-None-Match": "*"}


def if_match(etag: str) -> dict[str, str]:
    """The condition that the object is still the one with this ETag (without its quotes)."""
    return {"If-Match": f'"{etag}"'}


#: The race that decides whether a conditional multipart upload can be trusted.
RACE_WIDTH = 8
RACE_ROUNDS = 12
#: The race that decides whether a replacement of what stands can be trusted.
REPLACE_WIDTH = 2
REPLACE_ROUNDS = 3

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Where objects are cut; tests make them small."""

    multipart_bytes_min: int = MULTIPART_BYTES_MIN
    part_bytes: int = PART_BYTES
    read_bytes: int = READ_BYTES
    put_bytes_max: int = PUT_BYTES_MAX


class _UploadGone(StoreUnavailable):
    """The endpoint takes these parts no more; all of them must be sent again."""


def new_writer() -> str:
    """A name for one upload that no other has."""
    return secrets.token_hex(16)


def put(retrier: Retrier, key: str, body: Body, writer: str, condition: Mapping[str, str]) -> bool:
    """Upload in one PUT; False where the condition, a header of it, was refused, by an object that is not ours."""
    headers = {**_metadata(retrier, body, writer), **condition}
    # The endpoint compares what arrived with this before it stores it.
    headers["x-amz-checksum-crc32"] = body.crc32()

    def attempt() -> Answer:
        looks = condition == IF_ABSENT and body.size >= LOOK_FIRST_BYTES
        if looks and retrier.wire.send("HEAD", key).status == 200:
            return Answer(412, {}, b"")
        answer = retrier.wire.send("PUT", key, body, headers)
        # AWS says so of an object that was to match and is gone.
        return Answer(412, {}, b"") if "If-Match" in condition and answer.status == 404 else answer

    return _conclude(retrier, key, writer, bool(condition), attempt)


def put_in_parts(retrier: Retrier, key: str, body: Body, writer: str, is_conditional: bool, part_bytes: int) -> bool:
    """Upload in parallel parts; only the completion is conditional. An upload that fails or loses is aborted."""
    part_bytes = max(part_bytes, -(-body.size // PARTS_MAX))
    for left in reversed(range(UPLOADS_MAX)):
        try:
            return _put_in_parts_once(retrier, key, body, writer, is_conditional, part_bytes)
        except _UploadGone:
            if not left:
                raise
    raise AssertionError("the last upload ends or raises")


def _put_in_parts_once(
    retrier: Retrier, key: str, body: Body, writer: str, is_conditional: bool, part_bytes: int
) -> bool:
    upload = _begin(retrier, key, _metadata(retrier, body, writer))
    try:
        starts = range(0, body.size, part_bytes)
        numbered = [(number, body.slice(start, start + part_bytes)) for number, start in enumerate(starts, start=1)]
        etags = in_parallel(lambda part: _put_part(retrier, key, upload, *part), numbered)
        is_ours = _complete(retrier, key, upload, etags, writer, is_conditional)
    except BaseException:
        _abort(retrier, key, upload)
        raise
    if not is_ours:
        _abort(retrier, key, upload)
    return is_ours


def completes_once(retrier: Retrier, prefix: str) -> bool:
    """Race conditional multipart completions: whether exactly one wins in each of some rounds.

    SeaweedFS 4.48 checks the condition and then writes without a lock between the two, so that three of eight have won.
    """
    for _ in range(RACE_ROUNDS):
        key = f"{prefix}{secrets.token_hex(8)}"
        writers = [new_writer() for _ in range(RACE_WIDTH)]
        uploads = in_parallel(
            partial(_begin, retrier, key), [{WRITER_HEADER: writer} for writer in writers], RACE_WIDTH
        )
        body = Body([b"race"])
        parts = [[_put_part(retrier, key, upload, 1, body)] for upload in uploads]

        def complete(number: int, key: str = key, uploads: list[str] = uploads, parts: list[list[str]] = parts) -> bool:
            request = _completion(parts[number])
            query = {"uploadId": uploads[number]}
            reply = retrier.send(f"probe {key!r}", "POST", key, request, {"If-None-Match": "*"}, query)
            return reply.outcome is AnswerKind.DONE

        try:
            wins = sum(in_parallel(complete, list(range(RACE_WIDTH)), RACE_WIDTH))
            in_parallel(partial(_abort, retrier, key), uploads, RACE_WIDTH)
        finally:
            retrier.once(partial(retrier.wire.send, "DELETE", key))
        if wins != 1:
            return False
    return True


def replaces_once(retrier: Retrier, prefix: str) -> bool:
    """Whether of several who replace the same object by `If-Match` exactly one wins, in each of some rounds.

    A server that does not know the header lets all of them win, and one that refuses it lets none.
    """
    key = f"{prefix}{secrets.token_hex(8)}"
    body = Body([b"race"])

    def replace(etag: str) -> bool:
        return put(retrier, key, body, new_writer(), if_match(etag))

    try:
        put(retrier, key, body, new_writer(), {})
        if replace("0" * 32):
            return False
        for lap in range(REPLACE_ROUNDS):
            standing = retrier.send(f"probe {key!r}", "HEAD", key).answer
            body = Body([f"lap {lap}".encode()])
            etags = [standing.headers.get("ETag", "").strip('"')] * REPLACE_WIDTH
            if sum(in_parallel(replace, etags, REPLACE_WIDTH)) != 1:
                return False
    except StoreRefused:
        return False
    finally:
        retrier.once(partial(retrier.wire.send, "DELETE", key))
    return True


def in_parallel(work: Callable[[_T], _R], items: list[_T], width: int = IN_FLIGHT) -> list[_R]:
    """Apply `work` to each item, `width` at a time; the first failure ends the rest and is raised."""
    with concurrent.futures.ThreadPoolExecutor(min(width, max(len(items), 1)), "s3") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _metadata(retrier: Retrier, body: Body, writer: str) -> dict[str, str]:
    said = {"Content-Type": "application/octet-stream", WRITER_HEADER: writer, CHECKSUM_HEADER: body.xxh3()}
    return said | retrier.target.encryption


def _conclude(retrier: Retrier, key: str, writer: str, is_conditional: bool, attempt: Callable[[], Answer]) -> bool:
    """Ask, and find out whose object stands where an answer was lost."""
    try:
        reply = retrier.ask(f"write {key!r}", attempt)
    except StoreUnavailable:
        if is_conditional and _is_ours(retrier, key, writer):
            return True
        raise
    if reply.outcome is AnswerKind.DONE:
        return True
    if reply.outcome is AnswerKind.EXISTS and is_conditional:
        return reply.failures > 0 and _stands_ours(retrier, key, writer)
    if reply.failures > 0 and _stands_ours(retrier, key, writer):
        return True  # an upload that was completed before is not known any more
    raise _UploadGone(
        f"{retrier.target.uri}: cannot write {key!r}: it answered {reply.answer.status}; the upload is gone, try again"
    )


def _stands_ours(retrier: Retrier, key: str, writer: str) -> bool:
    reply = retrier.send(f"read back {key!r}", "HEAD", key)
    return reply.outcome is AnswerKind.DONE and reply.answer.headers.get(WRITER_HEADER) == writer


def _is_ours(retrier: Retrier, key: str, writer: str) -> bool:
    """The same in one attempt, when patience is at its end."""
    found = retrier.once(lambda: retrier.wire.send("HEAD", key))
    return found is not None and found[0] is AnswerKind.DONE and found[1].headers.get(WRITER_HEADER) == writer


def _begin(retrier: Retrier, key: str, metadata: Mapping[str, str]) -> str:
    reply = retrier.send(f"begin the upload of {key!r}", "POST", key, headers=metadata, query={"uploads": ""})
    try:
        upload = read_xml(reply.answer.body).findtext("{*}UploadId")
    except BadXml as error:
        raise StoreUnavailable(
            f"{retrier.target.uri}: cannot begin the upload of {key!r}: of the answer, {error}"
        ) from error
    if not upload:
        raise StoreUnavailable(f"{retrier.target.uri}: cannot begin the upload of {key!r}: the answer has no UploadId")
    return upload


def _put_part(retrier: Retrier, key: str, upload: str, number: int, body: Body) -> str:
    query = {"partNumber": str(number), "uploadId": upload}
    headers = {"Content-MD5": body.md5()}
    reply = retrier.send(f"upload part {number} of {key!r}", "PUT", key, body, headers, query)
    etag = reply.answer.headers.get("ETag", "")
    if reply.outcome is not AnswerKind.DONE or not etag:
        raise StoreUnavailable(
            f"{retrier.target.uri}: cannot upload part {number} of {key!r}: "
            f"it answered {reply.answer.status}; try again"
        )
    return etag


def _complete(retrier: Retrier, key: str, upload: str, etags: list[str], writer: str, is_conditional: bool) -> bool:
    body = _completion(etags)
    headers = {"Content-Type": "application/xml"} | ({"If-None-Match": "*"} if is_conditional else {})

    def attempt() -> Answer:
        answer = retrier.wire.send("POST", key, body, headers, {"uploadId": upload})
        if is_conditional and answer.status == 409:
            # Another write of the key was under way. AWS wants a new upload then, and not this one's end again.
            raise _UploadGone(f"{retrier.target.uri}: cannot write {key!r}: {problem_of(answer)}; try again")
        return answer

    return _conclude(retrier, key, writer, is_conditional, attempt)


def _completion(etags: list[str]) -> Body:
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
        for number, etag in enumerate(etags, start=1)
    )
    return Body([f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()])


def _abort(retrier: Retrier, key: str, upload: str) -> None:
    """Free the parts; a failure costs only their space, which a life-cycle rule frees in the end."""
    with contextlib.suppress(StoreError):
        retrier.once(lambda: retrier.wire.send("DELETE", key, query={"uploadId": upload}))
