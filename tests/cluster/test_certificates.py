"""The authority and what it says about a node."""

from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, strategies as st

from headrace.cluster.certificates import (
    CertificateError,
    CertificateExpiredError,
    CertificateMissingError,
    CertificateRoleError,
    CertificateUntrustedError,
    Identity,
    Role,
    fingerprint,
    issue,
    new_key,
    public_pem,
    read_certificate,
    verify,
)
from tests.kits.transport.quic import Cluster

WORKERS = {Role.WORKER}


def test_a_node_is_who_its_certificate_says(cluster: Cluster) -> None:
    node = cluster.node("west-3")
    peer = verify(node.certificate(), cluster.authority.certificate(), WORKERS, cluster.now)
    assert peer.identity == Identity("test", Role.WORKER, "west-3")
    assert peer.fingerprint == fingerprint(node.certificate())


def test_each_way_of_not_being_a_worker_here_has_its_name(cluster: Cluster) -> None:
    authority = cluster.authority.certificate()
    foreign = Cluster("test").node("w").certificate()
    expired = cluster.node("w", made=timedelta(days=-2)).certificate()
    future = cluster.node("w", made=timedelta(days=2)).certificate()
    operator = cluster.node("w", Role.OPERATOR).certificate()
    for certificate, error in (
        (None, CertificateMissingError),
        (foreign, CertificateUntrustedError),
        (authority, CertificateRoleError),
        (expired, CertificateExpiredError),
        (future, CertificateExpiredError),
        (operator, CertificateRoleError),
    ):
        with pytest.raises(error):
            verify(certificate, authority, WORKERS, cluster.now)


def test_an_authority_that_is_no_longer_in_force_vouches_for_nobody(cluster: Cluster) -> None:
    node = cluster.node("w", lifetime=timedelta(days=10_000))
    with pytest.raises(CertificateExpiredError):
        verify(node.certificate(), cluster.authority.certificate(), WORKERS, cluster.now + timedelta(days=3651))


def test_a_certificate_does_not_outlive_its_authority(cluster: Cluster) -> None:
    node = cluster.node("w", lifetime=timedelta(days=10_000)).certificate()
    assert node.not_valid_after_utc == cluster.authority.certificate().not_valid_after_utc


def test_only_the_key_is_taken_from_a_request(cluster: Cluster) -> None:
    key = new_key()
    issued = x509.load_pem_x509_certificate(
        issue(cluster.authority, public_pem(key), Role.WORKER, "assigned", cluster.now)
    )
    assert issued.public_key() == key.public_key()
    assert verify(issued, cluster.authority.certificate(), WORKERS, cluster.now).identity.name == "assigned"


def test_a_key_of_another_kind_is_refused(cluster: Cluster) -> None:
    with pytest.raises(CertificateError, match="P-256"):
        issue(
            cluster.authority,
            public_pem(ec.generate_private_key(ec.SECP384R1())),
            Role.WORKER,
            "w",
            cluster.now,
        )


@pytest.mark.parametrize("name", ["", "x" * 65, "é" * 33])
def test_a_name_has_between_1_and_64_bytes(cluster: Cluster, name: str) -> None:
    with pytest.raises(CertificateError, match="bytes of UTF-8"):
        cluster.node(name)


@given(st.text(min_size=1, max_size=64), st.sampled_from(Role), st.text(min_size=1, max_size=64))
def test_an_identity_survives_its_uri(cluster_name: str, role: Role, name: str) -> None:
    identity = Identity(cluster_name, role, name)
    assert Identity.from_uri(identity.uri()) == identity


@given(st.text())
def test_any_text_is_an_identity_or_is_refused_by_name(text: str) -> None:
    try:
        identity = Identity.from_uri(text)
    except CertificateRoleError:
        return
    assert identity.name


@pytest.mark.parametrize(
    "uri", ["headrace://c/worker/", "headrace:///worker/w", "headrace://c/king/w", "http://c/worker/w"]
)
def test_what_is_nearly_an_identity_is_none(uri: str) -> None:
    with pytest.raises(CertificateRoleError):
        Identity.from_uri(uri)


def test_an_authority_that_is_not_yet_in_force_vouches_for_nobody(cluster: Cluster) -> None:
    node = cluster.node("w", made=timedelta(days=-2), lifetime=timedelta(days=10))
    with pytest.raises(CertificateExpiredError, match="is in force from"):
        verify(node.certificate(), cluster.authority.certificate(), WORKERS, cluster.now - timedelta(days=1))


@pytest.mark.parametrize(
    "uris",
    [
        ["headrace://another/worker/w"],
        ["headrace://test/worker/w", "headrace://test/worker/v"],
        [],
    ],
    ids=["another cluster's", "two", "none"],
)
def test_a_certificate_names_one_node_of_this_cluster(cluster: Cluster, uris: list[str]) -> None:
    authority = cluster.authority.certificate()
    key = new_key()
    names = x509.SubjectAlternativeName([*map(x509.UniformResourceIdentifier, uris), x509.DNSName("w")])
    certificate = (
        x509.CertificateBuilder(issuer_name=authority.subject, subject_name=authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(cluster.now - timedelta(hours=1))
        .not_valid_after(cluster.now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .sign(cluster.authority.key(), hashes.SHA256())
    )
    with pytest.raises(CertificateRoleError):
        verify(certificate, authority, WORKERS, cluster.now)


def altered(certificate: x509.Certificate, what: bytes, by: bytes) -> bytes:
    der = certificate.public_bytes(serialization.Encoding.DER)
    assert what in der
    return der.replace(what, by, 1)


def test_a_certificate_that_is_none_when_read_is_refused(cluster: Cluster) -> None:
    node, authority = cluster.node("w").certificate(), cluster.authority.certificate()
    # The library reads the version at once, and the subject when it is asked for.
    with pytest.raises(CertificateUntrustedError):
        read_certificate(altered(node, b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x7d"))
    with pytest.raises(CertificateUntrustedError):
        verify(read_certificate(altered(node, b"\x0c\x01w", b"\x0c\x01\xff")), authority, WORKERS, cluster.now)


@pytest.mark.parametrize("pem", [b"", b"no key", b"-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n"])
def test_a_key_that_cannot_be_read_is_refused(cluster: Cluster, pem: bytes) -> None:
    with pytest.raises(CertificateError, match="cannot be read"):
        issue(cluster.authority, pem, Role.WORKER, "w", cluster.now)
