"""The user's lists of domains, of beginnings of URLs and of words that a URL must not hold."""

from __future__ import annotations

import pathlib
import re
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson

from headrace.pipeline import PipelineError
from headrace.stages.runtime import WITHOUT, Batch, Transform
from headrace.stages.text import Rule, drop, tag

#: Why a URL is filtered.
REASONS = ("domain on a list", "URL on a list", "word in the URL")
#: The name of the counter of records that no list could judge.
WITHOUT_URL = f"{WITHOUT}a URL"
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*:)?//")


class UrlFilter(Transform):
    """Filters records by the URL in their metadata; one without a URL is kept, and counted.

    A line of a list is a domain, which stands for its subdomains too, or a domain with the beginning of a path, or with
    a path and its query; a slash at the end of a path adds nothing. Blank lines, those that begin with `#` and those
    without a domain are left out of account. Words are found in either case.
    """

    merges = True
    judges = True

    def __init__(self, name: str, lists: list[str], words: list[str], url_key: str, tag: bool = False) -> None:
        self.name = name
        self.tag = tag
        self.url_key = url_key
        entries = [entry for path in lists for entry in _read(path, name)]
        self._domains = frozenset(entry for entry in entries if "/" not in entry)
        self._paths = frozenset(entry for entry in entries if "/" in entry)
        self._words = re.compile("|".join(map(re.escape, sorted(map(str.lower, words))))) if words else None

    def process(self, batch: Batch) -> Batch:
        """The batch less the records whose URL is on a list; or all of it, tagged."""
        packed = batch.rows.column("metadata").to_pylist()
        urls = [str(orjson.loads(entry).get(self.url_key) or "") if entry else "" for entry in packed]
        listed = [(self.judge(url) or "") if url else "" for url in urls]
        batch = batch.counted(self.name, WITHOUT_URL, urls.count(""))
        if self.tag:
            return tag(batch, self.name, {"listed": listed})
        return drop(batch, self.name, self.rules({"listed": listed}))

    def rules(self, scores: dict[str, Any]) -> list[Rule]:
        """Each reason, and which records with these scores it holds for."""
        listed = np.asarray(scores["listed"], np.str_)
        return [(reason, listed == reason) for reason in REASONS]

    def judge(self, url: str) -> str | None:
        """Why a URL is filtered, or None."""
        host, path = split_url(url)
        labels = host.split(".")
        hosts = [".".join(labels[first:]) for first in range(len(labels))]
        if any(part in self._domains for part in hosts):
            return REASONS[0]
        if self._paths and any(part + beginning in self._paths for part in hosts for beginning in _beginnings(path)):
            return REASONS[1]
        return REASONS[2] if self._words and self._words.search(url.lower()) else None


def split_url(url: str) -> tuple[str, str]:
    """The host in lower case, without `www.` and port, and the path with its query; empty where there is none."""
    try:
        url = url.lstrip()
        parts = urlsplit(url if _SCHEME.match(url) else f"//{url}")
        # The library leaves what follows a percent sign as it is.
        host = (parts.hostname or "").lower().rstrip(".")
    except ValueError:
        return "", ""
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path
    return host.removeprefix("www."), path


def _beginnings(path: str) -> list[str]:
    parts = path.partition("?")[0].split("/")
    return [*("/".join(parts[:count]) for count in range(2, len(parts) + 1)), path]


def _read(path: str, stage: str) -> list[str]:
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(
            f'stage "{stage}": cannot read the list {path}: {error}; give text with an entry a line'
        ) from error
    entries = [split_url(line.strip()) for line in lines if not line.lstrip().startswith("#")]
    # A dot before a domain is how some lists say that its subdomains are meant too.
    named = [
        (host.lstrip(".").removeprefix("www."), path if "?" in path else path.removesuffix("/"))
        for host, path in entries
        if host
    ]
    return [f"{host}{path}" for host, path in named if host]
