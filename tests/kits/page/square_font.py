"""A font of squares, as TrueType: each character is one box, so a picture with text is the same on any machine."""

from __future__ import annotations

import struct

#: Units of an em, the box of a character, and how far each character goes.
EM, LEFT, RIGHT, TOP, ADVANCE = 1000, 40, 500, 600, 560
ASCENT, DESCENT = 900, -300
_LAST = 0x10FFFF


def square_font() -> bytes:
    """The file."""
    box = struct.pack(">hhhhhHH", 1, LEFT, 0, RIGHT, TOP, 3, 0)
    # Four points on the curve, each as the difference to the one before, in two bytes: all of x, then all of y.
    box += bytes([1] * 4) + struct.pack(">4h4h", LEFT, RIGHT - LEFT, 0, LEFT - RIGHT, 0, 0, TOP, 0)
    box += bytes(-len(box) % 4)
    tables = {
        b"OS/2": _os2(),
        b"cmap": _cmap(),
        b"glyf": box + box,
        b"head": struct.pack(
            ">IIIIHHQQhhhhHHhhh", 0x10000, 0x10000, 0, 0x5F0F3CF5, 3, EM, 0, 0, 0, 0, RIGHT, TOP, 0, 8, 2, 1, 0
        ),
        b"hhea": struct.pack(">IhhhHhhhhhhhhhhhH", 0x10000, ASCENT, DESCENT, 0, ADVANCE, 0, 0, RIGHT, 1, *[0] * 7, 3),
        b"hmtx": struct.pack(">HhHhHh", ADVANCE, LEFT, ADVANCE, LEFT, ADVANCE, 0),
        # Glyph 0 stands for what the font has not, 1 for what it has, 2 for a space.
        b"loca": struct.pack(">4I", 0, len(box), 2 * len(box), 2 * len(box)),
        b"maxp": struct.pack(">IHHHHHHHHHHHHHH", 0x10000, 3, 4, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0),
        b"name": _name("Square"),
        b"post": struct.pack(">IIhhIIIII", 0x30000, 0, -100, 50, 1, 0, 0, 0, 0),
    }
    return _file(tables)


def _cmap() -> bytes:
    groups = [(0x20, 0x20, 2), (0x21, _LAST, 1)]
    body = struct.pack(">HHIII", 13, 0, 16 + 12 * len(groups), 0, len(groups))
    body += b"".join(struct.pack(">III", *group) for group in groups)
    return struct.pack(">HHHHI", 0, 1, 3, 10, 12) + body


def _name(family: str) -> bytes:
    texts = [(number, family.encode("utf-16-be")) for number in (1, 2, 4, 6)]
    records, at = b"", 0
    for number, text in texts:
        records += struct.pack(">HHHHHH", 3, 1, 0x409, number, len(text), at)
        at += len(text)
    return struct.pack(">HHH", 0, len(texts), 6 + len(records)) + records + b"".join(text for _, text in texts)


def _os2() -> bytes:
    head = struct.pack(">HhHHH", 4, ADVANCE, 400, 5, 0) + struct.pack(">10h", *[0] * 10) + struct.pack(">h", 0)
    head += bytes(10) + struct.pack(">4I", *[0] * 4) + b"none"
    head += struct.pack(">HHHhhhHH", 0x40, 0x20, 0xFFFF, ASCENT, DESCENT, 0, ASCENT, -DESCENT)
    return head + struct.pack(">IIhhHHH", 0, 0, 500, TOP, 0, 0x20, 1)


def _file(tables: dict[bytes, bytes]) -> bytes:
    search = 1 << (len(tables).bit_length() - 1)
    header = struct.pack(
        ">IHHHH", 0x10000, len(tables), search * 16, search.bit_length() - 1, 16 * (len(tables) - search)
    )
    at, directory, body = len(header) + 16 * len(tables), b"", b""
    for tag, data in sorted(tables.items()):
        padded = data + bytes(-len(data) % 4)
        total = sum(struct.unpack(f">{len(padded) // 4}I", padded)) & 0xFFFFFFFF
        directory += tag + struct.pack(">III", total, at + len(body), len(data))
        body += padded
    return header + directory + body
