"""Keys, secrets and tokens that no header can hold are refused where they are taken, and are never repeated."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import shlex
import threading

import pytest

from headrace.store.contract.errors import InvalidUri, StoreRefused
from headrace.store.s3.connection import credentials
from headrace.store.s3.connection.config import resolve
from headrace.store.s3.connection.credentials import ANSWER_BYTES_MAX, credentials_of
from headrace.store.s3.connection.wire import NoAnswer, Wire

SECRET = "hunter2"
BROKEN = [f"{SECRET}\nmore", f"{SECRET}\r\nX: y", f"more\0{SECRET}", f"\x1b{SECRET}", f"“{SECRET}”"]
AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
NAMES = ("AccessKeyId", "SecretAccessKey", "Token")
URI = "s3://bucket?endpoint=http://127.0.0.1:1"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pytest.MonkeyPatch:
    """One without credentials, whose profiles are those of `aws` in a folder."""
    for name in (*AWS, "AWS_ACCESS_KEY", "AWS_SECRET_KEY", "MINIO_ACCESS_KEY", "MINIO_SECRET_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "aws"))
    return monkeypatch


def refusal(uri: str = URI) -> str:
    """How the first request of a store without patience ends."""
    with pytest.raises(StoreRefused) as caught:
        Wire(resolve(uri)).send("GET", "k")
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("broken", BROKEN[:-1])
@pytest.mark.parametrize("name", [*AWS, "MINIO_ACCESS_KEY", "MINIO_SECRET_KEY"])
def test_a_broken_variable_is_named_and_not_repeated(environment: pytest.MonkeyPatch, name: str, broken: str) -> None:
    for good in [item for item in (*AWS, "MINIO_ACCESS_KEY", "MINIO_SECRET_KEY") if item[:3] == name[:3]]:
        environment.setenv(good, "good")
    environment.setattr("os.environ", os.environ | {name: broken})  # a variable holds no zero, and a Secret may
    assert refusal().startswith(f"{URI}: {name} holds a line break, or something else that no key or token has")


def test_white_space_around_credentials_is_no_part_of_them(environment: pytest.MonkeyPatch) -> None:
    for name in AWS:
        environment.setenv(name, f" {name}\r\n")
    provider = credentials_of(resolve(URI))
    assert provider is not None
    found = provider.retrieve()
    assert (found.access_key, found.secret_key, found.session_token) == AWS


def test_only_a_secret_that_no_header_holds_may_have_other_letters(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ACCESS_KEY_ID", "good")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "geheimnis-ü")
    provider = credentials_of(resolve(URI))
    assert provider is not None
    assert provider.retrieve().secret_key == "geheimnis-ü"
    environment.setenv("AWS_SESSION_TOKEN", BROKEN[-1])
    assert "AWS_SESSION_TOKEN holds" in refusal()


@pytest.mark.parametrize("name", ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"])
@pytest.mark.usefixtures("environment")
def test_a_setting_of_a_profile_that_goes_on_is_named(tmp_path: pathlib.Path, name: str) -> None:
    said = dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), "good") | {name: f"good\n  {SECRET}"}
    (tmp_path / "aws").write_text("[default]\n" + "".join(f"{key} = {value}\n" for key, value in said.items()))
    assert f"{name} of profile 'default' in {tmp_path}/aws" in refusal()


@pytest.mark.parametrize("broken", [*BROKEN, 5, [SECRET], {SECRET: 1}, True])
@pytest.mark.parametrize("name", ["AccessKeyId", "SecretAccessKey", "SessionToken"])
@pytest.mark.usefixtures("environment")
def test_what_a_program_of_a_profile_prints_is_checked(tmp_path: pathlib.Path, name: str, broken: object) -> None:
    if name == "SecretAccessKey" and broken == BROKEN[-1]:
        return
    keys = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "s"} | {name: broken}
    (tmp_path / "keys").write_text(json.dumps(keys))
    (tmp_path / "aws").write_text(f"[default]\ncredential_process = {shlex.join(['cat', str(tmp_path / 'keys')])}\n")
    assert f"{name} of credential_process of profile 'default' holds" in refusal()


@pytest.mark.parametrize("expires", ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00", "soon", 7, [1]])
@pytest.mark.usefixtures("environment")
def test_credentials_that_expire_at_no_time_are_none(tmp_path: pathlib.Path, expires: object) -> None:
    keys = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": SECRET, "Expiration": expires}
    (tmp_path / "keys").write_text(json.dumps(keys))
    (tmp_path / "aws").write_text(f"[default]\ncredential_process = {shlex.join(['cat', str(tmp_path / 'keys')])}\n")
    assert "credential_process of profile 'default' printed no JSON with AccessKeyId" in refusal()


class Service:
    """Answers one request for credentials with this, less what is lost, and keeps the token that it was shown."""

    def __init__(self, environment: pytest.MonkeyPatch, answer: object, lost: int = 0) -> None:
        self.shown = ""
        body = json.dumps(answer).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(handler) -> None:  # noqa: N805
                self.shown = handler.headers.get("Authorization", "")
                handler.send_response_only(200)
                handler.send_header("Content-Length", str(len(body) + lost))
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        server.timeout = 30
        self.thread = threading.Thread(target=lambda: (server.handle_request(), server.server_close()), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}/keys"
        environment.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", self.url)


SERVED = {"AccessKeyId": "a", "SecretAccessKey": "s", "Token": "t", "Expiration": "2999-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        *[({name: f"{SECRET}\nx"}, "of the service for credentials holds") for name in NAMES],
        ({"AccessKeyId": 5}, "AccessKeyId of the service for credentials holds"),
        ({"Expiration": 5}, "there are no credentials"),
        ({"Expiration": "soon"}, "there are no credentials"),
    ],
)
def test_what_a_service_gives_is_checked(environment: pytest.MonkeyPatch, said: dict[str, object], words: str) -> None:
    service = Service(environment, SERVED | said)
    assert words in refusal()
    service.thread.join(30)


@pytest.mark.parametrize("answer", [[], {}, "text", None])
def test_a_service_that_gives_something_else_gives_no_credentials(
    environment: pytest.MonkeyPatch, answer: object
) -> None:
    service = Service(environment, answer)
    assert "there are no credentials" in refusal()
    service.thread.join(30)


def test_an_answer_of_a_service_that_breaks_off_may_come_later(environment: pytest.MonkeyPatch) -> None:
    service = Service(environment, SERVED, lost=9)
    with pytest.raises(NoAnswer, match="gives none now"):
        Wire(resolve(URI)).send("GET", "k")
    service.thread.join(30)


def test_the_token_of_a_container_is_shown_without_its_line_end(
    environment: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    service = Service(environment, SERVED)
    (tmp_path / "token").write_text(f"{SECRET}\n")
    environment.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    provider = credentials_of(resolve(URI))
    assert provider is not None
    assert provider.retrieve().access_key == "a"
    service.thread.join(30)
    assert service.shown == SECRET


def test_the_token_of_a_container_may_come_from_a_pipe(environment: pytest.MonkeyPatch) -> None:
    service = Service(environment, SERVED)
    reader, writer = os.pipe()
    os.write(writer, SECRET.encode())
    os.close(writer)
    environment.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", f"/dev/fd/{reader}")
    provider = credentials_of(resolve(URI))
    assert provider is not None
    assert provider.retrieve().access_key == "a"
    os.close(reader)
    service.thread.join(30)
    assert service.shown == SECRET


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_token_of_a_container_is_named_and_not_repeated(
    environment: pytest.MonkeyPatch, tmp_path: pathlib.Path, broken: str
) -> None:
    environment.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/keys")
    (tmp_path / "token").write_text(broken)
    environment.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    assert "AWS_CONTAINER_AUTHORIZATION_TOKEN, or the file of AWS_CONTAINER" in refusal()


LONG = f"has more than {ANSWER_BYTES_MAX:,} bytes, and is no key or token"


def test_an_answer_that_is_too_long_is_not_read_on(environment: pytest.MonkeyPatch) -> None:
    service = Service(environment, SERVED | {"Token": "t" * 20_000_000})
    assert f"what the service for credentials answers {LONG}" in refusal()
    service.thread.join(30)


@pytest.mark.parametrize("variable", ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"])
def test_a_file_that_is_too_long_for_a_token_is_named(
    environment: pytest.MonkeyPatch, tmp_path: pathlib.Path, variable: str
) -> None:
    environment.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/keys")
    (tmp_path / "token").write_bytes(b"t" * (ANSWER_BYTES_MAX + 1))
    environment.setenv(variable, str(tmp_path / "token"))
    assert f"the file of {variable} {LONG}" in refusal()


@pytest.mark.usefixtures("environment")
def test_a_program_of_a_profile_that_prints_without_end_is_ended(tmp_path: pathlib.Path) -> None:
    (tmp_path / "aws").write_text("[default]\ncredential_process = yes\n")
    assert f"what is printed by credential_process of profile 'default' {LONG}" in refusal()


@pytest.mark.parametrize("command", ["sleep 600", "sh -c 'exec >&-; sleep 600'"])
def test_a_program_of_a_profile_that_does_not_end_is_ended(
    environment: pytest.MonkeyPatch, tmp_path: pathlib.Path, command: str
) -> None:
    environment.setattr(credentials, "PROCESS_S_MAX", 0.5)
    (tmp_path / "aws").write_text(f"[default]\ncredential_process = {command}\n")
    assert "did not end within" in refusal()


def test_a_program_of_a_profile_may_leave_another_that_holds_its_output(
    environment: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    environment.setattr(credentials, "PROCESS_S_MAX", 20)
    os.mkfifo(tmp_path / "held")
    (tmp_path / "keys").write_text(json.dumps({"AccessKeyId": "a", "SecretAccessKey": "s"}))
    (tmp_path / "aws").write_text(f"[default]\ncredential_process = sh -c 'cd {tmp_path}; cat held & cat keys'\n")
    provider = credentials_of(resolve(URI))
    assert provider is not None
    try:
        assert provider.retrieve().access_key == "a"
    finally:
        (tmp_path / "held").write_text("")


def test_a_proxy_that_cannot_be_parsed_is_not_repeated(environment: pytest.MonkeyPatch) -> None:
    environment.delenv("http_proxy", raising=False)
    environment.delenv("no_proxy", raising=False)
    environment.delenv("NO_PROXY", raising=False)
    environment.setenv("HTTP_PROXY", f"http://us:{SECRET}/er@host:x")
    with pytest.raises(InvalidUri, match="the proxy of HTTP_PROXY or HTTPS_PROXY cannot be parsed") as caught:
        Wire(resolve("s3://bucket?endpoint=http://h.example:1&anonymous=true"))
    assert SECRET not in str(caught.value)
