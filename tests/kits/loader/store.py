"""A store as a remote one behaves: no local files, gates instead of latency, and counts."""

import threading
from collections.abc import Callable
from pathlib import Path

from headrace.store import Capabilities, ObjectInfo, open_store


class RemoteStore:
    """A file store without `open_local`; `on_get(key, offset, attempt)` may wait, raise or change nothing."""

    is_remote = True
    capabilities: Capabilities = Capabilities()

    def __init__(self, root: Path | str, on_get: Callable[[str, int, int], None] = lambda *_: None) -> None:
        self._inner = open_store(str(root))
        self._on_get = on_get
        self._lock = threading.Lock()
        self.gets: dict[tuple[str, int], int] = {}
        #: bytes that went out, by key
        self.bytes: dict[str, int] = {}

    @property
    def uri(self) -> str:
        return self._inner.uri

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._lock:
            attempt = self.gets[key, offset] = self.gets.get((key, offset), 0) + 1
        self._on_get(key, offset, attempt)
        data = self._inner.get(key, offset, length)
        with self._lock:
            self.bytes[key] = self.bytes.get(key, 0) + len(data)
        return data

    def head(self, key: str) -> ObjectInfo | None:
        return self._inner.head(key)

    def open_local(self, key: str) -> None:
        return None
