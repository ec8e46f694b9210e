"""Targets that are wrong in one way each: the runner has to say so."""

from __future__ import annotations

import re
import subprocess
from random import Random

from tests.fuzz.harness import Target

SECRET = b"HRF1\x01\x63"


def run_falling(data: bytes) -> object | None:
    """Breaks behind a check of six bytes, one after the other, which coverage leads to and nobody guesses."""
    found = 0
    while found < len(SECRET) and len(data) > found:
        if data[found] != SECRET[found]:
            return found or None
        found += 1
        warmer(found)
    if found == len(SECRET):
        raise RuntimeError("this decoder fell")
    return found or None


def warmer(found: int) -> None:
    """Give each byte of the secret a branch of its own, for the fuzzer to see that it is getting warmer."""
    if found == 1:
        return
    if found == 2:
        return
    if found == 3:
        return
    if found == 4:
        return
    if found == 5:
        return


def run_hanging(data: bytes) -> object | None:
    while data and data[0] == 0x63:
        pass
    return bytes(data[:2])


def run_hungry(data: bytes) -> object | None:
    if data and data[0] == 0x63:
        HELD.append(b"\1" * (2 << 30))
    return bytes(data[:2])


HELD: list[bytes] = []


def run_blind(data: bytes) -> object | None:
    """Takes what was prepared and nothing else."""
    return data if data == b"prepared" else None


def run_deaf(data: bytes) -> object | None:
    """Has one value, so that there is no canary to be found."""
    return "the same"


def run_unseen(data: bytes) -> object | None:
    """Decides without a branch, so that coverage tells no inputs apart."""
    return (None, data)[bool(re.fullmatch(rb"word: [0-9]+\r\n", data))]


def mutate_unseen(data: bytes, random: Random) -> bytes:
    return b"word: %d" % random.randrange(10) + data[7:]


def run_beginning(data: bytes) -> object | None:
    """Begins the program that the input names."""
    if data[:1] == b"c":
        subprocess.run([data], check=False, timeout=60)
    return bytes(data[:2])


TARGETS = [
    Target("beginning", ("flawed",), run_beginning, lambda: [b"ab"], bytes_max=2),
    Target("falling", ("flawed",), run_falling, lambda: [b"H"], canary=lambda value: value == 5),
    Target("hanging", ("flawed",), run_hanging, lambda: [b"ab"], bytes_max=2),
    Target("hungry", ("flawed",), run_hungry, lambda: [b"ab"], bytes_max=2),
    Target("blind", ("flawed",), run_blind, lambda: [b"prepared"]),
    Target("unseen", ("flawed",), run_unseen, lambda: [b"word: 1\r\n"], mutate=mutate_unseen),
    Target("deaf", ("flawed",), run_deaf, lambda: [b"x"]),
]
