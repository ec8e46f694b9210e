"""The body of an upload: what is sent, hashed and cut, and what of it is in memory meanwhile."""

from __future__ import annotations

import base64
import hashlib
import mmap
import pathlib
import re
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import xxhash

from headrace.store.files.scratch import PIECE_BYTES
from headrace.store.s3.connection.body import Body

SIZE = 24 << 20


@pytest.fixture
def mapped(tmp_path: pathlib.Path) -> tuple[pathlib.Path, list[memoryview], bytes]:
    """A file, and its bytes mapped in pieces as a draft has them."""
    path = tmp_path / "draft"
    data = np.arange(SIZE // 8).tobytes()
    path.write_bytes(data)
    with path.open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return path, [whole[at : at + PIECE_BYTES] for at in range(0, SIZE, PIECE_BYTES)], data


def resident_bytes(path: pathlib.Path) -> int:
    """What of the file's mapping is in this process's memory."""
    found = re.search(
        rf"{re.escape(str(path))}\n(?:\w+: .*\n)*?Rss: +(\d+) kB", pathlib.Path("/proc/self/smaps").read_text()
    )
    assert found is not None
    return int(found.group(1)) << 10


def test_of_a_mapped_file_little_is_in_memory_meanwhile(
    mapped: tuple[pathlib.Path, list[memoryview], bytes],
) -> None:
    path, parts, data = mapped
    body = Body(parts)
    most = 0
    sent = hashlib.sha256()
    for number, block in enumerate(body.blocks()):
        sent.update(block)
        if number % 16 == 0:
            most = max(most, resident_bytes(path))
    assert sent.digest() == hashlib.sha256(data).digest()
    passes: list[tuple[Callable[[], str], str]] = [
        (body.sha256, hashlib.sha256(data).hexdigest()),
        (body.md5, base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()),
        (body.crc32, base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()),
        (body.xxh3, xxhash.xxh3_64(data).hexdigest()),
    ]
    for digest, expected in passes:
        assert digest() == expected
        most = max(most, resident_bytes(path))
    assert most <= SIZE // 4


def test_a_mapped_files_part_keeps_bytes_while_others_go(
    mapped: tuple[pathlib.Path, list[memoryview], bytes],
) -> None:
    _, parts, data = mapped
    body = Body(parts)
    low, high = PIECE_BYTES - 7, 5 * PIECE_BYTES + 3
    blocks = body.slice(low, high).blocks()
    found = [bytes(next(blocks))]
    assert body.xxh3() == xxhash.xxh3_64(data).hexdigest()
    found += [bytes(block) for block in blocks]
    assert b"".join(found) == data[low:high]
