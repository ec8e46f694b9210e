"""Input files of every format."""

from __future__ import annotations

import gzip
import io
import pathlib
import tarfile
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

RECORDS: list[dict[str, Any]] = [
    {"id": f"r{index}", "text": f"text {index} " + "é" * (index % 7), "url": f"http://x/{index}"} for index in range(60)
]


#: What a clone without `git lfs` has in the place of a large file.
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a2146" * 8 + b"\nsize 12345\n"


def tar(name: str, data: bytes) -> bytes:
    """A tar archive of one file."""
    out, entry = io.BytesIO(), tarfile.TarInfo(name)
    entry.size = len(data)
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


def zstd_of_window(log: int, data: bytes) -> bytes:
    """A frame of one block as it is, which asks for a window of 2 ** log bytes (RFC 8878, 3.1.1)."""
    header = b"\x28\xb5\x2f\xfd" + bytes([0, (log - 10) << 3])
    return header + (len(data) << 3 | 1).to_bytes(3, "little") + data


def lines(records: Sequence[dict[str, Any]] = RECORDS) -> bytes:
    return b"".join(orjson.dumps(record) + b"\n" for record in records)


def write(path: pathlib.Path, data: bytes) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_parquet(path: pathlib.Path, columns: dict[str, Any] | pa.Table, group: int = 10) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, row_group_size=group)
    return path


def parquet_of(path: pathlib.Path, group: int = 10) -> pathlib.Path:
    return write_parquet(path, pa.Table.from_pylist(RECORDS), group)


def warc_record(kind: str, name: str, body: bytes, content: str, **headers: str) -> bytes:
    fields = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:uuid:{name}>",
        "WARC-Target-URI": f"http://x/{name}",
        "WARC-Date": "2024-01-01T00:00:00Z",
        "Content-Type": content,
        **{key.replace("_", "-"): value for key, value in headers.items()},
        "Content-Length": str(len(body)),
    }
    head = "WARC/1.0\r\n" + "".join(f"{key}: {value}\r\n" for key, value in fields.items()) + "\r\n"
    return head.encode() + body + b"\r\n\r\n"


def response(name: str, html: bytes, content: str = "text/html", status: str = "200 OK") -> bytes:
    http = f"HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {len(html)}\r\n\r\n".encode() + html
    return warc_record("response", name, http, "application/http; msgtype=response")


def page(text: str) -> bytes:
    return f"<html><head><title>t</title></head><body><main><p>{text}</p></main></body></html>".encode()


def warc(count: int = 20) -> list[bytes]:
    """The records of a WARC: a request before each response, and an image in between."""
    records = [warc_record("warcinfo", "info", b"software: x\r\n", "application/warc-fields")]
    for index in range(count):
        records.append(warc_record("request", f"q{index}", b"GET / HTTP/1.1\r\n\r\n", "application/http"))
        records.append(response(f"p{index}", page(f"page {index} é"), "text/html; charset=utf-8"))
    records.append(response("image", b"\x89PNG", "image/png"))
    records.append(response("gone", page("gone"), status="404 Not Found"))
    return records


def wet(count: int = 20) -> list[bytes]:
    return [
        warc_record(
            "conversion", f"w{index}", f"text {index} é".encode(), "text/plain", WARC_Identified_Content_Language="fra"
        )
        for index in range(count)
    ]


def members(records: Sequence[bytes]) -> bytes:
    """A gzip member a record, as crawls have it."""
    return b"".join(gzip.compress(record) for record in records)
