"""Whom requests are signed for: the chain of credentials that S3 tools ask, and the profiles that they share."""

from __future__ import annotations

import datetime as dt
import json
import os
import select
import shlex
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import certifi
from minio.credentials.credentials import Credentials
from minio.credentials.providers import ChainedProvider, IamAwsProvider, Provider
from urllib3 import PoolManager, Timeout

from headrace.pipeline import SecretBrokenError, whole_secret
from headrace.store.s3.connection.config import ProfileFiles, S3Target
from headrace.store.s3.connection.sockets import pools_of

#: A metadata service that answers at all answers at once; none answers outside of a cloud.
METADATA_TIMEOUT_S = 2.0
#: A service that the environment points to is there, and may be far away.
SERVICE_TIMEOUT_S = 10.0
#: A program that a profile names to get its keys, which may ask a service for them.
PROCESS_S_MAX = 60.0
#: How often it is looked whether it has ended.
_LOOK_S = 0.05
#: Of an answer, of the file of a token, and of what a program prints: keys and tokens are a few thousand.
ANSWER_BYTES_MAX = 256 << 10
#: Any of these in the environment points to a service that gives credentials.
_HINTS = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
#: Settings of profiles whose keys come from elsewhere, in ways that are not known here.
_ELSEWHERE = ("sso_session", "sso_start_url", "role_arn")
#: The variables of a key, its secret and its token, with older names of the same.
_OF_AWS = (("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY"), ("AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY"), ("AWS_SESSION_TOKEN",))
_OF_MINIO = (("MINIO_ACCESS_KEY",), ("MINIO_SECRET_KEY",), ())
_OF_PROFILES = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_OF_PROCESSES = ("AccessKeyId", "SecretAccessKey", "SessionToken")
#: Where a header that is shown to a service comes from.
_SHOWN = {"Authorization": "AWS_CONTAINER_AUTHORIZATION_TOKEN, or the file of AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE,"}
#: What reading an answer that is not as it should be may raise, beside ValueError.
_MISREAD = (KeyError, TypeError, AttributeError, OverflowError, RecursionError, ET.ParseError)

#: What is said to be a secret, and where.
_Said = tuple[object, str]


class CredentialsFailed(OSError):  # noqa: N818 - named after what is so
    """It is said where the credentials are, and they cannot be had from there; the message has a remedy."""


def credentials_of(target: S3Target, environment: Mapping[str, str] | None = None) -> Provider | None:
    """Return the chain that S3 tools ask for credentials; None for anonymous requests.

    A profile that the URI names comes first, then the environment, then the default profile's files, then MinIO's own
    variables, and last the cloud's metadata service, where the endpoint is AWS or the environment points to one.
    """
    if target.anonymous:
        return None
    environment = os.environ if environment is None else environment
    files: Provider = _ProfileProvider(environment, target.profile)
    variables = _Variables(environment, _OF_AWS)
    chain = [files, variables] if target.profile else [variables, files]
    chain.append(_Variables(environment, _OF_MINIO))
    has_machine = target.endpoint is None and environment.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true"
    has_service = names_service(environment)
    if has_machine or has_service:
        limit_s = SERVICE_TIMEOUT_S if has_service else METADATA_TIMEOUT_S
        pools = pools_of(PoolManager(retries=False, timeout=Timeout(limit_s)), certifi.where())
        client: Any = _Client(pools)
        chain.append(_Service(http_client=client, region=target.region))
    return ChainedProvider(chain)


def names_service(environment: Mapping[str, str]) -> bool:
    """Whether the environment points to a service that gives credentials: one that does not answer may do so later."""
    return any(environment.get(hint) for hint in _HINTS)


def _taken(key: _Said, secret: _Said, token: _Said, expires: dt.datetime | None = None) -> Credentials:
    """Credentials of what is said. Raises CredentialsFailed for what can be none, ValueError where nothing is said."""
    try:
        found = whole_secret(*key), whole_secret(*secret, ascii_only=False), whole_secret(*token) or None
    except SecretBrokenError as error:
        raise CredentialsFailed(str(error)) from None
    return Credentials(*found, expires)


class _Variables(Provider):
    """Reads the environment: a key, its secret and its token, each of the first of its names that is set."""

    def __init__(self, environment: Mapping[str, str], names: Sequence[Sequence[str]]) -> None:
        self._environment = environment
        self._names = names

    def retrieve(self) -> Credentials:
        """The variables' credentials. Raises ValueError where there are none, CredentialsFailed for broken ones."""
        names = (next(filter(self._environment.get, given), "") for given in self._names)
        key, secret, token = ((self._environment.get(name), name) for name in names)
        return _taken(key, secret, token)


@dataclass(frozen=True, slots=True)
class _Answer:
    """As much of an answer of urllib3 as the providers look at."""

    status: int
    data: bytes


class _Client:
    """The providers' client, which reads no answer without end."""

    def __init__(self, pools: Any) -> None:
        self._pools = pools

    def urlopen(self, method: str, url: str, **given: Any) -> _Answer:
        """See urllib3, which raises for fewer bytes than were promised. Raises CredentialsFailed for too many."""
        response = self._pools.urlopen(method, url, preload_content=False, decode_content=False, **given)
        try:
            data = bytes(response.read(ANSWER_BYTES_MAX + 1))
            if len(data) <= ANSWER_BYTES_MAX:
                response.read(1)  # only at the end does it tell whether all has come
        finally:
            response.close()
        if len(data) > ANSWER_BYTES_MAX:
            raise CredentialsFailed(_too_long("what the service for credentials answers"))
        return _Answer(response.status, data)


def _too_long(what: str) -> str:
    return f"{what} has more than {ANSWER_BYTES_MAX:,} bytes, and is no key or token; correct where it is looked for"


def _require_short(variable: str, path: str | None) -> None:
    """Raise CredentialsFailed for a file that is too long to hold a token; not for one that cannot be read twice."""
    if not path or not os.path.isfile(path):
        return
    found = b""
    with suppress(OSError), open(path, "rb") as file:
        found = file.read(ANSWER_BYTES_MAX + 1)
    if len(found) > ANSWER_BYTES_MAX:
        raise CredentialsFailed(_too_long(f"the file of {variable}"))


class _Service(IamAwsProvider):
    """Asks the service of a cloud that gives credentials to what runs there."""

    def fetch(self, url: str, headers: Any = None) -> Credentials:
        """See `IamAwsProvider.fetch`. Of the headers each is a secret."""
        try:
            shown: Any = {name: whole_secret(value, _SHOWN.get(name, url)) for name, value in (headers or {}).items()}
        except SecretBrokenError as error:
            raise CredentialsFailed(str(error)) from None
        return super().fetch(url, shown)

    def retrieve(self) -> Credentials:
        """See `Provider.retrieve`. Raises ValueError where it gives none, CredentialsFailed for broken ones."""
        _require_short("AWS_WEB_IDENTITY_TOKEN_FILE", self._identity_file)
        _require_short("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", self._token_file)
        try:
            found = super().retrieve()
        except _MISREAD as error:
            raise ValueError(f"what the service answers is misread ({type(error).__name__})") from None
        key, secret, token = (f"{name} of the service for credentials" for name in _OF_PROCESSES)
        return _taken(
            (found.access_key, key), (found.secret_key, secret), (found.session_token, token), found.expiration
        )


class _ProfileProvider(Provider):
    """Reads the profile's files when asked: at the first request, and again when the keys have expired."""

    def __init__(self, environment: Mapping[str, str], profile: str | None) -> None:
        self._environment = environment
        self._profile = profile

    def retrieve(self) -> Credentials:
        """The profile's credentials. Raises ValueError where there are none, CredentialsFailed where it says whence."""
        files = ProfileFiles(self._environment, self._profile)
        sections = files.sections()
        for section in sections:
            if all(section.get(name) for name in _OF_PROFILES[:2]):
                where = f"of profile {files.profile!r} in {files.secrets_path} or {files.config_path}"
                key, secret, token = ((section.get(name), f"{name} {where}") for name in _OF_PROFILES)
                return _taken(key, secret, token)
        for section in sections:
            if command := section.get("credential_process"):
                return _of_process(files.profile, command, self._environment)
        elsewhere = next((name for name in _ELSEWHERE if any(section.get(name) for section in sections)), None)
        if elsewhere and (self._profile or self._environment.get("AWS_PROFILE")):
            raise CredentialsFailed(
                f"profile {files.profile!r} has {elsewhere} and no keys, and that is not followed here; say "
                f"`credential_process = aws configure export-credentials --profile {files.profile} --format process` "
                "in another profile and name that, or export its keys into the environment"
            )
        raise ValueError(f"profile {files.profile!r} has no keys in {files.secrets_path}")


def _of_process(profile: str, command: str, environment: Mapping[str, str]) -> Credentials:
    """What the program of a profile prints, as AWS defines it. What it said is not repeated: it may be a secret."""
    why = f"credential_process of profile {profile!r}"
    try:
        printed, code = _printed(shlex.split(command), environment)
    except subprocess.TimeoutExpired:
        raise CredentialsFailed(f"{why} did not end within {PROCESS_S_MAX:.0f} s; run it by hand to see why") from None
    except (OSError, ValueError) as error:
        raise CredentialsFailed(f"{why} cannot be started ({type(error).__name__}); correct it") from None
    if len(printed) > ANSWER_BYTES_MAX:
        raise CredentialsFailed(_too_long(f"what is printed by {why}"))
    if code:
        raise CredentialsFailed(f"{why} ended with exit code {code}; run it by hand to see why")
    try:
        found = json.loads(printed)
        expiration = found.get("Expiration")
        expires = dt.datetime.fromisoformat(expiration) if expiration else None
        key, secret, token = ((found.get(name), f"{name} of {why}") for name in _OF_PROCESSES)
        return _taken(key, secret, token, expires)
    except (ValueError, *_MISREAD):
        raise CredentialsFailed(
            f"{why} printed no JSON with AccessKeyId and SecretAccessKey; run it by hand to see what it says"
        ) from None


def _printed(words: Sequence[str], environment: Mapping[str, str]) -> tuple[bytes, int]:
    """What a program prints, and its exit code. It is ended where it has printed more than ANSWER_BYTES_MAX.

    Raises TimeoutExpired, and OSError or ValueError where it cannot be started.
    """
    until, quiet = time.monotonic() + PROCESS_S_MAX, subprocess.DEVNULL
    with subprocess.Popen(  # noqa: S603 - the user's own file names it, as for every S3 tool
        words, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, env=dict(environment)
    ) as process:
        try:
            assert process.stdout is not None
            found, output, ready = b"", process.stdout.fileno(), select.poll()
            ready.register(output, select.POLLIN)
            while (left_s := until - time.monotonic()) > 0:
                code = process.poll()  # first: what it printed is in the pipe by then, which others may hold open
                if ready.poll(min(left_s, _LOOK_S) * 1000 if code is None else 0):
                    piece = os.read(output, ANSWER_BYTES_MAX + 1 - len(found))
                    if not piece:
                        return found, process.wait(left_s)
                    found += piece
                    if len(found) > ANSWER_BYTES_MAX:
                        return found, 0
                elif code is not None:
                    return found, code
            raise subprocess.TimeoutExpired(list(words), PROCESS_S_MAX)
        finally:
            process.kill()
