"""How nodes join: the token, good for as many nodes as it says, and the three messages over TLS. Pure.

A token says which authority the node may trust (its fingerprint), where the controllers are, as what the node is let
in and until when; it is sealed by HMAC-SHA-256 with the cluster's key, so that a controller knows its own. Who holds
it may join with a key of their own; the controller notes in a durable place which key spent it, so that the same node
may ask again and nobody else can. A token for N nodes has N slots, each of which one key spends. Text: "hrj1." and
base64 of a msgpack array and its seal.

    controller -> node: Greeting    the authority's certificate, which the node compares with its token
    node -> controller: JoinRequest     the token and the public half of its key
    controller -> node: JoinAnswer      a certificate, or why not

The node sends nothing before it knows that the other end holds a controller's certificate of that authority.
"""

import base64
import binascii
import hashlib
import hmac
import struct
from dataclasses import astuple, dataclass
from typing import TypeVar

import msgpack

from headrace.cluster.errors import PeerError
from headrace.cluster.roles import Role

PREFIX = "hrj1."
#: No token is longer, in characters.
TOKEN_LIMIT = 2048
SEAL_BYTES = 32
IDENTIFIER_BYTES = 16
#: Nodes that one token lets in, at most.
NODES_PER_TOKEN_MAX = 4096
_CONTEXT = b"headrace join token\0"


class TokenError(PeerError):
    """Base of the reasons why a token is not accepted."""


class TokenMalformedError(TokenError):
    """The text is no token."""


class TokenForgedError(TokenError):
    """The token was not made by this cluster."""


class TokenExpiredError(TokenError):
    """The token was good once."""


class TokenSpentError(TokenError):
    """Another node has joined with it."""


@dataclass(frozen=True, slots=True)
class JoinToken:
    """What a token says."""

    #: SHA-256 of the authority's certificate, in hexadecimal.
    authority: str
    #: What makes it one of its kind: random, IDENTIFIER_BYTES long.
    identifier: bytes
    role: Role
    #: The name that the node is given; empty for one made from its key.
    name: str
    #: Seconds since 1970.
    expires_at: int
    #: The controllers' addresses, as host:port.
    controllers: tuple[str, ...]
    #: How many nodes it lets in.
    nodes: int = 1

    @property
    def slots(self) -> tuple[str, ...]:
        """What nodes spend, one each: names under which it is noted who did."""
        first = self.identifier.hex()
        return (first, *(f"{first}.{number}" for number in range(1, self.nodes)))


def encode_token(token: JoinToken, key: bytes) -> str:
    """Return the token as text, sealed with the cluster's key."""
    body: bytes = msgpack.packb(
        [
            bytes.fromhex(token.authority),
            token.identifier,
            token.role.value,
            token.name,
            token.expires_at,
            list(token.controllers),
            token.nodes,
        ]
    )
    return PREFIX + base64.urlsafe_b64encode(body + _seal(body, key)).decode().rstrip("=")


def read_token(text: str) -> JoinToken:
    """Read a token without knowing its seal, as the node that joins does. Raises TokenMalformedError."""
    body, _ = _split(text)
    try:
        authority, identifier, role, name, expires_at, controllers, nodes = msgpack.unpackb(body)
        token = JoinToken(authority.hex(), identifier, Role(role), name, expires_at, tuple(controllers), nodes)
        texts = (token.name, *token.controllers)
        if len(authority) != 32 or len(identifier) != IDENTIFIER_BYTES or type(expires_at) is not int:
            raise ValueError("a field of the wrong size")
        if type(nodes) is not int or not 1 <= nodes <= NODES_PER_TOKEN_MAX:
            raise ValueError(f"a number of nodes that is not 1 to {NODES_PER_TOKEN_MAX}")
        if not all(isinstance(item, str) for item in texts):
            raise ValueError("a name that is no text")
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise TokenMalformedError(f"this is no join token of this release ({error}); copy it whole") from error
    return token


def check_token(text: str, key: bytes, at_s: float) -> JoinToken:
    """Read a token of the cluster that has this key, at `at_s` seconds since 1970. Raises a subclass of TokenError."""
    body, seal = _split(text)
    if not hmac.compare_digest(seal, _seal(body, key)):
        raise TokenForgedError("the token was not made by this cluster; make one with `headrace cluster token`")
    token = read_token(text)
    if at_s >= token.expires_at:
        raise TokenExpiredError("the token has expired; make another with `headrace cluster token`")
    return token


def _split(text: str) -> tuple[bytes, bytes]:
    if not text.startswith(PREFIX) or len(text) > TOKEN_LIMIT:
        raise TokenMalformedError(f"this is no join token: it begins with {PREFIX!r} and is short")
    encoded = text[len(PREFIX) :].strip()
    try:
        data = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise TokenMalformedError(f"this is no join token ({error}); copy it whole") from error
    if len(data) <= SEAL_BYTES:
        raise TokenMalformedError("this is no join token: it is too short; copy it whole")
    return data[:-SEAL_BYTES], data[-SEAL_BYTES:]


def _seal(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, _CONTEXT + body, hashlib.sha256)


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
