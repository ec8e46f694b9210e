"""The gate before Parquet footers: each is decoded in a child first, which may die of it, and only then in here.

A footer says how long its lists are before they come, and a library that believes it takes gigabytes for a file of
300 bytes, or ends the process. So the child (`headrace.stages.footer_child`) is asked first, with little memory. One
child serves all files of a source: it is started once, and anew after a file that it died of.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import subprocess
import sys
import time
import weakref
from typing import Any, Final

from headrace.stages.errors import DamagedInput

#: Bytes of a footer: one of a file of a thousand columns and a thousand row groups has a tenth.
FOOTER_BYTES_MAX: Final = 1 << 30
#: Seconds for one footer.
FOOTER_S_MAX: Final = 60.0
#: Bytes that are read at once from the end of a file.
_TAIL_BYTES: Final = 64 << 10
_END_BYTES: Final = 8
_MAGIC: Final = b"PAR1"


def footer_of(raw: Any, name: str) -> bytes:
    """The footer of a Parquet file that is open; empty where there is none, which the reader then says.

    Raises DamagedInput for one that says it is larger than the file, or than FOOTER_BYTES_MAX.
    """
    size = raw.seek(0, os.SEEK_END)
    raw.seek(max(0, size - _TAIL_BYTES))
    tail = _read(raw, min(size, _TAIL_BYTES))
    raw.seek(0)
    if len(tail) < _END_BYTES + len(_MAGIC) or tail[-4:] != _MAGIC:
        return b""
    (length,) = struct.unpack("<I", tail[-_END_BYTES:-4])
    if length + _END_BYTES + len(_MAGIC) > size or length > FOOTER_BYTES_MAX:
        raise DamagedInput(name, f"its Parquet footer cannot be read (it says it has {length} bytes, of {size})")
    if length + _END_BYTES <= len(tail):
        return bytes(tail[-_END_BYTES - length : -_END_BYTES])
    raw.seek(size - _END_BYTES - length)
    footer = _read(raw, length)
    raw.seek(0)
    return footer


class FooterGate:
    """Asks a child about footers. A gate that is let go of ends its child."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._end: Any = None
        #: the footer that was sound last: a file is opened for its fragments, and then to be read
        self._sound = b""

    def check(self, footer: bytes, name: str) -> None:
        """Raise DamagedInput for a footer that is not sound, or that the child died of."""
        if footer == self._sound:
            return
        child = self._living()
        assert child.stdin is not None
        try:
            child.stdin.write(struct.pack("<q", len(footer)) + footer)
            child.stdin.flush()
            words = self._answer(child)
        except BrokenPipeError:
            words = ""
        if words == "ok":
            self._sound = footer
            return
        if not words:
            self.close()
            words = "reading it ended the process that was to try it"
        raise DamagedInput(name, f"its Parquet footer cannot be read ({words}; it has {len(footer)} bytes)")

    def close(self) -> None:
        """End the child; the next check starts another."""
        if self._end is not None:
            self._end()
        self._child = self._end = None

    def _living(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            command = [sys.executable, "-P", "-m", "headrace.stages.footer_child"]
            self._child = subprocess.Popen(  # noqa: S603 (our own module)
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._end = weakref.finalize(self, _end, self._child)
        return self._child

    def _answer(self, child: subprocess.Popen[bytes]) -> str:
        """The line that it answers with; empty where it ends without one, or takes too long."""
        assert child.stdout is not None
        descriptor, until, line = child.stdout.fileno(), time.monotonic() + FOOTER_S_MAX, b""
        while not line.endswith(b"\n"):
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                return ""
            part = os.read(descriptor, 1 << 10)
            if not part:
                return ""
            line += part
        return line.decode("ascii", "replace").strip()


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        child.kill()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    child.wait()


def _read(raw: Any, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0 and (part := raw.read(length)):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
