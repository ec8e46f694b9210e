"""Numbers, sizes and times in words; text from records without what a terminal would obey."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.store.ledger import Balance

MB = 1e6


def print_json(facts: Any) -> int:
    """Print what a command found on standard output; the exit code."""
    print(json.dumps(facts))
    return 0


def say(line: str, stream: IO[str] | None = None) -> None:
    """Print a line of progress, on standard error if nothing else is given; what cannot be written ends no run."""
    with contextlib.suppress(OSError):
        print(safe(line), file=stream or sys.stderr, flush=True)


def safe(text: str) -> str:
    """Text without control characters, which a terminal would obey."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


def number(value: int) -> str:
    """An integer with its thousands set apart."""
    return f"{value:,}"


def percent(part: float, whole: float) -> str:
    """A share with one digit."""
    return f"{100 * part / whole:.1f}%" if whole else ""


def padding(balance: Balance) -> str:
    """The share of padding with as many digits as it needs."""
    share = 100 * balance.padding_share
    return f"{share:.2f}%" if share >= 0.01 or share == 0 else f"{share:.2g}%"


def megabytes(count: int) -> str:
    """Bytes for people."""
    return f"{count / MB:,.1f} MB" if count < 1000 * MB else f"{count / MB / 1000:,.2f} GB"


def seconds(value: float) -> str:
    """A span of time for people."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
