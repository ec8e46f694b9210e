"""What source tasks say of the fragments that they were given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FragmentWasRead:
    """A task sent all it was asked for of a fragment. `count` is -1 unless it read to the end."""

    task: str
    attempt: int
    fragment: bytes
    count: int
    error: str = ""
    #: The error is that the object is not the one that was listed: it concerns this fragment alone.
    changed: bool = False
    #: The error is that the object's device failed: it concerns this fragment alone, too.
    unreadable: bool = False
    #: The xxh3-128 of its stored bytes, where it was read to its end, or compared; empty: nobody took it.
    checksum: bytes = b""
    #: Of what was compared: a fragment may begin behind it.
    continues: bool = False
    #: The version under which it was compared; None: it was read. One fragment may be asked for both ways at once.
    compared: str | None = None


@dataclass(frozen=True, slots=True)
class FragmentsWereRead:
    """A task says of several fragments at once that they were read, in the order in which it read them."""

    task: str
    attempt: int
    reads: tuple[FragmentWasRead, ...]
