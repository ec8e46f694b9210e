"""`headrace what-if`: the throughput of a running pipeline after a change, predicted.

Two readings of the controller's counters, some seconds apart, make a model of the run; the model is asked.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cli.ui import FAINT, console, megabytes, plain_table, print_json, safe, title
from headrace.client import Client, CliError, ControllerAt, UsageError, pairs_by_stage
from headrace.controller import reading_of
from headrace.controller.core.scaling import (
    Forecast,
    ForecastAnswer,
    ReadingError,
    ThroughputModel,
    WhatIf,
    bytes_left,
    model_of,
    what_if,
    window_of,
)

#: Cores, tasks, bits and bytes that may be asked for.
ASKED_MAX = 1e15
#: How many times as fast a stage may be thought.
SPEED_MAX = 1e6
_TIMES = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,9})?")
#: An amount with a unit of thousands.
_AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([kMGT]?)")
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True)
class WhatIfQuestion:
    """What the command line asks: texts as they were given."""

    cores: str = ""
    without: Sequence[str] = ()
    replicas: Sequence[str] = ()
    speed: Sequence[str] = ()
    nic: str = ""
    store: str = ""
    model_hosts: Sequence[str] = ()


def asked_of(question: WhatIfQuestion, cores: float) -> WhatIf:
    """The question to the model of a run that has so many cores. Raises UsageError."""
    replicas: dict[str, int] = {}
    for stage, value in pairs_by_stage("--replicas", question.replicas).items():
        if not value.isdecimal() or len(value) > 16 or not 0 < int(value) <= ASKED_MAX:
            raise UsageError(f"--replicas {stage}={value}: give a number of tasks from 1")
        replicas[stage] = int(value)
    hosts = pairs_by_stage("--model-hosts", question.model_hosts)
    return WhatIf(
        cores=_cores(question.cores, cores) if question.cores else None,
        without=tuple(question.without),
        replicas=replicas,
        speed={stage: _speed(stage, value) for stage, value in pairs_by_stage("--speed", question.speed).items()},
        store_bytes_s=_amount("--store", question.store) if question.store else 0.0,
        # Networks are told in bits.
        nic_bytes_s=_amount("--nic", question.nic) / 8 if question.nic else 0.0,
        model_hosts={stage: _amount("--model-hosts", value) for stage, value in hosts.items()},
    )


def _cores(text: str, now: float) -> float:
    sign, rest = (text[0], text[1:]) if text[0] in "+-" else ("", text)
    value = _amount("--cores", rest)
    found = {"+": now + value, "-": now - value, "": value}[sign]
    if found <= 0:
        raise UsageError(f"--cores {text}: {found:g} cores would be left of {now:g}")
    return found


def _speed(stage: str, text: str) -> float:
    found = _TIMES.fullmatch(text)
    if found is None or not 0 < float(text) <= SPEED_MAX:
        raise UsageError(f"--speed {stage}={text}: give how many times as fast, such as 2 or 0.5, up to {SPEED_MAX:g}")
    return float(text)


def _amount(option: str, text: str) -> float:
    found = _AMOUNT.fullmatch(text)
    value = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < value <= ASKED_MAX:
        raise UsageError(f"{option} {text!r}: give a number from 1, such as 4, 200M or 25G")
    return value


def show_what_if(
    at: ControllerAt, pipeline: str, question: WhatIfQuestion, *, over_s: float, price: float, as_json: bool
) -> int:
    """Measure for some seconds, ask the model, and show its answer; the exit code. Raises CliError."""
    asked_of(question, math.inf)
    if not (math.isfinite(over_s) and math.isfinite(price)):
        raise UsageError("--over and --price are numbers")
    with Client(at) as client:
        try:
            before = reading_of(client.status(pipeline), pipeline, time.monotonic())
            time.sleep(over_s)
            after = reading_of(client.status(pipeline), pipeline, time.monotonic())
            if before.groups != after.groups:
                raise ReadingError("its tasks were changed meanwhile; ask again")
            window = window_of(before, after)
            model = model_of(after, window)
            answer = what_if(model, asked_of(question, model.limits.cores), bytes_left(after))
        except ReadingError as error:
            raise CliError(f"pipeline {pipeline!r} cannot be judged: {error}") from error
        except ValueError as error:
            raise UsageError(str(error)) from error
    if as_json:
        return print_json({"pipeline": pipeline, "seconds": window.seconds, **_plain(answer, model, price)})
    _print(pipeline, window.seconds, answer, model, price)
    return 0


def _plain(answer: ForecastAnswer, model: ThroughputModel, price: float) -> dict[str, Any]:
    rows = {name: getattr(answer, name) for name in ("now", "then", "best")}
    return {name: _row(row, model, price) for name, row in rows.items()} | {"fit": round(model.fit, 4)}


def _row(row: Forecast, model: ThroughputModel, price: float) -> dict[str, Any]:
    core_s = row.left_core_s
    return {
        "records_s": row.prediction.records_s,
        "bytes_s": row.prediction.records_s * model.stored_bytes,
        "bottleneck": row.prediction.bottleneck,
        "replicas": dict(row.replicas),
        "cores": row.cores,
        "left_s": row.left_s,
        "left_core_s": core_s,
        "left_cost": core_s / 3600 * price if price and core_s is not None else None,
    }


def _print(pipeline: str, seconds: float, answer: ForecastAnswer, model: ThroughputModel, price: float) -> None:
    out = console()
    out.print(title(pipeline, f"by a model of the last {seconds:.0f} s; nothing was changed"))
    out.print()
    names = ("", "records/s", "input/s", "bottleneck", "cores", "time left", "core-hours", "cost")
    rows: list[tuple[str, ...]] = []
    for name, item in (("now", answer.now), ("then", answer.then), ("with the best replicas", answer.best)):
        row = _row(item, model, price)
        left, core_s, cost = row["left_s"], row["left_core_s"], row["left_cost"]
        rows.append(
            (
                name,
                f"{row['records_s']:,.0f}",
                megabytes(int(row["bytes_s"])),
                safe(row["bottleneck"]),
                f"{item.cores:g}",
                f"{left / 60:,.1f} min" if left is not None else "",
                f"{core_s / 3600:,.2f}" if core_s is not None else "",
                f"{cost:,.2f}" if cost is not None else "",
            )
        )
    used = len(names) if price else len(names) - 1
    out.print(plain_table(names[:used], [row[:used] for row in rows], right=(1, 2, 4, 5, 6, 7)[: used - 2]))
    out.print()
    table = [
        (safe(chain), *(str(each.replicas.get(chain, "")) for each in (answer.now, answer.then, answer.best)))
        for chain in answer.now.replicas
    ]
    out.print(plain_table(("tasks of", "now", "then", "best"), table, right=(1, 2, 3)))
    if abs(model.fit - 1) > 0.15:
        out.print(
            f"  the pipeline reaches {model.fit:.2f} of the model's speed; each row is scaled by that", style=FAINT
        )
