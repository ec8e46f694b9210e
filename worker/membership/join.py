"""How a node becomes a member of a cluster, and what it keeps of that: its key, its certificate, the authority.

The key is made here and never leaves this host. The token says which authority to trust: a controller that cannot show
a certificate of that authority is told nothing, the token least of all.
"""

from __future__ import annotations

import json
import socket
import ssl
from importlib.metadata import version
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.cluster import (
    AUTHORITY,
    JOIN_S_MAX,
    KEY_BYTES_MAX,
    LENGTH,
    PORT_OFFSET,
    CertificateError,
    Credentials,
    Greeting,
    JoinAnswer,
    JoinRequest,
    JoinToken,
    PeerError,
    Role,
    body_length,
    decode_message,
    encode_message,
    fingerprint,
    new_key,
    private_pem,
    public_pem,
    read_certificate,
    read_credentials,
    read_token,
    utc_now,
    verify,
    write_public,
    write_secret,
)
from headrace.daemon import AddressError, host_and_port, read_private
from headrace.protos.protocol import spoken_here
from headrace.store.files import disk
from headrace.worker.membership.member import JoinError, Membership

NODE = "node"


def read_membership(folder: Path) -> Membership | None:
    """What the node kept when it joined; None if it has not joined."""
    try:
        described = json.loads((folder / "member.json").read_text(encoding="utf-8"))
        controllers = tuple(str(item) for item in described["controllers"])
        return Membership(str(described["name"]), controllers, read_credentials(folder, NODE))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise JoinError(f"{folder} does not hold what a member needs ({error}); empty it, and join again") from error


def join(text: str, folder: Path) -> Membership:
    """Join the cluster of a token, or return what there is if this node has joined it before. Raises JoinError."""
    try:
        token = read_token(text)
    except PeerError as error:
        raise JoinError(str(error)) from error
    member = read_membership(folder)
    if member is not None:
        ours = fingerprint(member.credentials.authority())
        if ours != token.authority:
            raise JoinError(f"this node is a member of another cluster ({ours[:16]}); give it another --state folder")
        return member
    disk.make_folder(folder, 0o700)
    key = _key(folder)
    refusals: list[str] = []
    for address in token.controllers:
        try:
            authority_pem, answer = _ask(address, text, token, public_pem(key))
        except (OSError, PeerError, CertificateError, AddressError, OverflowError) as error:
            refusals.append(f"{address}: {error}")
            continue
        if answer.refusal:
            # Another one may lead, and say otherwise.
            refusals.append(f"{address}: {answer.refusal}")
            continue
        return _keep(folder, token, Credentials(answer.certificate_pem, private_pem(key), authority_pem), answer.name)
    raise JoinError("no controller of the cluster admits this node: " + "; ".join(refusals))


def _ask(address: str, text: str, token: JoinToken, public_key_pem: bytes) -> tuple[bytes, JoinAnswer]:
    """One controller's answer, after it has proved to be one; and the authority's certificate."""
    host, port = host_and_port(address)
    # The certificate is verified below, against the authority that the token names: no list of roots can.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, port + PORT_OFFSET), JOIN_S_MAX) as plain,
        context.wrap_socket(plain) as connection,
    ):
        greeting = decode_message(Greeting, _receive(connection))
        authority = read_certificate(greeting.authority_pem)
        if fingerprint(authority) != token.authority:
            raise CertificateError("it is a controller of another cluster than the token's, or pretends to be one")
        shown = connection.getpeercert(binary_form=True)
        leaf = read_certificate(shown) if shown else None
        verify(leaf, authority, {Role.CONTROLLER}, utc_now())
        spoken = spoken_here(version("headrace"))
        request = JoinRequest(text, public_key_pem, spoken.release, spoken.newest, spoken.oldest)
        connection.sendall(encode_message(request))
        return greeting.authority_pem, decode_message(JoinAnswer, _receive(connection))


def _receive(connection: ssl.SSLSocket) -> bytes:
    return _exactly(connection, body_length(_exactly(connection, LENGTH.size)))


def _exactly(connection: ssl.SSLSocket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("it ended the connection")
        data += part
    return data


def _key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """The node's key, made once: a token that was spent by it is still good for it."""
    path = folder / f"{NODE}.key"
    if path.exists():
        key = serialization.load_pem_private_key(_secret(path), password=None)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
        raise JoinError(f"{path} is no key of a node; remove it, and join again")
    made = new_key()
    write_secret(path, private_pem(made))
    return made


def _secret(path: Path) -> bytes:
    try:
        return read_private(path, KEY_BYTES_MAX)
    except OSError as error:
        raise JoinError(f"{path} cannot be read: {error.strerror}") from error


def _keep(folder: Path, token: JoinToken, credentials: Credentials, name: str) -> Membership:
    authority = credentials.authority()
    verify(credentials.certificate(), authority, {token.role}, utc_now())
    write_public(folder / f"{NODE}.pem", credentials.certificate_pem)
    write_public(folder / f"{AUTHORITY}.pem", credentials.authority_pem)
    # Last, since it says that the rest is there.
    described = json.dumps({"name": name, "controllers": list(token.controllers)})
    write_public(folder / "member.json", described.encode())
    return Membership(name, token.controllers, credentials)
