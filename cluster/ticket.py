"""The ticket by which a link opens: the controller's word that these two attempts belong together. Pure.

A ticket says which link of which run is meant, and is sealed by HMAC-SHA-256 with a key that only the controllers of
the cluster hold. Both ends of a link are given the same ticket, over mutual TLS, and meet if theirs are equal
(`match_ticket`). So a node with a good certificate can still not attach to a link that it was not given, nor make a
ticket; and an end of an earlier attempt cannot meet one of a later.

Wire: magic "HRT1", the length of the claims (2 bytes, little endian), the claims (msgpack, an array in the order of
the fields), the seal (32 bytes). Decoding is total: any bytes give a ticket or a TicketError, and nothing is read from
the claims before the seal is found good. Two tickets match if they are equal: both ends were given the same one.
"""

import hashlib
import hmac
import struct
from dataclasses import astuple, dataclass, fields
from typing import Any

import msgpack

from headrace.cluster.errors import PeerError

MAGIC = b"HRT1"
#: The key has at least so many bytes.
KEY_BYTES_MIN = 32
#: No ticket is larger, in bytes.
TICKET_LIMIT_BYTES = 1024
#: No name in a ticket is longer, in bytes of UTF-8.
NAME_LIMIT_BYTES = 256
SEAL_BYTES = 32

_HEAD = struct.Struct("<4sH")
_U64_MAX = (1 << 64) - 1
#: Keeps a seal of a ticket from being a seal of anything else under the same key.
_CONTEXT = b"headrace ticket\0"


class TicketError(PeerError):
    """Base of the reasons why a ticket is not accepted."""


class TicketMalformedError(TicketError):
    """The bytes are no ticket, or a field is out of range."""


class TicketForgedError(TicketError):
    """The seal is not that of this cluster's key."""


class TicketMismatchError(TicketError):
    """The ticket is good, and for something else."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a link is for. Numbers are unsigned 64-bit, names at most NAME_LIMIT_BYTES of UTF-8."""

    #: The leadership that issued it; a lower one than the worker's is refused.
    term: int
    pipeline: str
    #: The pipeline's version: the hash of graph, sources, environment and tokenizer.
    version: str
    epoch: int
    link: str
    #: The attempts of the two tasks: a restarted task has another one.
    sender_attempt: int
    receiver_attempt: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and not (type(value) is int and 0 <= value <= _U64_MAX):
                raise TicketMalformedError(f"ticket: {field.name} is {value!r}, not an unsigned 64-bit number")
            if field.type is str and not (isinstance(value, str) and _utf8_size(value) <= NAME_LIMIT_BYTES):
                raise TicketMalformedError(f"ticket: {field.name} is no text of at most {NAME_LIMIT_BYTES} bytes")


def encode_ticket(ticket: Ticket, key: bytes) -> bytes:
    """Return the sealed ticket. Raises ValueError for a key that is too short."""
    claims: bytes = msgpack.packb(astuple(ticket))
    body = _HEAD.pack(MAGIC, len(claims)) + claims
    return body + _seal(body, key)


def decode_ticket(data: bytes, key: bytes) -> Ticket:
    """Read a ticket. Raises TicketMalformedError for what is none, TicketForgedError for another key's."""
    body = _body(data)
    if not hmac.compare_digest(data[len(body) :], _seal(body, key)):
        raise TicketForgedError("the seal of the ticket is not this cluster's")
    claims = _claims(body)
    return Ticket(*claims)


def match_ticket(theirs: bytes, ours: bytes) -> None:
    """Accept the ticket that this end was given too. Raises a subclass of TicketError that says what differs.

    This needs no key: who has not been given the ticket cannot guess its seal.
    """
    if hmac.compare_digest(theirs, ours):
        return
    # The claims of a ticket whose seal was not looked at are for people; nothing is granted on them.
    expected, ticket = _claims(_body(ours)), _claims(_body(theirs))
    for field, mine, other in zip(fields(Ticket), expected, ticket, strict=True):
        if mine != other:
            raise TicketMismatchError(
                f"the ticket says {field.name} {other!r}, this end was told {mine!r}; "
                "an end of another attempt, the controller will start both anew"
            )
    raise TicketForgedError("the seal of the ticket is not that of the one that this end was given")


def _body(data: bytes) -> bytes:
    """All of a ticket but its seal."""
    if not _HEAD.size + SEAL_BYTES <= len(data) <= TICKET_LIMIT_BYTES:
        raise TicketMalformedError(f"{len(data)} bytes are no ticket: it has at most {TICKET_LIMIT_BYTES}")
    magic, size = _HEAD.unpack_from(data)
    if magic != MAGIC or _HEAD.size + size + SEAL_BYTES != len(data):
        raise TicketMalformedError(f"no ticket: it begins with {magic!r} and claims {size} of {len(data)} bytes")
    return data[: _HEAD.size + size]


def _claims(body: bytes) -> list[Any]:
    try:
        claims = msgpack.unpackb(body[_HEAD.size :])
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise TicketMalformedError(f"ticket: its claims are no msgpack ({error})") from error
    if not isinstance(claims, list) or len(claims) != len(fields(Ticket)):
        raise TicketMalformedError("ticket: its claims are not those of this release")
    return claims


def _seal(body: bytes, key: bytes) -> bytes:
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(f"a key of {len(key)} bytes: tickets need {KEY_BYTES_MIN}")
    return hmac.digest(key, _CONTEXT + body, hashlib.sha256)


def _utf8_size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
