"""What makes two records duplicates: the scheme by which keys are made, its hash, and the normal form of a URL.

By URL, those with the same normal form (`normal_url`); a record without a URL has no key. By text, two records with
the same key of the whole text are duplicates. Where they share a band, the judge decides
(`headrace.stages.dedup.judge`), or without a judge the band. One key is of the whole text; with `bands` above 0 there
is one more a band: of `rows` MinHash values each, so that two texts whose sets of shingles have the Jaccard
similarity s share a band with probability 1 - (1 - s^rows)^bands. Prior art: Broder 1997 (MinHash), Indyk and Motwani
1998 (bands), Lee et al. 2022 ("Deduplicating training data makes language models better"), Penedo et al. 2024
(5-grams of words, 14 bands of 8 rows). A judge may be given more candidates: 20 bands of 4 rows over 3-grams find 99
% of pairs of similarity 0.68.

The rule for URLs stands in docs/guide/dedup.md. It is text alone: nothing is looked up, and a URL costs time in its
length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any
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


#: Behind any change in how keys follow from text, so that no index is loaded with keys of another making.
KEYS_VERSION = 2
#: The judge's rule: behind any change in how it decides.
RULE = 1
#: The default n-gram, bands and rows with a judge, and without.
DEFAULTS = {True: (3, 20, 4), False: (5, 14, 8)}
#: 64-bit words of the key of the whole text.
EXACT_WORDS = 2
#: The hidden column of keys: `Scheme.words` words of 64 bits a record, the lowest byte first.
KEYS = "__keys"
#: The hidden column of sketches, where a judge compares records.
SKETCH = "__sketch"


def numbered_column(name: str, number: int) -> str:
    """The column of the keys or sketches of dedup stage `number`, counted from 0 in the order of the pipeline."""
    return f"{name}_{number}" if number else name


#: Partitions that an index may have.
PARTITIONS_MAX = 256
#: MinHash values that a scheme may have.
PERMUTATIONS_MAX = 1024
_STEPS = 200
#: Why a record is a duplicate. Behind `SIMILAR` stand the judge's score and rule.
EQUAL, EQUAL_URL, SIMILAR = "equal text", "equal URL", "similar text"


@dataclass(frozen=True, slots=True)
class Scheme:
    """How keys are made. `bands` 0: of the whole text alone. `rule`: that of the judge; 0: a shared band decides.

    `url`: the rule by which the key is that of a URL; 0: it is that of the text.
    """

    ngram: int = 5
    bands: int = 14
    rows: int = 8
    rule: int = 0
    url: int = 0

    def __post_init__(self) -> None:
        if self.rule not in (0, RULE):
            raise ValueError(f"rule {self.rule} of the judge is unknown: this Headrace has {RULE}")
        if self.url not in (0, URL_RULE) or (self.url and self.bands):
            raise ValueError(f"rule {self.url} of URLs with {self.bands} bands: this Headrace has {URL_RULE} without")

    @property
    def judged(self) -> bool:
        """Whether a judge compares what shares a band."""
        return bool(self.rule and self.bands)

    @property
    def words(self) -> int:
        """64-bit words of a record's keys."""
        return EXACT_WORDS + self.bands

    def identity(self) -> str:
        """The hash of the scheme: keys with another one have nothing to do with these."""
        facts = {"keys": KEYS_VERSION, **(asdict(self) if self.bands else {"bands": 0})}
        if not self.judged:
            facts.pop("rule", None)
        facts.pop("url", None)
        facts |= {"url": self.url} if self.url else {}
        return xxhash.xxh3_64_hexdigest(json.dumps(facts, sort_keys=True).encode())

    def reason(self, *, near: bool, score: int) -> str:
        """Why a record is a duplicate; `score` is the judge's, in thousandths, and -1 without one."""
        if not near:
            return EQUAL_URL if self.url else EQUAL
        return SIMILAR if score < 0 else f"{SIMILAR}: score {score / 1000:.3f}, rule {self.rule}"

    def share_of(self, similarity: float) -> float:
        """The probability that two texts of this Jaccard similarity share a band."""
        return 1.0 - (1.0 - similarity**self.rows) ** self.bands


def scheme_of(parameters: Mapping[str, Any]) -> Scheme:
    """The scheme of a stage with these parameters. Raises ValueError for a rule that is unknown."""
    facts = ("ngram", "bands", "rows", "rule", "url")
    return Scheme(**{name: parameters[name] for name in facts if name in parameters})


@lru_cache
def best_bands(threshold: float, permutations: int) -> tuple[int, int]:
    """Bands and rows, of at most so many MinHash values, that err least about a threshold of similarity.

    The error is the area between the step at `threshold` and `Scheme.share_of`, on both sides of it alike.
    """
    steps = [(step + 0.5) / _STEPS for step in range(_STEPS)]

    def error(scheme: Scheme) -> float:
        shares = ((point, scheme.share_of(point)) for point in steps)
        return sum(share if point < threshold else 1.0 - share for point, share in shares)

    choices = [
        Scheme(bands=bands, rows=rows) for rows in range(1, permutations + 1) for bands in (permutations // rows,)
    ]
    best = min(choices, key=error)
    return best.bands, best.rows
