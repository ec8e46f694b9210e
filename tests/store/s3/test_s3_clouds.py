"""What AWS and MinIO do otherwise than the server of the tests: their answers, settings and credentials."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import shlex
import socket
import sys
import threading
from collections.abc import Iterator, Mapping

import pytest
from minio.credentials.credentials import Credentials
from minio.credentials.providers import IamAwsProvider, Provider

from headrace.chaos.gates.s3 import S3Fault, S3Proxy
from headrace.store.contract.errors import InvalidUri, StoreRefused, StoreUnavailable
from headrace.store.s3.connection.body import Body
from headrace.store.s3.connection.config import proxy_of, resolve
from headrace.store.s3.connection.credentials import credentials_of
from headrace.store.s3.connection.wire import Answer
from headrace.store.s3.retry import AnswerKind, Pace, outcome_of
from headrace.store.s3.store import S3Store
from headrace.store.s3.upload import UPLOADS_MAX, Sizes, new_writer, put_in_parts
from tests.kits.store.s3_server import S3Server

MIB = 1 << 20
KEYS = json.dumps(
    {"AccessKeyId": "served", "SecretAccessKey": "s", "Token": "t", "Expiration": "2999-01-01T00:00:00Z"}
).encode()
ERROR = b"<Error><Code>%s</Code><Message>no</Message></Error>"


@pytest.fixture
def store(s3_server: S3Server, proxy: S3Proxy) -> S3Store:
    """A store behind the proxy that has been reached once, where parts are trusted and no pause takes time."""
    pace = Pace(sleep=lambda _s: None)
    sizes = Sizes(multipart_bytes_min=6 * MIB, part_bytes=5 * MIB)
    store = S3Store(s3_server.uri(endpoint=proxy.endpoint), pace=pace, sizes=sizes)
    assert store.head("nothing") is None
    store._retrier.health.completes_once = True
    proxy.seen.clear()
    return store


# -- answers --


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(200, {}, b"<?xml version='1.0'?>" + b" " * 100_000 + ERROR % b"InternalError"), AnswerKind.AGAIN),
        (Answer(200, {}, b"\n  " + ERROR % b"SlowDown"), AnswerKind.AGAIN),
        (Answer(200, {}, b"<?xml version='1.0'?>  <CompleteMultipartUploadResult/>"), AnswerKind.DONE),
        (Answer(206, {}, ERROR % b"NoSuchKey"), AnswerKind.DONE),
        (Answer(200, {}, b"an object about " + ERROR % b"NoSuchKey"), AnswerKind.DONE),
        (Answer(200, {}, b"<Errors>are no error</Errors>"), AnswerKind.DONE),
        (Answer(400, {}, ERROR % b"XMinioAdminBucketQuotaExceeded"), AnswerKind.FULL),
        (Answer(507, {}, ERROR % b"XMinioStorageFull"), AnswerKind.FULL),
        (Answer(404, {"x-minio-error-code": "NoSuchBucket"}, b""), AnswerKind.REFUSED),
        (Answer(404, {"x-minio-error-code": "NoSuchKey"}, b""), AnswerKind.MISSING),
        (Answer(400, {}, b""), AnswerKind.EXPIRED),
        (Answer(400, {}, ERROR % b"InvalidArgument"), AnswerKind.REFUSED),
        (Answer(409, {}, ERROR % b"ConditionalRequestConflict"), AnswerKind.AGAIN),
        (Answer(412, {}, ERROR % b"PreconditionFailed"), AnswerKind.EXISTS),
        (Answer(503, {}, ERROR % b"SlowDownWrite"), AnswerKind.AGAIN),
    ],
)
def test_an_answer_means_what_its_server_means_by_it(answer: Answer, outcome: AnswerKind) -> None:
    assert outcome_of(answer) is outcome


def test_an_expired_token_that_head_cannot_name_is_renewed_once(store: S3Store, proxy: S3Proxy) -> None:
    store.create("k", [b"x"])
    proxy.plan(S3Fault.EXPIRED, "HEAD")
    assert store.head("k") is not None
    proxy.plan(S3Fault.EXPIRED, "HEAD", times=10)
    with pytest.raises(StoreRefused, match="the session token has expired, or the region"):
        store.head("k")


def test_a_completion_that_met_another_write_is_made_by_a_new_upload(store: S3Store, proxy: S3Proxy) -> None:
    body = bytes(6 * MIB)
    proxy.plan(S3Fault.CONFLICT, "POST", "uploadId")
    assert store.create("k", [body]) is True
    assert (proxy.count("POST", "uploads="), proxy.count("PUT", "partNumber")) == (2, 4)
    assert proxy.count("DELETE", "uploadId") == 1, "the first upload was aborted"
    assert store.get("k") == body


def test_a_completion_that_always_meets_another_write_is_given_up(store: S3Store, proxy: S3Proxy) -> None:
    proxy.plan(S3Fault.CONFLICT, "POST", "uploadId", times=100)
    with pytest.raises(StoreUnavailable, match="409 ConditionalRequestConflict; try again"):
        store.create("k", [bytes(6 * MIB)])
    assert proxy.count("POST", "uploads=") == proxy.count("DELETE", "uploadId") == UPLOADS_MAX
    assert store.head("k") is None


def test_an_upload_in_parts_that_comes_too_late_frees_its_parts(store: S3Store, proxy: S3Proxy) -> None:
    body = bytes(range(256)) * (6 * MIB // 256)
    path = store._path("k")
    assert put_in_parts(store._retrier, path, Body([body]), new_writer(), True, 5 * MIB) is True
    assert proxy.count("DELETE", "uploadId") == 0
    assert put_in_parts(store._retrier, path, Body([bytes(6 * MIB)]), new_writer(), True, 5 * MIB) is False
    assert proxy.count("DELETE", "uploadId") == 1
    assert store.get("k") == body


# -- settings --


class _Recorder(http.server.BaseHTTPRequestHandler):
    """An endpoint that takes everything and remembers the headers."""

    protocol_version = "HTTP/1.1"
    came: list[tuple[str, dict[str, str]]]

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.came.append((self.command, {name.lower(): value for name, value in self.headers.items()}))
        answer = KEYS if self.path == "/keys" else b"x" if self.command == "GET" else b""
        self.send_response_only(404 if self.command == "HEAD" and not body and "/k" not in self.path else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_HEAD = _handle  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    came: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    handler = type("Handler", (_Recorder,), {"came": came})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", came
        server.shutdown()
        thread.join(30)


def test_who_pays_and_how_it_is_encrypted_are_said_and_signed(
    recorder: tuple[str, list[tuple[str, dict[str, str]]]],
) -> None:
    endpoint, came = recorder
    said = f"s3://bucket/p?endpoint={endpoint}&requester_pays=true&sse=aws:kms&kms_key=arn:aws:kms:eu:1:key/2"
    store = S3Store(said)
    assert store.uri == S3Store(store.uri).uri, "another process opens the same"
    store.replace("k", [b"x"])
    store.get("k")
    (put, written), (get, read) = came
    assert (put, get) == ("PUT", "GET")
    sse, key = "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id"
    assert (written[sse], written[key]) == ("aws:kms", "arn:aws:kms:eu:1:key/2")
    assert sse not in read
    assert written["x-amz-request-payer"] == read["x-amz-request-payer"] == "requester"
    signed = written["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {sse, key, "x-amz-request-payer"} <= set(signed)


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that names no proxy yet."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_an_endpoint_is_reached_by_the_proxy_that_the_environment_names(
    s3_server: S3Server, proxy: S3Proxy, no_proxy: pytest.MonkeyPatch
) -> None:
    no_proxy.setenv("HTTP_PROXY", proxy.endpoint)
    store = S3Store(s3_server.uri(endpoint="http://s3.nowhere.invalid:9000") + "&style=path")
    assert store.create("k", [b"x" * 300_000]) is True
    assert store.get("k") == b"x" * 300_000
    assert len(b"".join(map(bytes, store.stream("k", 0, 300_000, 65_536)))) == 300_000
    assert [info.key for info in store.list("")] == ["k"]
    assert proxy.count("PUT", "http://s3.nowhere.invalid:9000/") == 1


@pytest.mark.parametrize(
    ("endpoint", "variables", "proxy"),
    [
        ("https://h:1", {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        ("https://h:1", {"https_proxy": "p:3128"}, "http://p:3128"),
        ("http://h:1", {"HTTPS_PROXY": "http://p:3128"}, ""),
        ("https://s3.lab:1", {"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "localhost,.lab"}, ""),
        ("https://h:1", {"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "*"}, ""),
        ("http://127.0.0.1:9000", {"HTTP_PROXY": "http://p:3128"}, ""),
        ("http://localhost:9000", {"HTTP_PROXY": "http://p:3128"}, ""),
    ],
)
def test_a_proxy_is_for_its_scheme_but_not_this_host(
    no_proxy: pytest.MonkeyPatch, endpoint: str, variables: dict[str, str], proxy: str
) -> None:
    for name, value in variables.items():
        no_proxy.setenv(name, value)
    assert proxy_of(resolve(f"s3://bucket?endpoint={endpoint}")) == proxy


@pytest.mark.parametrize(
    ("query", "problem"), [("sse=rot13", "is none of AES256, aws:kms"), ("kms_key=k", "goes with sse=aws:kms")]
)
def test_an_encryption_that_cannot_be_meant_is_refused(query: str, problem: str) -> None:
    with pytest.raises(InvalidUri, match=problem):
        resolve(f"s3://bucket?endpoint=http://h&{query}", {"HOME": "/nowhere"})


# -- credentials --


def _home(folder: pathlib.Path, config: str) -> dict[str, str]:
    (folder / ".aws").mkdir(exist_ok=True)
    (folder / ".aws" / "config").write_text(config)
    return {"HOME": str(folder), "AWS_PROFILE": "lab"}


def _process(folder: pathlib.Path, says: str) -> str:
    """A program that prints something, and writes a line to `calls` each time."""
    script = folder / "keys.py"
    script.write_text(f"open({str(folder / 'calls')!r}, 'a').write('x')\n{says}\n")
    return shlex.join([sys.executable, str(script)])


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials in this process's own environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def _retrieve(home: Mapping[str, str], times: int = 1) -> Credentials:
    provider = credentials_of(resolve("s3://bucket?endpoint=http://h", home), home)
    assert provider is not None
    found = [provider.retrieve() for _ in range(times)]
    return found[-1]


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize(("expires", "calls"), [("2999-01-01T00:00:00Z", 1), ("2001-01-01T00:00:00+00:00", 3)])
def test_a_program_of_the_profile_gives_keys_until_they_expire(
    tmp_path: pathlib.Path, expires: str, calls: int
) -> None:
    keys = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": expires}
    command = _process(tmp_path, f"print({json.dumps(json.dumps(keys))})")
    home = _home(tmp_path, f"[profile lab]\ncredential_process = {command}\n")
    found = _retrieve(home, times=3)
    assert (found.access_key, found.secret_key, found.session_token) == ("a", "s", "t")
    assert (tmp_path / "calls").read_text() == "x" * calls


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ("raise SystemExit(3)", "ended with exit code 3; run it by hand"),
        ("print('hunter2')", "printed no JSON with AccessKeyId"),
        ("print('[]')", "printed no JSON with AccessKeyId"),
    ],
)
def test_a_program_that_gives_no_keys_is_named_and_not_quoted(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, says: str, problem: str
) -> None:
    home = _home(tmp_path, f"[profile lab]\ncredential_process = {_process(tmp_path, says)}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/.aws/config")
    monkeypatch.setenv("AWS_PROFILE", home["AWS_PROFILE"])
    with pytest.raises(StoreRefused, match=rf"credential_process of profile 'lab' {problem}") as caught:
        S3Store("s3://bucket?endpoint=http://127.0.0.1:1").get("k")
    assert "hunter2" not in str(caught.value)


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("setting", ["sso_session = me", "role_arn = arn:aws:iam::1:role/r"])
def test_a_profile_whose_keys_are_elsewhere_says_how_to_have_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    _home(tmp_path, f"[profile lab]\n{setting}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/.aws/config")
    with pytest.raises(StoreRefused, match="aws configure export-credentials --profile lab --format process"):
        S3Store("s3://bucket?endpoint=http://127.0.0.1:1&profile=lab").get("k")


class _Faltering(Provider):
    """Gives credentials, then fails for some times, then gives them again."""

    def __init__(self, good: int, bad: int) -> None:
        self.left = [True] * good + [False] * bad

    def retrieve(self) -> Credentials:
        if self.left and not self.left.pop(0):
            raise ValueError("the metadata service is restarting")
        return Credentials(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])


def test_a_service_that_does_not_renew_credentials_at_once_is_asked_again(s3_server: S3Server) -> None:
    store = S3Store(s3_server.uri(), pace=Pace(sleep=lambda _s: None))
    wire = store._retrier.wire
    wire._provider = _Faltering(good=1, bad=3)
    assert store.create("k", [b"x"]) is True
    assert store.get("k") == b"x"
    assert wire._provider.left == []
    other = S3Store(s3_server.uri())
    other._retrier.wire._provider = _Faltering(good=0, bad=1)
    with pytest.raises(StoreRefused, match=r"there are no credentials .* or say \?anonymous=true of a public bucket"):
        other.get("k")


@pytest.mark.usefixtures("nobody")
def test_an_environments_service_that_does_not_answer_is_asked_again(
    recorder: tuple[str, list[tuple[str, dict[str, str]]]], tmp_path: pathlib.Path, no_proxy: pytest.MonkeyPatch
) -> None:
    endpoint, came = recorder
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        no_proxy.delenv(name)
    no_proxy.setenv("HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        no_proxy.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{closed.getsockname()[1]}/keys")

    def come_up(_wait_s: float) -> None:
        store._retrier.wire._provider._providers[-1]._full_uri = f"{endpoint}/keys"  # type: ignore[union-attr]

    store = S3Store(f"s3://bucket?endpoint={endpoint}", pace=Pace(sleep=come_up))
    assert store.get("k") == b"x"
    assert [method for method, _ in came] == ["GET", "GET"], "the keys, and the object"
    assert "Credential=served/" in came[1][1]["authorization"]


@pytest.mark.parametrize(
    ("uri", "variables", "asked"),
    [
        ("s3://bucket", {}, True),
        ("s3://bucket", {"AWS_EC2_METADATA_DISABLED": "true"}, False),
        ("s3://bucket?endpoint=http://h", {}, False),
        ("s3://bucket?endpoint=http://h", {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/keys"}, True),
    ],
)
def test_the_metadata_service_is_asked_on_aws_or_when_named(
    tmp_path: pathlib.Path, uri: str, variables: dict[str, str], asked: bool
) -> None:
    home = {"HOME": str(tmp_path)} | variables
    chain = credentials_of(resolve(uri, home), home)
    assert any(isinstance(provider, IamAwsProvider) for provider in chain._providers) is asked  # type: ignore[union-attr]
