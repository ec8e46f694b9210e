"""Checks of what people write into arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.client.errors import UsageError

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\s\[\]]+):([0-9]{1,5})")
_PORT_MAX = 65535


def check_address(option: str, address: str, *, host_needed: bool = True) -> None:
    """Raises UsageError unless this is HOST:PORT, or PORT alone where no host is needed."""
    found = _ADDRESS.fullmatch(address if host_needed or ":" in address else f"127.0.0.1:{address}")
    if found is None or int(found[2]) > _PORT_MAX:
        raise UsageError(f"{option} {address!r}: give HOST:PORT, such as 127.0.0.1:7420")


def check_without_cluster(option: str, address: str) -> None:
    """Raises UsageError for an address at which nothing is said without mutual TLS."""
    from headrace.daemon import AddressError, check_plain

    try:
        check_plain(address)
    except AddressError as error:
        raise UsageError(f"{option} {error}") from error


def check_pairs(option: str, given: Sequence[str]) -> None:
    """Raises UsageError unless each is KEY=VALUE."""
    for item in given:
        key, _, value = item.partition("=")
        if not key or not value:
            raise UsageError(f"{option} {item!r}: give it as KEY=VALUE, such as disk=ssd")
