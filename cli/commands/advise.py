"""`headrace advise`: sizes a cluster before there is one, and says by which formula."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from headrace.cli.host import facts_for_others
from headrace.cli.ui import BAD, console, plain_table, title
from headrace.client import UsageError
from headrace.controller.core.scaling import Sized, SizingError, size_cluster, too_small

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
        print(json.dumps({"numbers": [asdict(one) for one in sized], "too_small": small}))
        return 0
    out = console(sys.stdout)
    out.print(title("advice", "too small in places" if broken else "nothing is too small", good=not broken))
    out.print()
    out.print(plain_table(("number", "value", "what it is", "by"), [_row(one) for one in sized], right=(1,)))
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
