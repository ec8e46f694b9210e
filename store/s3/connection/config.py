"""Where an S3 store is and how to reach it: from its URI, the environment, and the files that S3 tools share.

What a URI says wins over `AWS_*` variables, and those over `~/.aws/config`. A URI is written into ledgers and logs,
so it may name a profile but never carry a secret; one that does is refused without being repeated.
"""

from __future__ import annotations

import configparser
import ipaddress
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from minio.helpers import check_bucket_name

from headrace.pipeline import HIDDEN, mask
from headrace.store import InvalidKey, InvalidUri, validate_key

REGION_DEFAULT = "us-east-1"

_AWS_HOST = "s3.amazonaws.com"
#: The parameters of a URI, with what each says.
_PARAMETERS = {
    "endpoint": "http://host:port",
    "region": "us-east-1",
    "style": "path or virtual",
    "ca": "/path/of/ca.pem",
    "profile": "a section of ~/.aws/credentials",
    "anonymous": "true",
    "requester_pays": "true",
    "sse": "AES256 or aws:kms",
    "kms_key": "the id of a key of KMS",
}
#: Ways in which an endpoint may be asked to encrypt what it stores.
_SSE = ("AES256", "aws:kms", "aws:kms:dsse")
#: Of letters and digits at both ends, as those who sign requests ask for.
_REGION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
#: What a header holds, with room for the name of a key in full (`arn:aws:kms:...`).
_KMS_KEY = re.compile(r"[!-~]{1,2048}")
_SECRET = re.compile(r"secret|password|token|access.?key|credential|^key$", re.IGNORECASE)
#: Keys of a URI's own query value are kept readable; only what would end the value is quoted.
_QUERY_SAFE = ":/."


@dataclass(frozen=True, slots=True)
class S3Target:
    """One bucket and prefix behind one endpoint, with all that a connection needs but the credentials."""

    bucket: str
    #: "" or "a/b/", ready to be put before a key.
    prefix: str
    #: scheme://host[:port], or None for AWS.
    endpoint: str | None
    region: str
    #: "path", "virtual", or "" for what suits the endpoint.
    style: str
    #: A file of CA certificates; None for those of the system.
    ca: str | None
    #: Whether the URI itself names the file: one from the environment is each host's own.
    is_ca_said: bool
    #: The profile that the URI names; that of the environment is not part of the URI.
    profile: str | None
    anonymous: bool
    #: Whether we agree to pay for what is read of another's bucket.
    requester_pays: bool = False
    #: How the endpoint is asked to encrypt: "" (as the bucket says), "AES256" or "aws:kms"; and by which key.
    sse: str = ""
    kms_key: str = ""

    @property
    def on_each_request(self) -> dict[str, str]:
        """Headers of every request."""
        return {"x-amz-request-payer": "requester"} if self.requester_pays else {}

    @property
    def encryption(self) -> dict[str, str]:
        """Headers of a request that begins an object."""
        said = {"x-amz-server-side-encryption": self.sse, "x-amz-server-side-encryption-aws-kms-key-id": self.kms_key}
        return {name: value for name, value in said.items() if value}

    @property
    def uri(self) -> str:
        """The URI by which any process opens the same store."""
        said = {
            "anonymous": "true" if self.anonymous else None,
            "ca": self.ca if self.is_ca_said else None,
            "endpoint": self.endpoint,
            "kms_key": self.kms_key or None,
            "profile": self.profile,
            "region": self.region if self.region != REGION_DEFAULT or self.endpoint is None else None,
            "requester_pays": "true" if self.requester_pays else None,
            "sse": self.sse or None,
            "style": self.style or None,
        }
        query = "&".join(
            f"{name}={urllib.parse.quote(value, safe=_QUERY_SAFE)}" for name, value in said.items() if value
        )
        path = urllib.parse.quote(self.prefix.rstrip("/"))
        return f"s3://{self.bucket}{'/' + path if path else ''}{'?' + query if query else ''}"

    @property
    def where(self) -> str:
        """The endpoint in words, for messages."""
        return self.endpoint or f"https://{_AWS_HOST} ({self.region})"

    @property
    def host(self) -> str:
        """`host[:port]` as the client wants it."""
        return _AWS_HOST if self.endpoint is None else urllib.parse.urlsplit(self.endpoint).netloc

    @property
    def is_secure(self) -> bool:
        """Whether the endpoint is spoken to over TLS."""
        return self.endpoint is None or self.endpoint.startswith("https://")


def proxy_of(target: S3Target) -> str:
    """The proxy by which the environment wants this endpoint to be reached; "" for none, as for this host itself."""
    scheme = "https" if target.is_secure else "http"
    host = urllib.parse.urlsplit(f"//{target.host}").hostname or ""
    said = urllib.request.getproxies_environment().get(scheme, "")
    if not said or host == "localhost" or _is_loopback(host) or urllib.request.proxy_bypass(target.host):
        return ""
    return said if "://" in said else f"http://{said}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def redact(uri: str) -> str:
    """Return the URI without what may be a secret in it: user information, and all but the known parameters."""
    head, question, query = uri.partition("?")
    kept = [part if part.partition("=")[0] in _PARAMETERS else HIDDEN for part in query.split("&")]
    return mask(head + question + "&".join(kept))


def resolve(uri: str, environment: Mapping[str, str] | None = None) -> S3Target:
    """Resolve an `s3://bucket/prefix?endpoint=...` URI. Raises `InvalidUri`."""
    environment = os.environ if environment is None else environment
    try:
        uri.encode()
        parts = urllib.parse.urlsplit(uri)
    except ValueError as error:
        raise InvalidUri(f"store URI {redact(uri)!r}: {error}; write s3://bucket/prefix") from None
    if "@" in parts.netloc:
        raise InvalidUri(f"store URI {redact(uri)!r} carries credentials, and URIs are logged; {_WHERE_SECRETS_GO}")
    if "#" in uri:
        raise InvalidUri(f"store URI {redact(uri)!r} has a '#', which starts a fragment; write it as %23")
    parameters = _parameters(uri, parts.query)
    files = ProfileFiles(environment, parameters.get("profile"))
    endpoint = (
        parameters.get("endpoint")
        or environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
        or files.s3_setting("endpoint_url")
    )
    region = (
        parameters.get("region")
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION")
        or files.setting("region")
        or REGION_DEFAULT
    )
    style = parameters.get("style") or files.s3_setting("addressing_style") or ""
    return S3Target(
        bucket=_bucket(uri, parts.netloc),
        prefix=_prefix(uri, urllib.parse.unquote(parts.path, errors="surrogateescape")),
        endpoint=_endpoint(uri, endpoint),
        region=_region(uri, region),
        style=_style(uri, style),
        ca=parameters.get("ca") or environment.get("AWS_CA_BUNDLE") or files.setting("ca_bundle"),
        is_ca_said="ca" in parameters,
        profile=parameters.get("profile"),
        anonymous=parameters.get("anonymous") == "true",
        requester_pays=parameters.get("requester_pays") == "true",
        sse=_sse(uri, parameters),
        kms_key=parameters.get("kms_key", ""),
    )


_WHERE_SECRETS_GO = (
    "put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or into a profile of ~/.aws/credentials "
    "and name it with ?profile=NAME"
)


def _parameters(uri: str, query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True):
        if _SECRET.search(name):
            raise InvalidUri(f"store URI {redact(uri)!r} carries credentials, and URIs are logged; {_WHERE_SECRETS_GO}")
        if name not in _PARAMETERS:
            known = ", ".join(f"{known}={example}" for known, example in _PARAMETERS.items())
            raise InvalidUri(f"store URI {redact(uri)!r}: unknown parameter {name!r}; known are {known}")
        found[name] = value
    return found


def _bucket(uri: str, bucket: str) -> str:
    try:
        check_bucket_name(bucket)
    except ValueError as error:
        raise InvalidUri(
            f"store URI {redact(uri)!r}: {bucket!r} is no name of a bucket ({error}); write s3://bucket/prefix"
        ) from None
    return bucket


def _prefix(uri: str, path: str) -> str:
    path = path.strip("/")
    if not path:
        return ""
    try:
        validate_key(path)
    except InvalidKey as error:
        raise InvalidUri(f"store URI {redact(uri)!r}: {error}") from None
    return path + "/"


def _endpoint(uri: str, endpoint: str | None) -> str | None:
    if not endpoint:
        return None
    try:
        parts = urllib.parse.urlsplit(endpoint)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.path.strip("/") or parts.query or parts.username is not None:
        raise InvalidUri(
            f"store URI {redact(uri)!r}: endpoint {redact(endpoint)!r} is not of the form http://host:port; "
            "set it in the URI (?endpoint=), in AWS_ENDPOINT_URL or in ~/.aws/config"
        )
    return f"{parts.scheme}://{parts.netloc}"


def _region(uri: str, region: str) -> str:
    if not _REGION.fullmatch(region):
        raise InvalidUri(f"store URI {redact(uri)!r}: {region!r} is no name of a region; such are us-east-1")
    return region


def _style(uri: str, style: str) -> str:
    if style not in ("", "auto", "path", "virtual"):
        raise InvalidUri(f"store URI {redact(uri)!r}: style {style!r} is neither 'path' nor 'virtual'")
    return "" if style == "auto" else style


def _sse(uri: str, parameters: Mapping[str, str]) -> str:
    sse = parameters.get("sse", "")
    if sse and sse not in _SSE:
        raise InvalidUri(f"store URI {redact(uri)!r}: sse {sse!r} is none of {', '.join(_SSE)}")
    kms_key = parameters.get("kms_key")
    if kms_key and not sse.startswith("aws:kms"):
        raise InvalidUri(f"store URI {redact(uri)!r}: a kms_key goes with sse=aws:kms")
    if kms_key and not _KMS_KEY.fullmatch(kms_key):
        raise InvalidUri(
            f"store URI {redact(uri)!r}: the kms_key is no id of a key: up to 2,048 letters, digits and signs of ASCII"
        )
    return sse


class ProfileFiles:
    """One profile of `~/.aws/config` and `~/.aws/credentials`, read once."""

    def __init__(self, environment: Mapping[str, str], profile: str | None) -> None:
        home = environment.get("HOME") or os.path.expanduser("~")
        self.profile = profile or environment.get("AWS_PROFILE") or "default"
        self.config_path = environment.get("AWS_CONFIG_FILE") or os.path.join(home, ".aws", "config")
        self.secrets_path = environment.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.join(home, ".aws", "credentials")
        self._config = _read(self.config_path)
        name = self.profile if self.profile == "default" else f"profile {self.profile}"
        self._section = dict(self._config[name]) if self._config.has_section(name) else {}

    def setting(self, name: str) -> str | None:
        """A setting of the profile in the config file."""
        return self._section.get(name) or None

    def s3_setting(self, name: str) -> str | None:
        """A setting for S3 alone (in a `services` section or indented below `s3 =`), else one for all services."""
        services = f"services {self._section.get('services', '')}"
        nested = self._config[services].get("s3", "") if self._config.has_section(services) else ""
        for lines in (nested, self._section.get("s3", "")):
            for line in lines.splitlines():
                key, _, value = line.partition("=")
                if key.strip() == name and value.strip():
                    return value.strip()
        return self.setting(name)

    def sections(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The profile's settings in the credentials file, and those in the config file."""
        secrets = _read(self.secrets_path)
        return dict(secrets[self.profile]) if secrets.has_section(self.profile) else {}, self._section


#: Characters of a profile file; the largest known have some hundred thousand.
PROFILES_CHARACTERS_MAX = 4 << 20


def _read(path: str) -> configparser.RawConfigParser:
    # Raw: a "%" in a session token is no interpolation. No default section, since AWS has none.
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        with suppress(OSError), open(path, encoding="utf-8") as file:
            text = file.read(PROFILES_CHARACTERS_MAX + 1)
            if len(text) > PROFILES_CHARACTERS_MAX:
                raise InvalidUri(f"{path}: has more than {PROFILES_CHARACTERS_MAX} characters: no AWS profile file")
            parser.read_string(text)
    except (UnicodeDecodeError, configparser.Error) as error:
        # The parser's message repeats the line, which may be a secret.
        raise InvalidUri(f"{path}: cannot be read as an AWS profile file ({type(error).__name__}); mend it") from None
    return parser
