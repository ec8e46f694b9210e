"""What an answer of an S3 endpoint means, and how to say it to a person."""

from __future__ import annotations

import contextlib
import re
from enum import Enum

from headrace.store.s3.connection import Answer, BadXml, S3Target, read_xml


class AnswerKind(Enum):
    """The few things that an answer can mean to its retrier."""

    DONE = "done"
    #: No such object (or, where the answer has no body, perhaps no such bucket).
    MISSING = "missing"
    #: The condition that was sent does not hold: an object stands there.
    EXISTS = "exists"
    #: The range starts behind the object's end.
    PAST_END = "past end"
    #: Not now; ask again.
    AGAIN = "again"
    #: The credentials ran out; fetch new ones and ask again.
    EXPIRED = "expired"
    #: Not until there is room.
    FULL = "full"
    #: Not at all; asking again changes nothing.
    REFUSED = "refused"


#: Where an error begins. AWS and MinIO send blanks while they put a large upload together, and then what came of it.
_ERROR = re.compile(rb"\s*(?:<\?xml[^>]*\?>\s*)?(?=<Error[\s>])")

_AGAIN_STATUS = {408, 409, 425, 429, 500, 502, 503, 504}
#: Codes that may come with other statuses: a busy server, or a body that was damaged on its way.
_AGAIN_CODES = {
    *("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted", "ThrottlingException"),
    *("ConditionalRequestConflict", "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch", "InvalidDigest"),
    *("RequestTimeoutException", "TooManyRequests", "Throttling", "XAmzContentChecksumMismatch"),
}
_FULL_STATUS = 507
_FULL_CODES = {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}
_BY_STATUS = {304: AnswerKind.EXISTS, 404: AnswerKind.MISSING, 412: AnswerKind.EXISTS, 416: AnswerKind.PAST_END}

_CREDENTIALS = "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile that the URI names"
_REMEDIES = {
    "InvalidAccessKeyId": f"the endpoint does not know the access key; {_CREDENTIALS}",
    "SignatureDoesNotMatch": f"the secret key does not belong to the access key; {_CREDENTIALS}",
    "InvalidToken": f"the session token is not valid; {_CREDENTIALS}",
    "ExpiredToken": f"the session token has expired; {_CREDENTIALS}",
    "AccessDenied": "these credentials have no right to this; grant them reading, writing and listing of the prefix",
    "RequestTimeTooSkewed": "this host's clock differs from the endpoint's by more than 15 minutes; set the clock",
    "EntityTooLarge": "the object is larger than the endpoint takes; make shards smaller",
    "QuotaExceeded": "the quota is used up; raise it or free space",
    "XMinioAdminBucketQuotaExceeded": "the bucket's quota is used up; raise it or free space",
    "XMinioStorageFull": "the endpoint's disks are full; free space",
}


def code_of(answer: Answer) -> str:
    """The error code of an answer, such as `NoSuchKey`; "" where there is none.

    An answer to HEAD has no body; MinIO says it in a header.
    """
    return _element(answer, "Code") or answer.headers.get("x-minio-error-code", "")


def outcome_of(answer: Answer) -> AnswerKind:
    """Decide what an answer means. A 200 may carry an error in its body (a completed multipart upload's does).

    An answer to HEAD does not say that the session token has expired: AWS then answers 400 and nothing else.
    """
    code = code_of(answer)
    if answer.status in (200, 204, 206) and not code:
        return AnswerKind.DONE
    if code == "NoSuchBucket":
        return AnswerKind.REFUSED
    if code in ("ExpiredToken", "ExpiredTokenException"):
        return AnswerKind.EXPIRED
    if answer.status == 400 and not code and not answer.body:
        return AnswerKind.EXPIRED
    if code in _FULL_CODES or answer.status == _FULL_STATUS:
        return AnswerKind.FULL
    if code in _AGAIN_CODES or answer.status in _AGAIN_STATUS:
        return AnswerKind.AGAIN
    if answer.status == 404 and code not in ("", "NoSuchKey", "NoSuchUpload", "NotFound"):
        return AnswerKind.REFUSED
    return _BY_STATUS.get(answer.status, AnswerKind.REFUSED)


def problem_of(answer: Answer) -> str:
    """An answer that is a failure, in a few words: `it answered 503 SlowDown`."""
    code = code_of(answer)
    return f"it answered {answer.status}{' ' + code if code else ''}"


def remedy_of(answer: Answer, target: S3Target) -> str:
    """What to do about an answer that asking again will not change."""
    code = code_of(answer)
    region = _element(answer, "Region") or answer.headers.get("x-amz-bucket-region", "")
    if code == "NoSuchBucket":
        return no_bucket(target)
    if region and region != target.region:
        return f"the bucket is in region {region} and not {target.region}: add ?region={region} or set AWS_REGION"
    if answer.status in (301, 302, 307, 308):
        return "the endpoint sends us elsewhere; correct the endpoint, the region, or ?style=path"
    if answer.status in (401, 403) and code not in _REMEDIES:
        return f"access was denied; {_CREDENTIALS}"
    if answer.status == 400 and not code:
        return f"most likely the session token has expired, or the region {target.region} is wrong; correct them"
    text = _element(answer, "Message")
    return _REMEDIES.get(code, f"{text.rstrip('.') or 'no reason was given'}; see the endpoint's log")


def no_bucket(target: S3Target) -> str:
    """The remedy where the bucket does not exist."""
    return f"there is no bucket {target.bucket!r} at {target.where}: create it, or correct the URI"


def _element(answer: Answer, name: str) -> str:
    """The text of a direct child of an `<Error>` body."""
    found = _ERROR.match(answer.body) if answer.status != 206 else None
    if found is None:
        return ""
    with contextlib.suppress(BadXml):
        for child in read_xml(answer.body[found.end() :]):
            if child.tag.rpartition("}")[2] == name:
                return (child.text or "").strip()
    return ""
