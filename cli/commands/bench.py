"""`headrace bench` and `advise`: a host measured in bounded time, and a cluster sized by what was found."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.cli.host import (
    FACTS,
    LOOPBACK,
    Fact,
    MeasureError,
    facts_for_others,
    facts_path,
    keep_facts,
    measure_disk,
    measure_filters,
    measure_loader,
    measure_network,
    measure_store,
    measure_tokenizer,
    read_facts,
    serve_peer,
)
from headrace.cli.ui import BAD, FAINT, console, megabytes, plain_table, print_json, safe, title
from headrace.client import EXIT_FAULT, CliError, UsageError
from headrace.controller.core.scaling import Sized, SizingError, size_cluster, too_small
from headrace.daemon import AddressError, host_and_port, threads

#: What a part may take beyond the seconds that it measures: compiling, training a tokenizer, a store's first contact.
PART_S_MAX = 180.0
#: How long `--serve` waits for its peer.
SERVE_S = 600.0
#: The parts, in the order in which they are measured.
PARTS = ("disk", "network", "store", "tokenizer", "filters", "loader")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is measured: `peer` is HOST:PORT/WORD."""

    only: Sequence[str] = ()
    folder: Path | None = None
    store: str = ""
    peer: str = ""
    tokenizer: str = ""
    seconds: float = 2.0


def run_bench(asked: Asked, *, as_json: bool) -> int:
    """Measure, keep and show; exit code 1 where a part could not be measured. Raises UsageError."""
    parts = _parts(asked)
    found: dict[str, Fact] = {name: Fact(value, "", time.time()) for name, value in _sizes().items()}
    failed: dict[str, str] = {}
    for part, (where, measure) in parts.items():
        if not as_json:
            print(f"measuring {part} …", file=sys.stderr)
        answer = within(part, measure, asked.seconds + PART_S_MAX)
        if isinstance(answer, str):
            failed[part] = answer
        else:
            found |= {name: Fact(value, safe(where)[:500], time.time()) for name, value in answer.items()}
    path = facts_path()
    facts = read_facts(path).joined(found)
    unkept = keep_facts(path, facts)
    if as_json:
        print_json({**facts.plain(), "failed": failed, "file": None if unkept else str(path), "unkept": unkept})
    else:
        out = console()
        out.print(title(facts.host, f"kept in {path}" if not unkept else "not kept"))
        out.print()
        rows = [(name, _shown(name, fact.value), FACTS[name][1], fact.where) for name, fact in facts.facts.items()]
        out.print(plain_table(("fact", "value", "of", "where"), rows, right=(1,)))
        for part in (part for part in PARTS if part not in parts):
            why = "give --store URI" if part == "store" else "not asked for"
            out.print(f"  {part}: {why}", style=FAINT)
    for part, why in failed.items():
        print(f"headrace: {part} was not measured: {safe(why)}", file=sys.stderr)
    if unkept:
        print(f"headrace: the facts are not kept: {safe(unkept)}", file=sys.stderr)
    return EXIT_FAULT if failed else 0


def _parts(asked: Asked) -> dict[str, tuple[str, Callable[[], Mapping[str, float]]]]:
    if unknown := [part for part in asked.only if part not in PARTS]:
        raise UsageError(f"--only {unknown[0]!r} is no part; the parts are {', '.join(PARTS)}")
    if "store" in asked.only and not asked.store:
        raise UsageError("--only store needs --store URI")
    peer = peer_of(asked.peer) if asked.peer else None
    folder, seconds = asked.folder or Path(tempfile.gettempdir()), asked.seconds
    every: dict[str, tuple[str, Callable[[], Mapping[str, float]]]] = {
        "disk": (str(folder), lambda: measure_disk(folder, seconds)),
        "network": (f"{peer[0]}:{peer[1]}" if peer else LOOPBACK, lambda: measure_network(peer, seconds)),
        "store": (asked.store, lambda: measure_store(asked.store, seconds)),
        "tokenizer": (asked.tokenizer or "8,192 tokens", lambda: measure_tokenizer(asked.tokenizer, seconds)),
        "filters": ("standard library", lambda: measure_filters(seconds)),
        "loader": (str(folder), lambda: measure_loader(folder, seconds)),
    }
    wanted = asked.only or [part for part in PARTS if part != "store" or asked.store]
    return {part: every[part] for part in PARTS if part in wanted}


def peer_of(text: str) -> tuple[str, int, str]:
    """HOST:PORT/WORD as host, port and word. Raises UsageError."""
    address, slash, word = text.rpartition("/")
    try:
        if not slash or not word.isascii() or not word.isalnum():
            raise AddressError("no word")
        host, port = host_and_port(address)
    except AddressError as error:
        raise UsageError(f"--peer {text!r}: give what `headrace bench --serve` printed, HOST:PORT/WORD") from error
    return host, port, word


def within(part: str, work: Callable[[], Mapping[str, float]], seconds: float) -> Mapping[str, float] | str:
    """What the work found, or why it found nothing; given up where it takes longer."""
    answers: queue.SimpleQueue[Mapping[str, float] | str] = queue.SimpleQueue()

    def measured() -> None:
        try:
            answers.put(work())
        except MeasureError as error:
            answers.put(str(error))

    threads.start(f"bench {part}", measured, lambda: answers.put("it died; its error stands above"))
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return f"no answer within {seconds:.0f} s"


def serve(address: str) -> int:
    """Print what `--peer` is to be, and answer one peer. Raises UsageError, CliError."""
    try:
        host, port = host_and_port(address)
    except AddressError as error:
        raise UsageError(f"--serve {address!r}: {error}") from error
    word = secrets.token_hex(16)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with contextlib.closing(socket.create_server((host, port), family=family)) as server:
            shown = f"[{host}]" if ":" in host else host
            print(f"headrace bench --only network --peer {shown}:{server.getsockname()[1]}/{word}", flush=True)
            serve_peer(server, word, SERVE_S)
    except OSError as error:
        raise CliError(f"cannot listen on {address}: {error.strerror}") from error
    except MeasureError as error:
        raise CliError(str(error)) from error
    return 0


def _sizes() -> dict[str, float]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": float(len(os.sched_getaffinity(0))), "memory_bytes": float(memory)}


def _shown(name: str, value: float) -> str:
    unit = FACTS[name][0]
    if unit in ("B", "B/s") and value >= 1e5:
        return megabytes(int(value)) + unit[1:]
    if unit == "s":
        return f"{value * 1e3:,.3f} ms"
    return f"{value:,.4g} {unit}" if value < 1e4 else f"{value:,.0f} {unit}"


#: An amount, as 0.4, 7e9 or 7G.
_AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?(?:e[+-]?\d{1,2})?)([kMGTP]?)")
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def show_advice(given: Sequence[str], *, measured: bool, as_json: bool) -> int:
    """Size, and show; exit code 0 also where something is too small. Raises UsageError."""
    try:
        sized = size_cluster(numbers_in(given), facts_for_others() if measured else {})
    except SizingError as error:
        raise UsageError(str(error)) from error
    broken = too_small(sized)
    if as_json:
        small = [{**asdict(check), "times": times} for check, times in broken]
        return print_json({"numbers": [asdict(one) for one in sized], "too_small": small})
    out = console()
    out.print(title("advice", "too small in places" if broken else "nothing is too small", good=not broken))
    out.print_below(plain_table(("number", "value", "what it is", "by"), [_row(one) for one in sized], right=(1,)))
    for check, times in broken:
        out.print(f"  {check.need} is {times:,.3g} times {check.have}: {check.remedy}", style=BAD, markup=False)
    return 0


def numbers_in(given: Sequence[str]) -> dict[str, float]:
    """NAME=VALUE as numbers by name; of one name the last. Raises UsageError."""
    found: dict[str, float] = {}
    for item in given:
        name, sign, text = item.partition("=")
        amount = _AMOUNT.fullmatch(text)
        if not name or not sign or amount is None:
            raise UsageError(f"--set {item!r}: give a name and a number, such as gpus=64 or params=7G")
        found[name] = float(amount[1]) * _UNITS[amount[2]]
    return found


def _row(one: Sized) -> tuple[Any, ...]:
    value, unit = one.value, ""
    for name, size in reversed(_UNITS.items()):
        if one.value >= size * 10 and name:
            value, unit = one.value / size, name
            break
    shown = f"{value:,.4g} {unit}{one.unit if one.unit != 'share' else ''}".rstrip()
    return one.name, shown, one.says, one.by
