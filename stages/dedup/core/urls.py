"""The normal form of a URL: two records whose URLs have one form are duplicates where a pipeline decides by URL.

The rule stands in docs/guide/dedup.md. It is text alone: nothing is looked up, and a URL costs time in its length.
"""

from __future__ import annotations

import re
from urllib.parse import quote

import xxhash

#: The rule of `normal_url`: behind any change in it.
URL_RULE = 1
#: Parameters of a query that say who sent a reader, in lower case.
TRACKING = frozenset(
    (
        *("fbclid", "gclid", "gclsrc", "dclid", "gbraid", "wbraid", "msclkid", "yclid", "ysclid", "ttclid", "twclid"),
        *("igsh", "igshid", "li_fat_id", "mc_cid", "mc_eid", "_ga", "_gl", "_hsenc", "_hsmi", "mkt_tok", "s_cid"),
        *("oly_anon_id", "oly_enc_id", "vero_id", "wickedid", "rb_clickid", "srsltid", "ref_src", "spm"),
    )
)
TRACKING_PREFIX = "utm_"
#: Schemes of the web, which are one, and the ports that they leave out; "" is a URL that begins with its host.
_PORTS = {"http": ("80",), "https": ("443",), "": ("80", "443")}
_SCHEME = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?//")
_AUTHORITY = re.compile(r"[^/?]*")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SPACE = re.compile(r"\s")
_EDGES = "".join(map(chr, range(0x21)))
_BREAKS: dict[int, None] = dict.fromkeys((0x09, 0x0A, 0x0D))
_ASCII = "".join(map(chr, range(0x21, 0x7F)))


def normal_url(url: str) -> str:
    """The normal form of a URL; "" where there is no host."""
    text = url.partition("#")[0].translate(_BREAKS).strip(_EDGES)
    found = _SCHEME.match(text)
    scheme = (found[1] or "").lower() if found else ""
    rest = text[found.end() :] if found else text
    authority = _AUTHORITY.match(rest)
    assert authority is not None
    host = _host(authority[0], _PORTS.get(scheme, ()))
    # Words such as "unknown" stand where a URL is missing: without a scheme a host has a point, or is an address.
    if not host or _SPACE.search(host) or not (scheme or "." in host or "[" in host):
        return ""
    path, _, query = _percent(rest[authority.end() :]).partition("?")
    parts = [part for part in query.split("&") if part and not _is_tracking(part)]
    asked = f"?{'&'.join(sorted(parts))}" if parts else ""
    return f"{'' if scheme in _PORTS else f'{scheme}://'}{host}{path.rstrip('/')}{asked}"


def url_key(url: str) -> tuple[int, int]:
    """The key of a URL, two words of 64 bits of which the second is odd; (0, 0) where there is none."""
    form = normal_url(url)
    if not form:
        return 0, 0
    value = xxhash.xxh3_128_intdigest(form.encode("utf-8", "surrogatepass"))
    return value >> 64, (value & 0xFFFFFFFFFFFFFFFF) | 1


def _host(authority: str, ports: tuple[str, ...]) -> str:
    """User and host, this in lower case and without a point at its end, and the port unless it is one of these."""
    user, at, place = authority.rpartition("@")
    host, colon, port = place.lower().rpartition(":")
    if not colon or (port and not (port.isdecimal() and port.isascii())):
        host, port = place.lower(), ""
    host = host.rstrip(".")
    if not host:
        return ""
    return f"{user}{at}{host}" + (f":{port}" if port and port not in ports else "")


def _percent(text: str) -> str:
    """A path and query with each character encoded in one way."""
    if not text.isascii() or " " in text:
        text = quote(text, safe=_ASCII, errors="surrogatepass")
    return _ENCODED.sub(_one, text) if "%" in text else text


def _one(found: re.Match[str]) -> str:
    code = int(found[0][1:], 16)
    return chr(code) if code in _UNRESERVED else found[0].upper()


def _is_tracking(part: str) -> bool:
    name = part.partition("=")[0].lower()
    return name.startswith(TRACKING_PREFIX) or name in TRACKING
