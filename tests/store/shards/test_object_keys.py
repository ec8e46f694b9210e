"""Keys and checksums of many shards at once."""

from __future__ import annotations

import pytest

from headrace.store.shards import are_checksums, are_keys, is_checksum, is_key

KEY, CHECKSUM = f"shards/1/{'0a' * 16}.safetensors", f"xxh3-128:{'0a' * 16}"


@pytest.mark.parametrize(
    "strange",
    ["", "\n", KEY + "\n", f"{KEY}\n{KEY}", KEY[:-12], KEY.upper(), "/" + KEY, KEY.replace("1/", "../"), CHECKSUM],
)
def test_many_keys_are_keys_if_each_is_one(strange: str) -> None:
    assert are_keys([])
    assert are_keys([KEY, KEY.replace("shards", "quarantine")])
    assert not is_key(strange)
    assert not any(are_keys(keys) for keys in ([strange], [KEY, strange], [strange, KEY]))


@pytest.mark.parametrize(
    "strange", ["", "\n", CHECKSUM + "\n", f"{CHECKSUM}\n{CHECKSUM}", CHECKSUM[:-1], CHECKSUM.upper(), KEY]
)
def test_many_checksums_are_checksums_if_each_is_one(strange: str) -> None:
    assert are_checksums([])
    assert are_checksums([CHECKSUM, CHECKSUM.replace("a", "b")])
    assert not is_checksum(strange)
    assert not any(are_checksums(found) for found in ([strange], [CHECKSUM, strange], [strange, CHECKSUM]))
