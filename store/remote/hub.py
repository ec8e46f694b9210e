"""Files of the Hugging Face hub, `hf://datasets/organisation/name@revision/path`, over its HTTP interface.

A version is the hash by which the hub knows a file's content, and comes with every answer. The token is that of
`HF_TOKEN` or `hf auth login`, and goes to the hub of `HF_ENDPOINT` alone, encrypted or on this host: an address may
name any other hub, and the servers that the hub redirects to sign their addresses.
"""

from __future__ import annotations

import ipaddress
import os
import pathlib
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from headrace.pipeline import SecretBrokenError, whole_secret
from headrace.store import InvalidUri, ObjectInfo, StoreRefused
from headrace.store.remote.folders import FolderEntry
from headrace.store.remote.http_store import HttpAnswer, HttpStore, bounded_version, joined, plain_tag
from headrace.store.s3 import RetryPolicy

ENDPOINT = "https://huggingface.co"
#: Pages of one folder's listing, of a thousand names each.
PAGES_MAX = 1000
#: Characters of a token.
TOKEN_CHARACTERS_MAX = 4096
_KINDS = {"datasets": "datasets/", "spaces": "spaces/"}
_REPOSITORY = re.compile(r"([\w.-]{1,96})(?:@(refs/(?:convert|pr)/[^/@]{1,96}|[^/@]{1,96}))?/?(.*)", re.DOTALL)
_NEXT = re.compile(r"<([^<>]{1,4096})>\s*;\s*rel=\"?next\"?")
_HOW = "write hf://datasets/organisation/name/path, or name@revision"


class HubStore(HttpStore):
    """Repositories of one kind and owner. A key begins with the repository's name, and its revision behind `@`."""

    def __init__(self, uri: str, retry_policy: RetryPolicy | None = None) -> None:
        plain, _, query = uri.partition("?")
        said = dict(urllib.parse.parse_qsl(query))
        own = os.environ.get("HF_ENDPOINT", "") or ENDPOINT
        endpoint = said.pop("endpoint", "") or own
        if said:
            raise InvalidUri(f"{uri}: unknown parameter {next(iter(said))!r}; known is endpoint")
        if not endpoint.startswith(("https://", "http://")):
            raise InvalidUri(f"{uri}: endpoint {endpoint!r} is no web address")
        super().__init__(endpoint, retry_policy)
        self.uri = uri
        self._tells_token = may_have_token(endpoint)
        self._place = plain.removeprefix("hf://").strip("/")

    def entries(self, folder: str) -> Iterator[FolderEntry]:
        """See `FolderStore.entries`."""
        kind, name, revision, path = self._parts(folder)
        url = f"{self._base}api/{kind or 'models/'}{name}/tree/{_quoted(revision)}"
        url += f"/{urllib.parse.quote(path.rstrip('/'))}" if path.rstrip("/") else ""
        seen: set[str] = set()
        while url and url not in seen:
            if len(seen) >= PAGES_MAX:
                raise StoreRefused(f"{self.uri}: folder {folder!r} has more than {PAGES_MAX} pages; narrow the input")
            seen.add(url)
            answer = self._page(folder, url)
            if self._is_missing(answer, folder):
                return
            yield from self._listed(answer.body, folder, path)
            url = self._next_page(answer)

    def _listed(self, page: bytes, folder: str, path: str) -> Iterator[FolderEntry]:
        try:
            items: Any = orjson.loads(page)
        except orjson.JSONDecodeError:
            items = None
        if not isinstance(items, list):
            raise StoreRefused(f"{self.uri}: the endpoint gives no list of {folder!r}; correct it")
        for item in items:
            if not isinstance(item, dict) or not isinstance(name := item.get("path"), str):
                raise StoreRefused(f"{self.uri}: the endpoint's list of {folder!r} names something without a path")
            name = name.removeprefix(path)
            if item.get("type") == "directory":
                yield FolderEntry(name + "/")
            elif item.get("type") == "file":
                yield FolderEntry(name, _info_of(item, folder + name))

    def _next_page(self, answer: HttpAnswer) -> str:
        match = _NEXT.search(answer.headers.get("Link", "")[:16384])
        if match is None:
            return ""
        url = joined(answer.url, match[1])
        if not url.startswith(self._base):
            raise StoreRefused(f"{self.uri}: a listing goes on at another server, {url[:200]!r}")
        return url

    def _url(self, key: str) -> str:
        kind, name, revision, path = self._parts(key)
        return f"{self._base}{kind}{name}/resolve/{_quoted(revision)}/{urllib.parse.quote(path)}"

    def _parts(self, key: str) -> tuple[str, str, str, str]:
        """The kind as it stands in an address, owner and name, revision, and the path within. Raises InvalidUri."""
        owner, rest = self._place, key
        kind = _KINDS.get(self._place, "")
        if kind:
            owner, _, rest = key.partition("/")
        match = _REPOSITORY.fullmatch(rest)
        if match is None or not owner or owner == "buckets":
            raise InvalidUri(f"hf://{self._place}/{key} names no repository: {_HOW}")
        return kind, f"{urllib.parse.quote(owner)}/{match[1]}", match[2] or "main", match[3]

    def _headers(self) -> Mapping[str, str]:
        token = token_of(os.environ) if self._tells_token else ""
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _version(self, answer: HttpAnswer) -> str:
        tags = (headers.get(name, "") for name in ("X-Linked-ETag", "ETag") for headers in answer.said)
        return plain_tag(next(filter(None, tags), "")) or super()._version(answer)

    def _missing(self, answer: HttpAnswer) -> bool:
        return answer.status == 404 and answer.said[0].get("X-Error-Code", "EntryNotFound") == "EntryNotFound"

    def _is_folder(self, key: str, answer: HttpAnswer) -> bool:
        del answer
        return not self._parts(key)[3]

    def head(self, key: str) -> ObjectInfo | None:
        """See `InputStore.head`; None for a repository."""
        return super().head(key) if self._parts(key)[3] else None

    def _remedy(self, answer: HttpAnswer) -> str:
        code = answer.said[0].get("X-Error-Code", "")[:40]
        if not token_of(os.environ):
            who = "set HF_TOKEN where it needs one"
        elif self._tells_token:
            who = "set HF_TOKEN, or see that its owner lets it in"
        else:
            who = "it got no token: that goes to the hub of HF_ENDPOINT alone, over https"
        return f"{code + ': ' if code.isalnum() else ''}check owner, name and revision; {who}"


def _info_of(item: dict[str, Any], key: str) -> ObjectInfo | None:
    """What a listing says of a file; None where it does not say it well."""
    large = item.get("lfs")
    version = large.get("oid") if isinstance(large, dict) else item.get("oid")
    size = item.get("size")
    if type(size) is not int or not 0 <= size < 1 << 62 or not isinstance(version, str) or not version:
        return None
    return ObjectInfo(key, size, bounded_version(version))


def may_have_token(endpoint: str) -> bool:
    """Whether this user's token may go to a hub: the one of HF_ENDPOINT, encrypted or on this host."""
    own = os.environ.get("HF_ENDPOINT", "") or ENDPOINT
    return endpoint.rstrip("/") == own.rstrip("/") and _nobody_listens(endpoint)


def _nobody_listens(endpoint: str) -> bool:
    """Whether what is sent there is encrypted, or stays on this host."""
    address = urllib.parse.urlsplit(endpoint)
    if address.scheme == "https":
        return True
    try:
        return ipaddress.ip_address(address.hostname or "").is_loopback
    except ValueError:
        return address.hostname == "localhost"


def _quoted(revision: str) -> str:
    return urllib.parse.quote(revision, safe="%")


def token_of(environment: Mapping[str, str]) -> str:
    """The token of this user; "" for none. Raises StoreRefused for what no token can be."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if said := environment.get(name, ""):
            return _whole(said, name)
    home = environment.get("HF_HOME") or f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    file = pathlib.Path(environment.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
    try:
        with file.open(encoding="ascii", errors="replace") as opened:
            return _whole(opened.read(TOKEN_CHARACTERS_MAX + 1), str(file))
    except OSError:
        return ""


def _whole(said: str, where: str) -> str:
    if len(said) > TOKEN_CHARACTERS_MAX:
        raise StoreRefused(f"{where} holds more than {TOKEN_CHARACTERS_MAX:,} characters, and no token is so long")
    try:
        return whole_secret(said, where)
    except SecretBrokenError as error:
        raise StoreRefused(str(error)) from None
