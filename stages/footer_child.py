"""Decodes Parquet footers that nobody has looked at yet, in a process that may die of them.

    python -m headrace.stages.footer_child

It reads a footer's size, 8 bytes, and the footer from its standard input, and answers with a line: `ok`, or why not. It
ends with its input. What a footer takes is bound by RLIMIT_AS; whoever asked takes the child's death for an answer.
"""

from __future__ import annotations

import contextlib
import resource
import struct
import sys
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

_MAGIC: Final = b"PAR1"
#: Bytes of memory for any footer, and for each byte of it: what its structures take when they are read.
FOOTER_MEMORY_BYTES: Final = 128 << 20
FOOTER_MEMORY_A_BYTE: Final = 64
#: Characters of an answer.
_WORDS_MAX: Final = 200


def main(asked: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while len(size := asked.read(8)) == 8:
        footer = asked.read(struct.unpack("<q", size)[0])
        held = _mapped_bytes() + FOOTER_MEMORY_BYTES + FOOTER_MEMORY_A_BYTE * len(footer)
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (held if hard < 0 else min(held, hard), hard))
        answers.write(fault_of(footer).encode("ascii", "replace")[:_WORDS_MAX].replace(b"\n", b" ") + b"\n")
        answers.flush()


def fault_of(footer: bytes) -> str:
    """What is wrong with a footer, "ok" where everything that a source asks of it can be asked."""
    try:
        data = pa.py_buffer(_MAGIC + footer + struct.pack("<i", len(footer)) + _MAGIC)
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            names = file.schema_arrow.names
            whole = file.metadata
            for index in range(whole.num_row_groups):
                group = whole.row_group(index)
                if group.num_rows < 0 or group.total_byte_size < 0:
                    return f"row group {index} has {group.num_rows} rows in {group.total_byte_size} bytes"
                for column in range(group.num_columns):
                    chunk = group.column(column)
                    if min(chunk.data_page_offset, chunk.total_compressed_size, chunk.total_uncompressed_size) < 0:
                        return f"row group {index} has a column at no place, or of no size"
            return "ok" if names is not None else "no columns"
    except MemoryError:
        return "it takes more memory than its size allows"
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        return str(error).partition("\n")[0] or type(error).__name__


def _mapped_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main(sys.stdin.buffer, sys.stdout.buffer)
