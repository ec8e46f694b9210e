"""The one way to open a store from a URI, and the one name of the place that it leads to."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable

from headrace.store import InputStore, InvalidUri, ObjectStore

_PORTS = {"http": 80, "https": 443}


def open_store(uri: str) -> ObjectStore:
    """Open the store at `uri`: `file:///absolute`, `file://./relative`, a plain path, or `s3://bucket/prefix`.

    Nothing is created before the first write. Raises `InvalidUri`.
    """
    if not uri or "\0" in uri:
        raise InvalidUri(f"store URI {uri!r} is empty or has a NUL character; give a path or file:///path")
    scheme, separator, _ = uri.partition("://")
    opener = _OPENERS.get(scheme.lower()) if separator else _open_path
    if opener is None:
        known = ", ".join(f"{name}://" for name in sorted(_OPENERS))
        raise InvalidUri(f"store URI {uri!r}: unknown scheme {scheme!r}; known are {known} and plain paths")
    return opener(uri)


def open_input(uri: str) -> InputStore:
    """Open a store to read input from: one of `open_store`, a web server, the hub, or a place that fsspec knows.

    Nothing is asked of it before the first operation. Raises `InvalidUri`.
    """
    scheme, separator, _ = uri.partition("://")
    if not separator or scheme in _OPENERS:
        return open_store(uri)
    if scheme in ("http", "https"):
        from headrace.store.remote import HttpStore

        return HttpStore(uri)
    if scheme == "hf":
        from headrace.store.remote import HubStore

        return HubStore(uri)
    from headrace.store.remote import FsspecStore

    return FsspecStore(uri)


def below(uri: str, folder: str) -> str:
    """The URI of a folder in the store at `uri`, escaped as in one; what S3 says of its server stays behind `?`."""
    if not uri.lower().startswith("s3://"):
        return f"{uri.rstrip('/')}/{folder}"
    path, mark, query = uri.partition("?")
    return f"{path.rstrip('/')}/{folder}{mark}{query}"


def _open_path(path: str) -> ObjectStore:
    from headrace.store.files import FileStore

    return FileStore(path)


def folder_of(place: str) -> str:
    """The absolute path of a folder of this host, as a path or a `file://` URI names it. Raises `InvalidUri`."""
    if not place or "\0" in place:
        raise InvalidUri(f"folder {place!r} is empty or has a NUL character; give a path or file:///path")
    scheme, separator, _ = place.partition("://")
    if separator and scheme.lower() != "file":
        raise InvalidUri(f"{place!r} is no folder of this host; give a path or file:///path")
    return os.path.abspath(_path_of(place) if separator else os.path.expanduser(place))


def _open_file_uri(uri: str) -> ObjectStore:
    return _open_path(_path_of(uri))


def _path_of(uri: str) -> str:
    # A folder whose name is no UTF-8 has a URI too, and that leads to it alone.
    path = urllib.parse.unquote(uri[len("file://") :], errors="surrogateescape")
    if path.startswith("localhost/"):
        path = path.removeprefix("localhost")
    if not path.startswith(("/", "./", "../")) and path not in (".", ".."):
        raise InvalidUri(
            f"store URI {uri!r}: what follows file:// reads as a host name; "
            f"write file:///absolute/path or file://./{path or 'data'}"
        )
    if "\0" in path:
        raise InvalidUri(f"store URI {uri!r} has a NUL character; give a path or file:///path")
    return path


def _open_s3(uri: str) -> ObjectStore:
    from headrace.store.s3 import S3Store

    return S3Store(uri)


#: A store module slots in here, by the scheme of its URIs.
_OPENERS: dict[str, Callable[[str], ObjectStore]] = {"file": _open_file_uri, "s3": _open_s3}


def one_name(uri: str) -> str:
    """The same word for each URI that is known to lead to the same place. It is no URI, and only compared.

    Of a folder: without links, dots and doubled slashes, and unescaped. Of a bucket: its server, by host and port, and
    the prefix; region, style, credentials and encryption do not count. Two mounts of one disk, or two names of one
    server, are not recognised. It looks at the file system. Raises InvalidUri.
    """
    said = open_store(uri).uri
    if not said.startswith("s3://"):
        path = urllib.parse.unquote(urllib.parse.urlsplit(said).path, errors="surrogateescape")
        return f"folder {os.path.realpath(path)}"
    from headrace.store.s3.connection import resolve

    target = resolve(said)
    server = "aws"
    if target.endpoint is not None:
        parts = urllib.parse.urlsplit(target.endpoint)
        server = f"{(parts.hostname or '').lower()}:{parts.port or _PORTS[parts.scheme]}"
    return f"bucket {server}/{target.bucket}/{target.prefix}"
