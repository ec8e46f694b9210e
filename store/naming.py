"""The one name of a place that many URIs lead to, so that one dataset is seen to be one."""

from __future__ import annotations

import os
import urllib.parse

from headrace.store.objects import open_store

_PORTS = {"http": 80, "https": 443}


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
    from headrace.store.s3 import resolve

    target = resolve(said)
    server = "aws"
    if target.endpoint is not None:
        parts = urllib.parse.urlsplit(target.endpoint)
        server = f"{(parts.hostname or '').lower()}:{parts.port or _PORTS[parts.scheme]}"
    return f"bucket {server}/{target.bucket}/{target.prefix}"
