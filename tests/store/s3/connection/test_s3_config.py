"""Where an S3 store is: URI, environment and files, and that no secret gets into a URI."""

import pathlib

import pytest

from headrace.store.contract.errors import InvalidUri, StoreRefused
from headrace.store.s3.connection import config
from headrace.store.s3.connection.config import redact, resolve
from headrace.store.s3.connection.credentials import credentials_of
from headrace.store.s3.store import S3Store

CONFIG = """
[default]
region = eu-central-1
[profile lab]
region = eu-west-3
endpoint_url = http://all.lab:9000
s3 =
    endpoint_url = http://s3.lab:9000
    addressing_style = path
ca_bundle = /lab/ca.pem
[profile served]
services = lab
[services lab]
s3 =
  endpoint_url = http://service.lab:9000
"""
SECRETS = """
[default]
aws_access_key_id = default-key
aws_secret_access_key = default%secret
[lab]
aws_access_key_id = lab-key
aws_secret_access_key = lab-secret
aws_session_token = lab%token
"""


@pytest.fixture
def home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which only the files of a home directory say anything."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    (tmp_path / ".aws" / "credentials").write_text(SECRETS)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return {"HOME": str(tmp_path)}


def test_the_uri_wins_over_the_environment_and_that_over_the_files(home: dict[str, str]) -> None:
    lab = home | {"AWS_PROFILE": "lab"}
    variables = lab | {"AWS_ENDPOINT_URL": "http://env:1", "AWS_REGION": "env-1", "AWS_CA_BUNDLE": "/env/ca.pem"}
    said = resolve("s3://bucket/a?endpoint=https://said:2&region=said-1&ca=/said.pem&style=virtual", variables)
    assert (said.endpoint, said.region, said.ca, said.style) == ("https://said:2", "said-1", "/said.pem", "virtual")
    variable = resolve("s3://bucket/a", variables)
    assert (variable.endpoint, variable.region, variable.ca) == ("http://env:1", "env-1", "/env/ca.pem")
    file = resolve("s3://bucket/a", lab)
    assert (file.endpoint, file.region, file.ca, file.style) == (
        "http://s3.lab:9000",
        "eu-west-3",
        "/lab/ca.pem",
        "path",
    )


def test_the_endpoint_of_s3_wins_over_that_of_all_services(home: dict[str, str]) -> None:
    both = {"AWS_ENDPOINT_URL": "http://all:1", "AWS_ENDPOINT_URL_S3": "http://s3:1"}
    assert resolve("s3://bucket", home | both).endpoint == "http://s3:1"
    assert resolve("s3://bucket?profile=served", home).endpoint == "http://service.lab:9000"


def test_with_nothing_said_it_is_aws(home: dict[str, str]) -> None:
    target = resolve("s3://bucket/a b/c/", home)
    assert (target.bucket, target.prefix, target.endpoint, target.region) == ("bucket", "a b/c/", None, "eu-central-1")
    assert target.uri == "s3://bucket/a%20b/c?region=eu-central-1"


@pytest.mark.parametrize(
    "uri",
    ["s3://bucket?endpoint=http://h:1", "s3://bucket/a/b?endpoint=https://h&profile=served&region=r-1&style=path",
     "s3://bucket/a%3Fb?anonymous=true&ca=/x%20y.pem&endpoint=http://h"],
)  # fmt: skip
def test_a_uri_resolves_to_itself(uri: str, home: dict[str, str]) -> None:
    first = resolve(uri, home)
    assert resolve(first.uri, {"HOME": "/nowhere", "AWS_REGION": first.region}) == first


@pytest.mark.parametrize(
    "uri",
    ["s3://KEY:hunter2@bucket/a", "s3://bucket/a?secret_key=hunter2", "s3://bucket/a?AWS_SECRET_ACCESS_KEY=hunter2",
     "s3://bucket?session-token=hunter2&endpoint=http://h"],
)  # fmt: skip
def test_a_secret_in_a_uri_is_refused_and_not_repeated(uri: str, home: dict[str, str]) -> None:
    with pytest.raises(InvalidUri, match=r"URIs are logged; put them into AWS_ACCESS_KEY_ID") as caught:
        resolve(uri, home)
    assert "hunter2" not in str(caught.value)


def test_redacting_keeps_what_is_known_and_nothing_else() -> None:
    uri = "s3://me:hunter2@bucket/a?endpoint=http://h:1&who=hunter2"
    assert redact(uri) == "s3://***@bucket/a?endpoint=http://h:1&***"


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("s3://b", "no name of a bucket"),
        ("s3://bucket/a#b", "write it as %23"),
        ("s3://bucket/a//b", "has the segment ''"),
        ("s3://bucket?endpoint=h:1", "not of the form http://host:port"),
        ("s3://bucket?endpoint=http://h:1/path", "not of the form http://host:port"),
        ("s3://bucket?endpoint=http://h:port", "not of the form http://host:port"),
        ("s3://bucket?style=round", "neither 'path' nor 'virtual'"),
        ("s3://bucket?region=a%20b", "no name of a region"),
        *[(f"s3://bucket?sse=aws:kms&kms_key={key}", "no id of a key") for key in ("a%0Ab", "%00", "a%20b", "%C3%A9")],
        (f"s3://bucket?sse=aws:kms&kms_key={'a' * 2049}", "no id of a key"),
        ("s3://bucket?colour=red", "known are endpoint="),
    ],
)
def test_a_uri_that_cannot_be_meant_is_refused_with_a_remedy(uri: str, remedy: str, home: dict[str, str]) -> None:
    with pytest.raises(InvalidUri, match=remedy):
        resolve(uri, home)


def test_a_profile_of_the_uri_comes_before_the_environment(home: dict[str, str]) -> None:
    home |= {"AWS_ACCESS_KEY_ID": "env-key", "AWS_SECRET_ACCESS_KEY": "env-secret"}
    provider = credentials_of(resolve("s3://bucket?endpoint=http://h", home), home)
    assert provider is not None
    assert provider.retrieve().access_key == "env-key"
    provider = credentials_of(resolve("s3://bucket?endpoint=http://h&profile=lab", home), home)
    assert provider is not None
    assert (provider.retrieve().access_key, provider.retrieve().session_token) == ("lab-key", "lab%token")


def test_without_variables_the_default_profile_is_used(home: dict[str, str]) -> None:
    provider = credentials_of(resolve("s3://bucket?endpoint=http://h", home), home)
    assert provider is not None
    assert (provider.retrieve().access_key, provider.retrieve().secret_key) == ("default-key", "default%secret")


def test_anonymous_means_no_credentials(home: dict[str, str]) -> None:
    assert credentials_of(resolve("s3://bucket?anonymous=true&endpoint=http://h", home), home) is None


def test_a_broken_profile_file_is_named_and_not_quoted(home: dict[str, str]) -> None:
    path = pathlib.Path(home["HOME"], ".aws", "config")
    path.write_text("hunter2")
    with pytest.raises(InvalidUri, match=r"\.aws/config: cannot be read") as caught:
        resolve("s3://bucket", home)
    assert "hunter2" not in str(caught.value)


def test_a_profile_file_of_any_size_is_read_to_a_limit(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[default]\nregion = eu-west-1\n"
    pathlib.Path(home["HOME"], ".aws", "config").write_text(text)
    monkeypatch.setattr(config, "PROFILES_CHARACTERS_MAX", len(text))
    assert resolve("s3://bucket", home).region == "eu-west-1"
    monkeypatch.setattr(config, "PROFILES_CHARACTERS_MAX", len(text) - 1)
    with pytest.raises(InvalidUri, match=r"\.aws/config: has more than \d+ characters"):
        resolve("s3://bucket", home)


def test_a_store_without_credentials_says_where_it_looked(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    with pytest.raises(StoreRefused, match=r"no credentials for http://127.0.0.1:1 \(looked at AWS_\* variables"):
        S3Store("s3://bucket?endpoint=http://127.0.0.1:1").get("k")


def test_a_ca_file_that_is_not_there_is_named_at_once(home: dict[str, str]) -> None:
    with pytest.raises(InvalidUri, match=r"no CA file '/nowhere/ca.pem'"):
        S3Store("s3://bucket?endpoint=https://127.0.0.1:1&ca=/nowhere/ca.pem")


@pytest.mark.parametrize("region", ["eu--", "-eu", "_eu", "e" * 64, "eu west"])
def test_a_region_that_no_request_can_be_signed_for_is_refused(region: str) -> None:
    with pytest.raises(InvalidUri, match="no name of a region"):
        resolve(f"s3://bucket/a?region={region.replace(' ', '%20')}", {})
