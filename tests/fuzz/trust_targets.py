"""Targets of `headrace.transport`: what says who somebody is, and what he may do."""

from __future__ import annotations

import base64
import contextlib
from datetime import UTC, datetime
from random import Random

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.cluster import certificates, join, ticket
from tests.fuzz.harness import Target
from tests.fuzz.mutations import within_msgpack

KEY = b"k" * ticket.KEY_BYTES_MIN


# -- tickets and joining --


def run_ticket(data: bytes) -> object | None:
    body = ticket._HEAD.pack(ticket.MAGIC, len(data)) + data if len(data) < 60_000 else data
    found = None
    # As it is; as claims that are sealed; and as a ticket that another key has sealed.
    for candidate in (data, body + ticket._seal(body, KEY), data[: -ticket.SEAL_BYTES] + bytes(ticket.SEAL_BYTES)):
        with contextlib.suppress(ticket.TicketError):
            found = ticket.decode_ticket(candidate, KEY)
            assert ticket.decode_ticket(ticket.encode_ticket(found, KEY), KEY) == found
        with contextlib.suppress(ticket.TicketError):
            ticket.match_ticket(candidate, ticket.encode_ticket(TICKET, KEY))
    return found


TICKET = ticket.Ticket(3, "main", "v1", 7, "source->sink", 1, 2)


def tickets() -> list[bytes]:
    whole = ticket.encode_ticket(TICKET, KEY)
    return [whole, whole[ticket._HEAD.size : -ticket.SEAL_BYTES]]


def run_token(data: bytes) -> object | None:
    """As the text that somebody pastes, and as what stands in it under a good seal."""
    text = join.PREFIX + base64.urlsafe_b64encode(data + join._seal(data, KEY)).decode().rstrip("=")
    found = None
    for candidate in (data.decode("utf-8", "replace"), text):
        with contextlib.suppress(join.TokenError):
            join.read_token(candidate)
        with contextlib.suppress(join.TokenError):
            found = join.check_token(candidate, KEY, 1_000.0)
            assert join.check_token(join.encode_token(found, KEY), KEY, 1_000.0) == found
    return found


def tokens() -> list[bytes]:
    made = join.JoinToken("ab" * 32, bytes(16), certificates.Role.WORKER, "w1", 2_000_000_000, ("10.0.0.1:7420",))
    text = join.encode_token(made, KEY)
    return [text.encode(), join._split(text)[0]]


def run_join(data: bytes) -> object | None:
    found = None
    for body in (data, data[join.LENGTH.size :]):
        for kind in (join.Greeting, join.JoinRequest, join.JoinAnswer):
            with contextlib.suppress(join.JoinWireError):
                found = join.decode_message(kind, body)
                whole = join.encode_message(found)
                assert join.decode_message(kind, whole[join.LENGTH.size :]) == found
    if len(data) >= join.LENGTH.size:
        with contextlib.suppress(join.JoinWireError):
            assert join.body_length(data[: join.LENGTH.size]) <= join.MESSAGE_LIMIT_BYTES
    return found


def joins() -> list[bytes]:
    said = (
        join.Greeting(b"-----BEGIN", "0.1"),
        join.JoinRequest("hrj1.x", b"-----BEGIN", "0.1", 3, 2),
        join.JoinAnswer(b"-----BEGIN", "w1", ""),
    )
    return [join.encode_message(message) for message in said]


# -- certificates --


def run_identity(data: bytes) -> object | None:
    # A certificate's URIs are ASCII: what reads it says so.
    with contextlib.suppress(certificates.CertificateRoleError, UnicodeDecodeError):
        found = certificates.Identity.from_uri(data.decode("ascii"))
        assert certificates.Identity.from_uri(found.uri()) == found
        return found
    return None


AT = datetime(2026, 1, 1, tzinfo=UTC)


def run_certificate(data: bytes) -> object | None:
    """A certificate, as DER, of whoever comes: refused, or one of our authority."""
    try:
        certificate = certificates.read_certificate(data)
    except certificates.CertificateError:
        return None
    with contextlib.suppress(certificates.CertificateError):
        certificates.verify(certificate, AUTHORITY.authority(), list(certificates.Role), AT)
    # What a certificate says is read whether or not it is believed.
    with contextlib.suppress(certificates.CertificateRoleError):
        return certificates.identity_of(certificate)
    return None


def run_join_request(data: bytes) -> object | None:
    """What a node with a good token asks for: a name of the token, and a key of the node's own."""
    name, _, pem = data.partition(b"\0")
    try:
        issued = certificates.issue(AUTHORITY, pem, certificates.Role.WORKER, name.decode("utf-8", "replace"), AT)
    except certificates.CertificateError:
        return None
    leaf = x509.load_pem_x509_certificate(issued)
    found = certificates.verify(leaf, AUTHORITY.authority(), {certificates.Role.WORKER}, AT).identity
    assert found.name == name.decode("utf-8", "replace")
    return found


AUTHORITY = certificates.create_authority("test", AT)


def certificate_seeds() -> list[bytes]:
    made = [
        certificates.create_node(AUTHORITY, role, f"node-{role.value}", AT).certificate() for role in certificates.Role
    ]
    return [one.public_bytes(serialization.Encoding.DER) for one in made]


def join_requests() -> list[bytes]:
    key = ec.derive_private_key(7, ec.SECP256R1())
    return [b"w1\0" + certificates.public_pem(key), "wörker 2".encode() + b"\0" + certificates.public_pem(key)]


def identities() -> list[bytes]:
    made = [certificates.Identity("main", role, "w\xf6rker/1") for role in certificates.Role]
    return [one.uri().encode() for one in made]


def join_mutation(data: bytes, random: Random) -> bytes:
    """Within a message, behind its length."""
    body = within_msgpack(data[join.LENGTH.size :], random)
    return join.LENGTH.pack(len(body)) + body


# -- the list --


TARGETS = [
    Target("ticket", ("headrace.cluster.ticket",), run_ticket, tickets, mutate=within_msgpack),
    Target("join_token", ("headrace.cluster.join",), run_token, tokens, mutate=within_msgpack),
    Target("join_wire", ("headrace.cluster.join",), run_join, joins, mutate=join_mutation),
    Target("identity", ("headrace.cluster.certificates",), run_identity, identities),
    Target("certificate", ("headrace.cluster.certificates",), run_certificate, certificate_seeds),
    Target("join_request", ("headrace.cluster.certificates",), run_join_request, join_requests),
]
