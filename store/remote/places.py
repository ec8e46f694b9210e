"""Opens a place by the scheme of its URI.

Web servers and the hub are read by a wire of ours: the one of fsspec believes any length, undoes a Content-Encoding,
and gives bytes without their version.
"""

from __future__ import annotations

from headrace.store.contract import InputStore


def open_place(uri: str) -> InputStore:
    """Open what a URI names to be read: web servers and the hub here, others by fsspec. Raises InvalidUri."""
    scheme = uri.partition("://")[0]
    if scheme in ("http", "https"):
        from headrace.store.remote.http_store import HttpStore

        return HttpStore(uri)
    if scheme == "hf":
        from headrace.store.remote.hub import HubStore

        return HubStore(uri)
    from headrace.store.remote.fsspec_store import FsspecStore

    return FsspecStore(uri)
