"""The cluster's certificates: one authority, and a certificate for each node that says what the node is.

A node's identity is a URI in its certificate, `headrace://<cluster>/<role>/<name>`. The authority assigns it and
takes nothing from a request but the key. A peer is accepted if its certificate was issued directly by the authority,
is in force, is no authority itself, and names a role that is expected: a valid chain alone is not enough, since every
node of the cluster has one.

Keys are ECDSA on P-256, which both aioquic and gRPC's TLS speak. Fingerprints are SHA-256 of the DER, in hexadecimal.

A node's certificate, key and authority as files of one folder: `<name>.pem`, `<name>.key`, `authority.pem`.
"""

import hashlib
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.cluster.roles import Role
from headrace.daemon import read_private

#: How long an authority and a node's certificate are in force.
AUTHORITY_LIFETIME = timedelta(days=3650)
NODE_LIFETIME = timedelta(days=365)
#: Certificates begin this long before they are made, for nodes whose clocks are behind.
CLOCK_SKEW = timedelta(minutes=5)
#: No name in a certificate is longer, in bytes of UTF-8 (the limit of a common name).
NAME_LIMIT = 64

_SCHEME = "headrace"
#: What the library raises for a certificate or key of others that is not as it should be. It reads each part when that
#: is asked for, so that a certificate which could be loaded may still turn out to be none.
_UNREADABLE = (
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
#: Certificates carry their role as a DNS name below this, for TLS libraries that can compare nothing else.
_ROLES_DOMAIN = "headrace.internal"


class CertificateError(Exception):
    """Base of the reasons why a certificate is not accepted."""


class CertificateMissingError(CertificateError):
    """The peer showed no certificate."""


class CertificateUntrustedError(CertificateError):
    """The certificate was not issued by the cluster's authority."""


class CertificateExpiredError(CertificateError):
    """The certificate is not, or not yet, in force."""


class CertificateRoleError(CertificateError):
    """The certificate is good, and its holder is not who should be there."""


class CertificateExpelledError(CertificateError):
    """The holder was expelled from the cluster, and was not let in again with this key."""


def read_certificate(data: bytes) -> x509.Certificate:
    """Read a certificate of others, as PEM or DER. Raises CertificateUntrustedError for what is none."""
    try:
        is_pem = data.lstrip().startswith(b"-----BEGIN")
        return x509.load_pem_x509_certificate(data) if is_pem else x509.load_der_x509_certificate(data)
    except _UNREADABLE as error:
        raise CertificateUntrustedError(f"{len(data)} bytes that are no certificate: {error}") from error


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the holder of a certificate is."""

    cluster: str
    role: Role
    name: str

    def uri(self) -> str:
        """Return the identity as it stands in a certificate."""
        return f"{_SCHEME}://{quote(self.cluster, safe='')}/{self.role.value}/{quote(self.name, safe='')}"

    @property
    def member(self) -> str:
        """The holder within its cluster, as role/name."""
        return f"{self.role.value}/{self.name}"

    @classmethod
    def from_uri(cls, uri: str) -> "Identity":
        """Read what `uri` gave. Raises CertificateRoleError for anything else."""
        try:
            parts = urlsplit(uri)
            _, role, name = parts.path.split("/")
            if parts.scheme != _SCHEME or not name or not parts.netloc:
                raise ValueError(uri)
            return cls(unquote(parts.netloc), Role(role), unquote(name))
        except ValueError as error:
            raise CertificateRoleError(f"{uri!r} is no identity of a Headrace node") from error


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer whose certificate was accepted."""

    identity: Identity
    #: SHA-256 of its certificate, in hexadecimal.
    fingerprint: str
    #: The same of its public key.
    key: str


@dataclass(frozen=True, slots=True)
class Credentials:
    """A certificate, its key, and the authority by which peers are judged, each as PEM."""

    certificate_pem: bytes
    key_pem: bytes
    authority_pem: bytes

    def certificate(self) -> x509.Certificate:
        """Return the parsed certificate."""
        return x509.load_pem_x509_certificate(self.certificate_pem)

    def authority(self) -> x509.Certificate:
        """Return the parsed certificate of the authority."""
        return x509.load_pem_x509_certificate(self.authority_pem)

    def key(self) -> ec.EllipticCurvePrivateKey:
        """Return the private key. Raises ValueError for one that is not on an elliptic curve."""
        key = serialization.load_pem_private_key(self.key_pem, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"a key of type {type(key).__name__}: Headrace uses ECDSA on P-256")
        return key


def create_authority(cluster: str, at: datetime) -> Credentials:
    """Make the authority of the cluster named `cluster`; `at` is the present, with a time zone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(_checked_name(cluster))
    usage = _key_usage(signs_certificates=True)
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - CLOCK_SKEW)
        .not_valid_after(at + AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return Credentials(pem, private_pem(key), pem)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a key for a node; it never leaves it."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the key as PKCS #8 PEM, not encrypted: it belongs into a file of mode 0600."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public half of the key, as a request to be issued a certificate carries it."""
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def issue(
    authority: Credentials,
    public_key_pem: bytes,
    role: Role,
    name: str,
    at: datetime,
    *,
    lifetime: timedelta = NODE_LIFETIME,
    hosts: Sequence[str] = (),
) -> bytes:
    """Return a certificate, as PEM, for who holds the key: of `role`, named `name`, in force from now for `lifetime`.

    `hosts` are DNS names for gRPC, beside `name`. Raises CertificateError for a key that is not on P-256 or a name
    that is empty or longer than NAME_LIMIT.
    """
    public_key = _public_key(public_key_pem, f'the key of "{name}"')
    issuer = authority.certificate()
    identity = Identity(_common_name(issuer), role, _checked_name(name))
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri())]
    given = (host for host in (name, *hosts) if host.isascii() and not host.endswith(_ROLES_DOMAIN))
    names += [x509.DNSName(host) for host in dict.fromkeys((role_host(role), *given))]
    certificate = (
        x509.CertificateBuilder(issuer_name=issuer.subject, subject_name=_name(name), public_key=public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - CLOCK_SKEW)
        .not_valid_after(min(at + lifetime, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key().public_key()), critical=False)
        .sign(authority.key(), hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def role_host(role: Role) -> str:
    """Return the DNS name that certificates of a role have, and no others: whatever a node is called."""
    return f"{role.value}.{_ROLES_DOMAIN}"


def create_node(
    authority: Credentials, role: Role, name: str, at: datetime, *, lifetime: timedelta = NODE_LIFETIME
) -> Credentials:
    """Make a key and have a certificate issued for it: for a node that is set up where the authority's key is."""
    key = new_key()
    certificate_pem = issue(authority, public_pem(key), role, name, at, lifetime=lifetime)
    return Credentials(certificate_pem, private_pem(key), authority.authority_pem)


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of the certificate in hexadecimal; a join token holds that of the authority."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def public_key_fingerprint(public_key_pem: bytes) -> str:
    """Return the SHA-256 of a public key in hexadecimal, by which a token is bound to it: one for each key.

    The key is written anew before, since PEM can say the same in many ways. Raises CertificateError for one that is not
    on P-256.
    """
    return _key_fingerprint(_public_key(public_key_pem, "the node's key"))


def _public_key(pem: bytes, whose: str) -> ec.EllipticCurvePublicKey:
    try:
        key = serialization.load_pem_public_key(pem)
    except _UNREADABLE as error:
        raise CertificateError(f"{whose} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError(f"{whose} is not ECDSA on P-256")
    return key


def _key_fingerprint(key: PublicKeyTypes) -> str:
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


#: Members that were expelled, as role/name, each with the fingerprints of the keys that were let in under it since.
Expelled = Mapping[str, Collection[str]]
NOBODY: Expelled = {}


def why_expelled(peer: Peer, expelled: Expelled) -> str:
    """Say that a peer was expelled, and what to do; empty if it was not."""
    identity = peer.identity
    let_in = expelled.get(identity.member)
    if let_in is None or peer.key in let_in:
        return ""
    advice = f"`headrace cluster token --name {identity.name}` and an empty --state folder let it in again"
    if identity.role is not Role.WORKER:
        advice = "`headrace cluster operator` makes a certificate under another name"
    return f"{identity.role.value} {identity.name!r} was expelled from cluster {identity.cluster}: {advice}"


def verify(
    certificate: x509.Certificate | None,
    authority: x509.Certificate,
    roles: Collection[Role],
    at: datetime,
    expelled: Expelled = NOBODY,
) -> Peer:
    """Say who the holder of `certificate` is, at the time `at`.

    Raises a subclass of CertificateError where there is no certificate, the authority did not issue it, it or the
    authority is not in force, its role is none of `roles`, or its holder is `expelled`.
    """
    if certificate is None:
        raise CertificateMissingError("the peer shows no certificate; Headrace nodes need one of their cluster")
    try:
        certificate.verify_directly_issued_by(authority)
    except _UNREADABLE as error:
        raise CertificateUntrustedError(
            f"the certificate of {_subject(certificate)!r} was not issued by the authority of this "
            f"cluster ({fingerprint(authority)[:16]}); join the node with a token of this cluster"
        ) from error
    for which in (certificate, authority):
        if not which.not_valid_before_utc <= at <= which.not_valid_after_utc:
            raise CertificateExpiredError(
                f"the certificate of {_subject(which)!r} is in force from {which.not_valid_before_utc} "
                f"to {which.not_valid_after_utc}, and it is {at}; have a new one issued, or set the clock"
            )
    identity = identity_of(certificate)
    if identity.cluster != _common_name(authority) or identity.role not in roles:
        expected = " or ".join(sorted(role.value for role in roles))
        article = "an" if expected[:1] in "aeiou" else "a"
        raise CertificateRoleError(f"{identity.uri()} is where only {article} {expected} may be")
    try:
        key = _key_fingerprint(certificate.public_key())
    except _UNREADABLE as error:
        raise CertificateUntrustedError(f"the key of {identity.uri()} cannot be read: {error}") from error
    peer = Peer(identity, fingerprint(certificate), key)
    if reason := why_expelled(peer, expelled):
        raise CertificateExpelledError(reason)
    return peer


def identity_of(certificate: x509.Certificate) -> Identity:
    """Return who a certificate says that its holder is; `verify` says whether to believe it. CertificateRoleError."""
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except _UNREADABLE as error:
        raise CertificateRoleError("the certificate names no Headrace node") from error
    if constraints.ca or len(uris) != 1:
        raise CertificateRoleError("the certificate is that of an authority, or names no single node")
    return Identity.from_uri(uris[0])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _subject(certificate: x509.Certificate) -> str:
    try:
        return certificate.subject.rfc4514_string()
    except _UNREADABLE:
        return "somebody whose name cannot be read"


def _common_name(certificate: x509.Certificate) -> str:
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _checked_name(name: str) -> str:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= NAME_LIMIT:
        raise CertificateError(f"a name of {size} bytes of UTF-8: it has 1 to {NAME_LIMIT}")
    return name


def utc_now() -> datetime:
    """The wall clock, by which certificates and tokens are judged; tests bend it (chaos/clock).

    All else goes by `time.monotonic`, and no two hosts' clocks are ever compared.
    """
    return datetime.fromtimestamp(time.time(), UTC)


AUTHORITY = "authority"
#: Bytes of a private key in PEM; one of the curve in use has 241.
KEY_BYTES_MAX = 16 << 10


def read_credentials(folder: Path, name: str) -> Credentials:
    """Read a node's three files. Raises OSError for one that cannot be read, and for a key that is not private."""
    return Credentials(
        (folder / f"{name}.pem").read_bytes(),
        read_private(folder / f"{name}.key", KEY_BYTES_MAX),
        (folder / f"{AUTHORITY}.pem").read_bytes(),
    )


def write_credentials(folder: Path, name: str, credentials: Credentials) -> None:
    """Write a node's certificate and key; the key can be read by its owner alone."""
    write_secret(folder / f"{name}.key", credentials.key_pem)
    write_public(folder / f"{name}.pem", credentials.certificate_pem)


def write_secret(path: Path, data: bytes) -> None:
    """Write a file of mode 0600, whole or not at all."""
    _write(path, data, 0o600)


def write_public(path: Path, data: bytes) -> None:
    """Write a file of mode 0644, whole or not at all."""
    _write(path, data, 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    # who may write to the folder may have made it before, and hold it open
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make durable what names stand in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
