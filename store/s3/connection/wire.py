"""One request to an S3 endpoint, signed and sent once: the only place that knows the inside of the minio client.

The client's public `put_object` turns `If-None-Match` into user metadata (and overwrites), joins bodies, and retries
in its pool where nobody sees it. So requests are made here from the client's own parts: its URLs, its signature and
its credentials, over a pool of ours that never retries and never redirects.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlunsplit

import certifi
import urllib3
from minio import Minio, time as minio_time
from minio.credentials.credentials import Credentials
from minio.credentials.providers import Provider
from minio.signer import sign_v4_s3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationParseError,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from headrace.store import WHOLE_BYTES_MAX, InvalidUri, StoreRefused
from headrace.store.s3.connection.body import Body
from headrace.store.s3.connection.config import S3Target, proxy_of
from headrace.store.s3.connection.credentials import CredentialsFailed, credentials_of, names_service
from headrace.store.s3.connection.sockets import TimedSocket, allow, body_s, pools_of

#: Until a connection stands; a socket's sends of 256 KiB have the same limit.
CONNECT_TIMEOUT_S = 10.0
#: Between two pieces of an answer.
READ_TIMEOUT_S = 30.0
#: Connections kept open for reuse, a store.
CONNECTIONS_KEPT = 24
#: An answer that is no object (a page of a listing has about 1 MiB) and is longer is cut off.
TEXT_BYTES_MAX = 16 << 20
_RANGE = re.compile(r"bytes=([0-9]{1,19})-([0-9]{1,19})")
_DIGITS_MAX = 19

_WHERE_CA_IS_NAMED = "?ca=, AWS_CA_BUNDLE, ca_bundle of ~/.aws/config, or SSL_CERT_FILE"
#: OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_NAME_MISMATCH = (62, 64)
_EMPTY = Body(())


@dataclass(frozen=True, slots=True)
class Answer:
    """What the endpoint said, whatever the status."""

    status: int
    headers: Mapping[str, str]
    #: Empty where the body was read into the caller's view, or is still to be read.
    body: bytes
    #: The body of a 200 or 206 that was asked for as a stream.
    rest: Rest | None = None


class Rest:
    """The body of an answer, read as it comes; `close` it.

    From a socket without TLS it is read by calls that the kernel ends when the view is full. The client's own way asks
    whether there are bytes, and takes those, some ten times a MiB; each time Python's threads take turns.
    """

    __slots__ = ("_is_begun", "_left", "_plain", "_response", "_where")

    def __init__(self, response: Any, where: str, read_timeout_s: float) -> None:
        self._response = response
        self._where = where
        announced = announced_bytes(response.headers)
        self._left = -1 if announced is None else announced
        self._is_begun = False
        self._plain = _plain_socket(response)
        if self._plain is not None:
            seconds, rest = divmod(read_timeout_s, 1)
            limit = struct.pack("@ll", int(seconds), int(rest * 1e6))
            self._plain.settimeout(None)  # the pool sets its own again before the next request
            self._plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def read_into(self, view: memoryview) -> None:
        """Fill the view with what comes next. Raises `NoAnswer`."""
        allow(self._response, body_s(view.nbytes))
        with _as_no_answer(self._where):
            # the client reads the last byte itself, and so knows that the answer is over
            straight = min(view.nbytes, self._left - 1) if self._plain is not None else 0
            if straight > 0:
                self._read_straight(view[:straight])
            if straight < view.nbytes:
                _fill(self._response, view[max(straight, 0) :])
        self._left -= view.nbytes

    def _read_straight(self, view: memoryview) -> None:
        client = self._response._fp
        position = 0
        if not self._is_begun:
            # what came with the headers lies in the client's buffer
            self._is_begun = True
            position = min(len(client.fp.peek()), view.nbytes)
            self._is_begun = position < view.nbytes
            _fill(self._response, view[:position])
        while position < view.nbytes:
            try:
                count = self._plain.recv_into(view[position:], 0, socket.MSG_WAITALL)
            except BlockingIOError as error:
                raise TimeoutError from error
            if not count:
                raise _ended(position, view.nbytes)
            position += count
            client.length -= count

    def close(self) -> None:
        """Give the connection back, or close it where something of the body was not read."""
        if self._left == 0:
            self._response.release_conn()
        else:
            self._response.close()


def _plain_socket(response: Any) -> Any:
    """The socket of an answer whose body comes over it as it is; None where it is encrypted, or cut into chunks."""
    client = response._fp
    if client.chunked or not client.length or client.will_close:
        return None
    found = getattr(getattr(client.fp, "raw", None), "_sock", None)
    return found if type(found) is TimedSocket else None


class NoAnswer(Exception):  # noqa: N818 - named after what is so
    """No answer came, or only a part of one; the request may or may not have been carried out."""

    def __init__(self, problem: str, is_unreachable: bool, remedy: str = "") -> None:
        #: Whether there was not even a connection.
        self.is_unreachable = is_unreachable
        #: What to do where asking an endpoint again that has never answered is no use; "" where it may be.
        self.remedy = remedy
        super().__init__(problem)


class Wire:
    """A signed connection to one bucket. May be used by any thread, and by a child after a fork."""

    def __init__(self, target: S3Target, read_timeout_s: float = READ_TIMEOUT_S) -> None:
        self._target = target
        self._read_timeout_s = read_timeout_s
        self._ca = _authorities(target)
        self._provider: Provider | None = None
        #: Whether there were credentials once.
        self._has_signed = False
        self._connect()

    def forget_credentials(self) -> None:
        """Ask the chain of credentials anew at the next request: those in use have expired."""
        self._provider = credentials_of(self._target)

    def send(
        self,
        method: str,
        key: str | None = None,
        body: Body = _EMPTY,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        into: memoryview | None = None,
        is_stream: bool = False,
    ) -> Answer:
        """Send one request, once, about the full key (None: the bucket), and return whatever is answered.

        Where `into` is given, the body of a 200 or 206 is read into it and must fill it; a stream's is left to be read.
        Raises `NoAnswer`, and `StoreRefused` where there are no credentials to sign with.
        """
        if os.getpid() != self._pid:
            # A child must not speak on its parent's sockets.
            self._connect()
        # Only this function touches the client's private parts; the signature covers every header that is given.
        url = self._client._base_url.build(
            method=method,
            region=self._target.region,
            bucket_name=self._target.bucket,
            object_name=key,
            query_params=dict(query or {}),
        )
        signed = self._signed(method, url, body, dict(headers or {}) | self._target.on_each_request)
        with _as_no_answer(self._target.where):
            response = self._pool.urlopen(
                method,
                urlunsplit(url),
                body=body.blocks() if body.size else None,
                headers=signed,
                preload_content=False,
                redirect=False,
                decode_content=False,
            )
            try:
                announced_bytes(response.headers)
            except NoAnswer:
                response.close()
                raise
            if is_stream and response.status in (200, 206):
                rest = Rest(response, self._target.where, self._read_timeout_s)
                return Answer(_status(response), response.headers, b"", rest)
            return _read(response, method, into, _bytes_max(key, headers or {}, _status(response)))

    def _connect(self) -> None:
        self._pid = os.getpid()
        options: dict[str, Any] = {
            "retries": False,
            "maxsize": CONNECTIONS_KEPT,
            "timeout": urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=self._read_timeout_s),
        }
        proxy = proxy_of(self._target)
        try:
            made: Any = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
        except LocationParseError:
            # Its message repeats the address, which may hold a password.
            raise InvalidUri(
                f"{self._target.uri}: the proxy of HTTP_PROXY or HTTPS_PROXY cannot be parsed; write http://host:port"
            ) from None
        self._pool = pools_of(made, self._ca)
        self._provider = credentials_of(self._target)
        self._client: Any = Minio(
            self._target.host, secure=self._target.is_secure, region=self._target.region, http_client=self._pool
        )
        if self._target.style:
            self._client._base_url.virtual_style_flag = self._target.style == "virtual"

    def _signed(self, method: str, url: Any, body: Body, headers: dict[str, str]) -> dict[str, str]:
        headers["Host"] = url.netloc
        if body.size or method in ("PUT", "POST"):
            headers["Content-Length"] = str(body.size)
        if self._provider is None:
            return headers
        credentials = self._credentials(self._provider)
        date = minio_time.utcnow()
        # Over TLS the body need not be hashed for the signature: headers carry a checksum that is signed.
        sha256 = "UNSIGNED-PAYLOAD" if self._target.is_secure and body.size else body.sha256()
        headers["x-amz-date"] = minio_time.to_amz_date(date)
        headers["x-amz-content-sha256"] = sha256
        if credentials.session_token:
            headers["X-Amz-Security-Token"] = credentials.session_token
        sign_v4_s3(
            method=method,
            url=url,
            region=self._target.region,
            headers=cast("Any", headers),  # gets the signature
            credentials=credentials,
            content_sha256=sha256,
            date=date,
        )
        return headers

    def _credentials(self, provider: Provider) -> Credentials:
        """Those to sign with. Raises StoreRefused where there are none, NoAnswer where there were some before."""
        try:
            found = provider.retrieve()
        except (ValueError, OSError, HTTPError) as error:
            if self._has_signed or (isinstance(error, HTTPError) and names_service(os.environ)):
                why = "whoever gives the credentials gives none now"
                raise NoAnswer(f"{why} ({type(error).__name__})", is_unreachable=False) from error
            if isinstance(error, CredentialsFailed):
                raise StoreRefused(f"{self._target.uri}: {error}") from error
            raise StoreRefused(
                f"{self._target.uri}: there are no credentials for {self._target.where} (looked at AWS_* variables, "
                "~/.aws and the metadata service); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile, "
                "or say ?anonymous=true of a public bucket"
            ) from error
        self._has_signed = True
        return found


def _authorities(target: S3Target) -> str:
    """The file of CA certificates: the one that was named, or else those of certifi. Raises `InvalidUri`."""
    named = target.ca or os.environ.get("SSL_CERT_FILE")
    if not named or not target.is_secure:
        return certifi.where()
    if not os.path.isfile(named):
        raise InvalidUri(f"{target.uri}: there is no CA file {named!r}; correct {_WHERE_CA_IS_NAMED}")
    try:
        ssl.create_default_context(cafile=named)
    except (ssl.SSLError, OSError) as error:
        raise InvalidUri(
            f"{target.uri}: {named!r} holds no CA certificates in PEM ({error.strerror or error}); "
            f"correct {_WHERE_CA_IS_NAMED}"
        ) from None
    return named


def _tls_trouble(error: Exception) -> tuple[str, str]:
    """What is wrong with a TLS connection, and what to do about it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        first: object = cause.args[0] if cause.args else None
        cause = first if isinstance(first, BaseException) else cause.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        if cause.verify_code in _NAME_MISMATCH:
            return cause.verify_message, "name the endpoint as its certificate does, or have one made for this name"
        return (
            f"its certificate is not accepted: {cause.verify_message}",
            f"name the file of the CA that made it in {_WHERE_CA_IS_NAMED}",
        )
    reason = ((isinstance(cause, ssl.SSLError) and cause.reason) or str(error)).replace("_", " ").lower()
    plain = "wrong version number" in reason or "record layer failure" in reason
    return reason, "it seems to speak no TLS: write http:// if that is so" if plain else ""


def _bytes_max(key: str | None, headers: Mapping[str, str], status: int) -> int:
    """Bytes that the body of an answer may have: of a range as many as were asked for."""
    if key is None:
        return TEXT_BYTES_MAX
    asked = _RANGE.fullmatch(headers.get("Range", ""))
    if asked is None or status != 206:
        return WHOLE_BYTES_MAX
    return int(asked[2]) - int(asked[1]) + 1


def announced_bytes(headers: Mapping[str, str]) -> int | None:
    """How many bytes an answer says that it has; None where it does not say. Raises NoAnswer for what is no number."""
    said = headers.get("Content-Length")
    if said is None:
        return None
    if said.isascii() and said.isdigit() and len(said) <= _DIGITS_MAX:
        return int(said)
    raise NoAnswer(f"it says that it has {said[:_DIGITS_MAX]!r} bytes, which is no number", is_unreachable=False)


def _bounded(response: Any, bytes_max: int) -> bytes:
    """A body of at most so many bytes. Raises NoAnswer for more, before they are read where they are announced."""
    announced = announced_bytes(response.headers)
    if announced is not None:
        if announced > bytes_max:
            raise NoAnswer(f"it sends {announced:,} bytes where {bytes_max:,} may come", is_unreachable=False)
        return bytes(response.read())
    body = bytes(response.read(bytes_max + 1))
    if len(body) > bytes_max:
        raise NoAnswer(f"it sends more than the {bytes_max:,} bytes that may come", is_unreachable=False)
    return body


def _read(response: Any, method: str, into: memoryview | None, bytes_max: int) -> Answer:
    """Read the whole answer, so that its connection can be used again; on a failure the connection is closed."""
    try:
        announced = announced_bytes(response.headers)
        size = min(bytes_max, TEXT_BYTES_MAX if announced is None else announced)
        allow(response, body_s(size if into is None else into.nbytes))
        if into is not None and response.status in (200, 206):
            _fill(response, into)
            body = b""
        elif response.status in (200, 206) and method == "GET":
            body = _bounded(response, bytes_max)
        else:
            body = response.read(TEXT_BYTES_MAX)
    except BaseException:
        response.close()
        raise
    response.release_conn()
    return Answer(_status(response), response.headers, body)


def _status(response: Any) -> int:
    """The status; 206 where it is 200 above a part of the object, as `rclone serve s3` answers."""
    return 206 if response.status == 200 and "Content-Range" in response.headers else int(response.status)


def _fill(response: Any, into: memoryview) -> None:
    """Read from the socket straight into the view: urllib3's own `read` would copy, and fault in a block each time."""
    position = 0
    while position < into.nbytes:
        count = response._fp.readinto(into[position:])
        if not count:
            raise _ended(position, into.nbytes)
        position += count


def _ended(position: int, size: int) -> NoAnswer:
    return NoAnswer(f"the answer ended after {position} of {size} bytes", is_unreachable=False)


@contextlib.contextmanager
def _as_no_answer(where: str) -> Iterator[None]:
    """Turn the pool's and the system's exceptions into one sentence."""
    try:
        yield
    except NameResolutionError as error:
        raise NoAnswer(f"the host name of {where} is not known", is_unreachable=True) from error
    except NewConnectionError as error:
        reason = error.__cause__ or error.__context__
        text = (isinstance(reason, OSError) and reason.strerror) or "no connection"
        raise NoAnswer(f"no connection to {where} ({text})", is_unreachable=True) from error
    except ConnectTimeoutError as error:
        raise NoAnswer(f"no connection to {where} within {CONNECT_TIMEOUT_S:.0f} s", is_unreachable=True) from error
    except (SSLError, ssl.SSLError) as error:
        why, remedy = _tls_trouble(error)
        raise NoAnswer(f"no TLS connection to {where} ({why})", is_unreachable=True, remedy=remedy) from error
    except LocationParseError as error:
        raise InvalidUri(f"endpoint {where} cannot be parsed; write http://host:port") from error
    except (ReadTimeoutError, TimeoutError) as error:
        raise NoAnswer("no answer in time", is_unreachable=False) from error
    except (HTTPError, OSError) as error:
        raise NoAnswer("the connection broke before the answer was complete", is_unreachable=False) from error
