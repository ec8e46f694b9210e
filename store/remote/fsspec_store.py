"""Any other place, by fsspec's file system for its scheme: `gs://`, `az://`, `webhdfs://` and what else is installed.

Its file systems retry as they please, raise what their libraries raise, and know no deadline. So each call runs in a
thread that may be left behind, and its errors are judged here. Bytes and version are two calls, the version last.
"""

from __future__ import annotations

import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from headrace.store import (
    InvalidUri,
    ObjectInfo,
    ObjectMissing,
    StoreRefused,
    StoreUnavailable,
    validate_key,
)
from headrace.store.remote.folders import ENTRIES_MAX, FolderEntry, FolderStore
from headrace.store.remote.http_store import bounded_version
from headrace.store.remote.retrier import RemoteRetrier, TryAgain
from headrace.store.s3 import RetryPolicy

#: One call of a file system; it is given up then, and its thread is left behind.
CALL_S_MAX = 120.0
#: Threads that were left behind, of one store: a server that never answers is not asked for ever.
LEFT_BEHIND_MAX = 16
#: Times that a read starts over because the object changed.
READS_MAX = 4
#: Objects whose size is remembered between two reads.
KNOWN_MAX = 256
#: What installs a scheme's package.
EXTRAS = {"gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
#: File systems of this machine, or over others: what they would open is not what the URI names.
_NO_PLACES = frozenset(
    (
        *("file", "local", "asynclocal", "memory", "data", "dir", "root", "reference", "zip", "tar", "libarchive"),
        *("cached", "blockcache", "filecache", "simplecache", "dask", "generic", "hf", "http", "https", "s3", "s3a"),
    )
)
#: What tells two contents of one name apart, the best first; the last ones together with the size.
_TAGS = ("generation", "etag", "ETag", "sha256", "md5Hash", "md5", "version_id", "checksum")
_TIMES = ("mtime", "modificationTime", "LastModified", "last_modified", "updated", "modified", "timeModified")
_STATUS = re.compile(r"[0-9]{3}")
_REFUSED = (400, 401, 403, 404, 405)
_Answer = TypeVar("_Answer")


class FsspecStore(FolderStore):
    """The files of one place. Parameters behind `?` are options of its file system."""

    def __init__(self, uri: str, retry_policy: RetryPolicy | None = None, call_s_max: float = CALL_S_MAX) -> None:
        super().__init__(uri)
        plain, _, query = uri.partition("?")
        self._scheme = plain.partition("://")[0]
        self._plain, self._options = plain, options_of(self._scheme, query)
        self._kind = _kind_of(self._scheme, uri)
        self._retrier, self._call_s_max = RemoteRetrier(uri, retry_policy), call_s_max
        self._known: dict[str, ObjectInfo] = {}
        self._lock, self._left = threading.Lock(), 0
        self._pid, self._system, self._base = -1, None, ""

    def head(self, key: str) -> ObjectInfo | None:
        """See `InputStore.head`."""
        found = self._found(f"look for {key!r}", lambda system, base: system.info(base + key), key)
        if not isinstance(found, dict) or found.get("type") != "file":
            return None
        return self._info(key, found)

    def get_with_info(self, key: str, offset: int, length: int) -> tuple[bytes, ObjectInfo]:
        """See `headrace.store.contract.objects.get_with_info`."""
        for _ in range(READS_MAX):
            known = self._known.pop(key, None) or self.head(key)
            if known is None:
                break
            end = max(offset, min(offset + length, known.size))
            data = self._bytes(key, offset, end) if offset < end else b""
            info = self.head(key)
            if info is None or data is None:
                break
            self._remember(info)
            if info == known and len(data) == end - offset:
                return data, info
        else:
            raise StoreUnavailable(f"{self.uri}: cannot get {key!r}: it changed {READS_MAX} times while it was read")
        raise ObjectMissing(key, self.uri)

    def _bytes(self, key: str, offset: int, end: int) -> bytes | None:
        found = self._found(
            f"get {key!r}", lambda system, base: system.cat_file(base + key, start=offset, end=end), key
        )
        if found is not None and (not isinstance(found, bytes) or len(found) > end - offset):
            raise StoreRefused(f"{self.uri}: its file system gives more of {key!r} than it was asked for")
        return found

    def _remember(self, info: ObjectInfo) -> None:
        while len(self._known) >= KNOWN_MAX:
            self._known.pop(next(iter(self._known)), None)
        self._known[info.key] = info

    def entries(self, folder: str) -> Iterator[FolderEntry]:
        """See `FolderStore.entries`."""
        what = f"list {folder!r}"
        found = self._call(what, lambda system, base: system.ls((base + folder).rstrip("/") or "/", detail=True))
        if found is None:
            return
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found[: ENTRIES_MAX + 1]):
            raise StoreRefused(f"{self.uri}: its file system gives no list of {folder!r}; read another place")
        top = self._top().strip("/")
        place = f"{top}/{folder}".strip("/")
        for item in found[: ENTRIES_MAX + 1]:
            path = str(item.get("name", "")).strip("/")
            if place and not path.startswith(place + "/"):
                continue
            name = path[len(place) :].strip("/")
            if item.get("type") == "directory":
                yield FolderEntry(name + "/")
            elif item.get("type") == "file" and name:
                yield FolderEntry(name, self._info(folder + name, item))

    def _info(self, key: str, found: Mapping[str, Any]) -> ObjectInfo:
        size = found.get("size")
        if type(size) is not int or not 0 <= size < 1 << 62:
            raise StoreRefused(f"{self.uri}: its file system does not say how many bytes {key!r} has; download it")
        return ObjectInfo(key, size, version_of(found, size))

    def _found(self, what: str, deed: Callable[[Any, str], _Answer], key: str) -> _Answer | None:
        validate_key(key)
        return self._call(what, deed)

    def _call(self, what: str, deed: Callable[[Any, str], _Answer]) -> _Answer | None:
        """What a call gives; None where nothing stands there. Raises StoreRefused, StoreUnavailable."""
        return self._retrier.ask(what, lambda: self._attempt(what, deed))

    def _attempt(self, what: str, deed: Callable[[Any, str], _Answer]) -> _Answer | None:
        done, outcome = threading.Event(), list[Any]()

        def work() -> None:
            try:
                outcome.append((deed(*self._opened()), None))
            except BaseException as error:  # noqa: BLE001 - judged below, in the thread that asked
                outcome.append((None, error))
            done.set()

        if self._left >= LEFT_BEHIND_MAX:
            raise StoreRefused(f"{self.uri}: cannot {what}: {self._left} calls never came back; see to the server")
        threading.Thread(target=work, name="fsspec", daemon=True).start()
        if not done.wait(self._call_s_max):
            self._left += 1
            raise TryAgain(f"no answer within {self._call_s_max:.0f} s")
        answer, error = outcome[0]
        if error is None:
            found: _Answer = answer
            return found
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return None
        if not isinstance(error, Exception):
            raise error
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if isinstance(error, (PermissionError, ImportError, TypeError, ValueError)) or status_of(error) in _REFUSED:
            raise StoreRefused(
                f"{self.uri}: cannot {what}: {why}; correct the name, or the credentials in the environment"
            ) from error
        raise TryAgain(why) from error

    def _opened(self) -> tuple[Any, str]:
        """The file system of this process, and the path of the place with a slash."""
        with self._lock:
            if self._pid != os.getpid():
                options = {"skip_instance_cache": True, "use_listings_cache": False, **self._options}
                options |= self._kind._get_kwargs_from_urls(self._plain)
                self._system = self._kind(**options)
                self._pid = os.getpid()
            return self._system, self._top() + "/"

    def _top(self) -> str:
        return str(self._kind._strip_protocol(self._plain)).rstrip("/")


def options_of(scheme: str, query: str) -> dict[str, Any]:
    """The options that a URI's query gives to the file system."""
    words: dict[str, Any] = {"true": True, "false": False}
    said: dict[str, Any] = {name: words.get(value, value) for name, value in urllib.parse.parse_qsl(query)}
    if scheme in ("gs", "gcs") and said.pop("anon", False) is True:
        said["token"] = "anon"  # noqa: S105 - a word of gcsfs
    return said


def version_of(found: Mapping[str, Any], size: int) -> str:
    """What tells two contents of one name apart; the size where nothing else is said."""
    for name in _TAGS:
        if found.get(name):
            return bounded_version(str(found[name]).strip('"'))
    changed = next((str(found[name]) for name in _TIMES if found.get(name)), "")
    return bounded_version(f"{size}-{changed}" if changed else str(size))


def status_of(error: BaseException) -> int:
    """The HTTP status that an error of somebody's library carries; 0 for none."""
    for name in ("status_code", "status", "code"):
        found = vars(error).get(name)
        if isinstance(found, int) or (isinstance(found, str) and _STATUS.fullmatch(found)):
            return int(found)
    return 0


def _kind_of(scheme: str, uri: str) -> Any:
    """The class of a scheme's file systems. Raises InvalidUri with what to install."""
    extra = EXTRAS.get(scheme, "fsspec")
    how = f"install it on this host and on each worker: pip install 'headrace[{extra}]'"
    if scheme in _NO_PLACES:
        raise InvalidUri(
            f"input {uri!r}: {scheme}:// names no place that can be read from here; name a path or a server"
        )
    try:
        import fsspec
    except ImportError as error:
        raise InvalidUri(f"input {uri!r} is read by fsspec, which is not installed; {how}") from error
    try:
        return fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        why = " ".join(str(error).split())[:200]
        raise InvalidUri(f"input {uri!r} needs a package that is not installed ({why}); {how}") from error
    except ValueError as error:
        raise InvalidUri(f"input {uri!r}: unknown scheme {scheme!r}; neither Headrace nor fsspec knows it") from error
