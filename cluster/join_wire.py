"""What a node and a controller say when the node joins: three messages over TLS, each with its length. Pure.

    controller -> node: Greeting    the authority's certificate, which the node compares with its token
    node -> controller: JoinRequest     the token and the public half of its key
    controller -> node: JoinAnswer      a certificate, or why not

The node sends nothing before it knows that the other end holds a controller's certificate of that authority.
"""

import struct
from dataclasses import astuple, dataclass
from typing import TypeVar

import msgpack

from headrace.cluster.errors import PeerError

#: No message is larger, in bytes.
MESSAGE_LIMIT_BYTES = 64 << 10
#: Seconds that one side waits for the other's next message.
JOIN_S_MAX = 10.0
#: The join port is so far above the control port.
PORT_OFFSET = 1

LENGTH = struct.Struct("<I")


class JoinWireError(PeerError):
    """What came is no message of a join."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The controller says who issues certificates here."""

    authority_pem: bytes
    version: str


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A node wants to join."""

    token: str
    public_key_pem: bytes
    version: str
    #: The range of protocols that it speaks.
    protocol: int
    protocol_oldest: int


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """A certificate and the name in it; or a refusal."""

    certificate_pem: bytes
    name: str
    refusal: str


Message = TypeVar("Message", Greeting, JoinRequest, JoinAnswer)


def encode_message(message: Greeting | JoinRequest | JoinAnswer) -> bytes:
    """Return the message with its length before it."""
    body: bytes = msgpack.packb(list(astuple(message)))
    return LENGTH.pack(len(body)) + body


def body_length(head: bytes) -> int:
    """Return how many bytes follow a head. Raises JoinWireError above the limit."""
    (length,) = LENGTH.unpack(head)
    if length > MESSAGE_LIMIT_BYTES:
        raise JoinWireError(f"a message of {length} bytes where a join has at most {MESSAGE_LIMIT_BYTES}")
    return int(length)


def decode_message(kind: type[Message], body: bytes) -> Message:
    """Read a message of one kind. Raises JoinWireError for anything else."""
    try:
        fields = msgpack.unpackb(body)
        wanted = list(kind.__annotations__.values())
        # What a later release says besides is passed over.
        if not isinstance(fields, list) or [type(field) for field in fields[: len(wanted)]] != wanted:
            raise ValueError("other fields")
        return kind(*fields[: len(wanted)])
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise JoinWireError(f"no {kind.__name__} of a join: {error}") from error
