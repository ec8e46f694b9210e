"""An endpoint behind TLS: whose word is taken for its certificate, and how it is addressed."""

from __future__ import annotations

import http.server
import os
import pathlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.store.contract.errors import InvalidUri, StoreRefused
from headrace.store.open import open_store
from tests.kits.store.s3_server import S3Server
from tests.kits.store.tls import Authority, TlsProxy

LARGE = os.urandom(3 << 20)


@pytest.fixture(autouse=True)
def without_authorities(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine trusts is none of the tests' business."""
    if not s3_server.is_ours:
        pytest.skip("another server has a certificate of its own, or none")
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server, authority: Authority) -> Iterator[TlsProxy]:
    with TlsProxy(s3_server.endpoint, authority.context()) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3_server: S3Server, proxy: TlsProxy) -> str:
    return s3_server.uri(secrets.token_hex(6), endpoint=proxy.endpoint)


def by_uri(ca: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    del monkeypatch
    return f"&ca={ca}"


def by_bundle(ca: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(ca))
    return ""


def by_certificate_file(ca: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    return ""


def by_config_file(ca: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    config = ca.parent / "config"
    config.write_text(f"[default]\nca_bundle = {ca}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    return ""


@pytest.mark.parametrize("name_it", [by_uri, by_bundle, by_certificate_file, by_config_file])
def test_objects_go_over_tls_with_the_ca_that_is_named(
    bucket: str,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    name_it: Callable[[pathlib.Path, pytest.MonkeyPatch], str],
) -> None:
    store = open_store(bucket + name_it(authority.ca, monkeypatch))
    assert store.create("a/k", [LARGE, b"tail"]) is True
    assert store.create("a/k", [b"other"]) is False
    assert store.get("a/k") == LARGE + b"tail"
    assert [info.key for info in store.list("a/")] == ["a/k"]


def test_a_ca_of_the_environment_is_per_host_outside_uris(
    bucket: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_bundle(authority.ca, monkeypatch)
    assert "ca=" not in open_store(bucket).uri
    assert f"ca={authority.ca}" in open_store(f"{bucket}&ca={authority.ca}").uri


def test_a_certificate_of_an_unknown_ca_is_refused_with_remedy(
    s3_server: S3Server, authority: Authority, tmp_path: pathlib.Path
) -> None:
    other = Authority(tmp_path, "other")
    with TlsProxy(s3_server.endpoint, authority.context()) as unknown:
        refusal = r"its certificate is not accepted: .*\?ca=, AWS_CA_BUNDLE"
        for given in ("", f"&ca={other.ca}"):
            store = open_store(s3_server.uri(endpoint=unknown.endpoint) + given)
            with pytest.raises(StoreRefused, match=refusal) as caught:
                store.create("k", [b"x"])
            assert "\n" not in str(caught.value)
            assert not unknown.seen, "nothing was sent to whom we do not know"


def test_a_certificate_for_another_name_is_refused_at_once(s3_server: S3Server, authority: Authority) -> None:
    with TlsProxy(s3_server.endpoint, authority.context("elsewhere.test")) as misnamed:
        store = open_store(f"{s3_server.uri(endpoint=misnamed.endpoint)}&ca={authority.ca}")
        with pytest.raises(StoreRefused, match=r"certificate is not valid for '127\.0\.0\.1'.*as its certificate does"):
            store.get("k")


def test_https_to_an_endpoint_without_tls_is_refused_at_once(s3_server: S3Server) -> None:
    store = open_store(s3_server.uri(endpoint=s3_server.endpoint.replace("http://", "https://")))
    with pytest.raises(StoreRefused, match="write http:// if that is so"):
        store.get("k")


def test_a_file_that_holds_no_certificates_is_named(bucket: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate\n")
    with pytest.raises(InvalidUri, match=r"ca\.pem' holds no CA certificates in PEM"):
        open_store(f"{bucket}&ca={tmp_path}/ca.pem")


class Recorder(http.server.BaseHTTPRequestHandler):
    """Writes down how it is asked, and has nothing."""

    asked: list[tuple[str, str, str]]

    def do_HEAD(self) -> None:
        self.asked.append((self.headers["Host"], self.path, self.headers["Authorization"]))
        self.send_response(404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Nothing."""


@pytest.fixture
def recorder() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """The port of an endpoint, and how it was asked."""
    asked: list[tuple[str, str, str]] = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Recorder,), {"asked": asked})) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield str(server.server_address[1]), asked
        server.shutdown()


@pytest.mark.parametrize(
    ("style", "host", "path"),
    [("path", "s3.test", "/lab/a/k"), ("virtual", "lab.s3.test", "/a/k"), ("", "s3.test", "/lab/a/k")],
)
def test_style_and_region_are_those_of_the_uri(
    recorder: tuple[str, list[tuple[str, str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    style: str,
    host: str,
    path: str,
) -> None:
    port, asked = recorder
    resolve = socket.getaddrinfo

    def known(name: Any, *rest: Any, **more: Any) -> Any:
        return resolve("127.0.0.1" if str(name).endswith("s3.test") else name, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", known)
    query = f"endpoint=http://s3.test:{port}&region=eu-west-3" + (f"&style={style}" if style else "")
    with pytest.raises(StoreRefused, match="no bucket"):
        open_store(f"s3://lab/a?{query}").head("k")
    assert asked[0][:2] == (f"{host}:{port}", path)
    assert "/eu-west-3/s3/aws4_request" in asked[0][2]
