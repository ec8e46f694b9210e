"""What stands before a spool: who may push, how much a client may send before it is believed, and how long it may take.

A client's head (its request line and headers) has a deadline and a limit of bytes, and so has its body.
"""

from __future__ import annotations

import hmac
import ssl
from pathlib import Path

from headrace.daemon import read_private
from headrace.pipeline import SecretBrokenError, whole_secret

#: Bytes of a request line and its headers. A little more may be read, as much as one read takes.
HEAD_BYTES_MAX = 16 << 10
#: Seconds from the end of one answer to the end of the next head; for a body; and for a TLS handshake.
HEAD_S_MAX = 60.0
BODY_S_MAX = 120.0
HANDSHAKE_S_MAX = 10.0
#: Bytes of the file of tokens; characters of a token at least and at most.
TOKENS_BYTES_MAX = 64 << 10
TOKEN_CHARACTERS_MIN, TOKEN_CHARACTERS_MAX = 16, 512
_SCHEME = "Bearer "


class GuardError(Exception):
    """What should guard the spool cannot: says which file, what is wrong and what to do."""


class Tokens:
    """The tokens of a file, any of which lets a client in. An empty one lets in all."""

    def __init__(self, tokens: tuple[str, ...] = ()) -> None:
        self._tokens = [token.encode() for token in tokens]

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """One token a line, in a file that this user alone may read. Raises GuardError."""
        try:
            data = read_private(path, TOKENS_BYTES_MAX)
        except OSError as error:
            raise GuardError(f"{path}: {error.strerror}; name a file with one token a line") from error
        try:
            tokens = tuple(
                filter(None, (whole_secret(line, str(path)) for line in data.decode(errors="replace").split("\n")))
            )
        except SecretBrokenError as error:
            raise GuardError(str(error)) from None
        if not tokens or not all(TOKEN_CHARACTERS_MIN <= len(token) <= TOKEN_CHARACTERS_MAX for token in tokens):
            bounds = f"{TOKEN_CHARACTERS_MIN} to {TOKEN_CHARACTERS_MAX}"
            raise GuardError(f"{path} must hold one token a line, each of {bounds} characters")
        return cls(tokens)

    def admit(self, authorization: str) -> bool:
        """Whether a client that shows this header may push."""
        if not self._tokens:
            return True
        shown = authorization.removeprefix(_SCHEME).encode(errors="replace")
        fits = [hmac.compare_digest(shown, token) for token in self._tokens]
        return authorization.startswith(_SCHEME) and any(fits)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.3 with these files in PEM. Raises GuardError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        raise GuardError(f"{certificate} and {key} are no certificate and its key: {error}") from error
    return context
