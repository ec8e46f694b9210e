"""Changes of inputs within their structure: a tree of lists, mappings and values loses, doubles, swaps and turns parts.

A fuzzer that changes bytes breaks the encoding most of the time; one that changes the tree gets to what is checked
behind it: kinds, counts, ranges, and how parts agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import msgpack

#: Values at which checks of kinds and ranges are wont to be wrong.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -1.5, 1e308, float("inf"), float("nan"), "", "a", "é", "\0", "../x", "9" * 40, b"", b"\xff", b"x" * 16),
    *([], {}, [[]], {"": None}, [0], ["a"]),
)

Dump = Callable[[Any], bytes]
Load = Callable[[bytes], Any]


def changed_tree(tree: Any, random: Random) -> Any:
    """The tree with one place of it changed."""
    if isinstance(tree, (list, tuple)) and tree and random.random() < 0.8:
        return _changed_list(list(tree), random)
    if isinstance(tree, dict) and tree and random.random() < 0.8:
        return _changed_mapping(dict(tree), random)
    return _changed_value(tree, random)


def _changed_list(items: list[Any], random: Random) -> list[Any]:
    at = random.randrange(len(items))
    match random.randrange(10):
        case 0:
            del items[at]
        case 1:
            items.insert(at, items[random.randrange(len(items))])
        case 2:
            other = random.randrange(len(items))
            items[at], items[other] = items[other], items[at]
        case 3:
            items[at] = random.choice(ODD)
        case _:
            items[at] = changed_tree(items[at], random)
    return items


def _changed_mapping(items: dict[Any, Any], random: Random) -> dict[Any, Any]:
    key = random.choice(list(items))
    match random.randrange(8):
        case 0:
            del items[key]
        case 1:
            items[random.choice(("", "a", "é", "\0"))] = items[key]
        case 2:
            items[key] = random.choice(ODD)
        case 3:
            items[key] = items[random.choice(list(items))]
        case _:
            items[key] = changed_tree(items[key], random)
    return items


def _changed_value(value: Any, random: Random) -> Any:
    if random.random() < 0.2:
        return random.choice(ODD)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((value + 1, value - 1, -value, value * 2, value ^ 1 << random.randrange(64)))
    if isinstance(value, (str, bytes)):
        return _changed_text(value, random)
    return random.choice(ODD)


def _changed_text(text: Any, random: Random) -> Any:
    at = random.randrange(len(text) + 1)
    piece = text[at : at + random.randrange(1, 9)]
    more = chr(random.choice((0, 10, 32, 34, 47, 58, 97, 0xE9, 0x2028, 0x1F600)))
    added = more if isinstance(text, str) else more.encode()
    return random.choice((text[:at] + added + text[at:], text[:at] + text[at + 1 :], text + piece, text[:at], piece))


def within(load: Load, dump: Dump) -> Callable[[bytes, Random], bytes]:
    """A mutation of what `load` reads and `dump` writes; bytes that are no such thing stay as they are."""

    def mutate(data: bytes, random: Random) -> bytes:
        try:
            tree = load(data)
            for _ in range(random.randrange(1, 4)):
                tree = changed_tree(tree, random)
            return dump(tree)
        except Exception:  # noqa: BLE001 - whatever a codec of others raises for what it does not know
            return data

    return mutate


def load_msgpack(data: bytes) -> Any:
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def dump_msgpack(tree: Any) -> bytes:
    return bytes(msgpack.packb(tree, use_bin_type=True))


def dump_json(tree: Any) -> bytes:
    return json.dumps(tree, separators=(",", ":")).encode()


within_msgpack = within(load_msgpack, dump_msgpack)
within_json = within(json.loads, dump_json)
