"""TLS before the tests' S3 server: an authority of the test's own, and a proxy that has a certificate from it."""

from __future__ import annotations

import ipaddress
import pathlib
import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headrace.chaos.gates.s3 import S3Proxy

DAY = timedelta(days=1)


class Authority:
    """A CA whose certificate lies in `ca`, and which makes certificates for 127.0.0.1, or for another name."""

    def __init__(self, folder: pathlib.Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(f"the tests' {name}")
        certificate = self._sign(self._name, self._key, (x509.BasicConstraints(True, None), True))
        self._certificate = certificate
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def context(self, host: str = "") -> ssl.SSLContext:
        """What a server needs to be believed at 127.0.0.1, or at `host` instead."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternative: x509.GeneralName = x509.DNSName(host)
        if not host:
            alternative = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        signed = self._sign(_named("server"), key, (x509.SubjectAlternativeName([alternative]), False))
        file = self._folder / f"{id(key)}.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + signed.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: tuple[x509.ExtensionType, bool]
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - DAY).not_valid_after(now + DAY)
        builder = builder.add_extension(extension[0], critical=extension[1])
        # Python 3.13 and later accept no certificate without these.
        known = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(known, critical=False)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        signs = isinstance(extension[0], x509.BasicConstraints)
        usage = x509.KeyUsage(True, False, False, False, False, signs, signs, False, False)
        return builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())


class TlsProxy(S3Proxy):
    """A proxy that speaks TLS to whoever comes."""

    def __init__(self, upstream: str, context: ssl.SSLContext) -> None:
        super().__init__(upstream)
        # The handshake is made by the thread of the connection, so that a client without one holds nobody up.
        plain = self._server.socket
        self._server.socket = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)

    @property
    def endpoint(self) -> str:
        """What a store is told to use."""
        return super().endpoint.replace("http://", "https://")


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
