"""`headrace cost`: what pipelines used, by pipeline, user or queue, and what that comes to by a price list."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.ui import FAINT, console, plain_table, print_json, title
from headrace.client import Client, CliError, ControllerAt, UsageError

if TYPE_CHECKING:
    from headrace.protos import control_pb2 as pb

#: Bytes that a price list may have, the largest price, and the characters of a currency.
PRICES_BYTES_MAX = 64 << 10
PRICE_MAX = 1e12
CURRENCY_MAX = 8
#: What a row may be of.
GROUPS = ("pipeline", "user", "queue")
NOBODY = "not known"


@dataclass(frozen=True, slots=True)
class Prices:
    """What a core for an hour costs, and 10^9 bytes read from the store, in a currency."""

    core_hour: float = 0.0
    read_gb: float = 0.0
    currency: str = ""


@dataclass(frozen=True, slots=True)
class Used:
    """What a pipeline used since its controller has it: seconds of cores, and bytes read as they are stored."""

    name: str
    pipelines: int
    core_s: float
    read_bytes: int

    def cost(self, prices: Prices) -> float:
        """What this comes to."""
        return self.core_s / 3600 * prices.core_hour + self.read_bytes / 1e9 * prices.read_gb


def show_cost(at: ControllerAt, *, by: str, prices_file: str, as_json: bool) -> int:
    """Ask the controller, add up, and show; the exit code. Raises CliError."""
    if by not in GROUPS:
        raise UsageError(f"--by {by!r}: give one of {', '.join(GROUPS)}")
    prices = read_prices(prices_file) if prices_file else None
    with Client(at) as client:
        used = used_by(client.status().pipelines, by)
    if as_json:
        rows = [asdict(row) | ({"cost": row.cost(prices)} if prices else {}) for row in used]
        return print_json({"by": by, "used": rows, "currency": prices.currency if prices else ""})
    _print(used, by, prices)
    return 0


def used_by(pipelines: Iterable[pb.PipelineStatus], by: str) -> list[Used]:
    """What was used by each pipeline, user or queue, who used most first."""
    sums: dict[str, Used] = {}
    for item in pipelines:
        name = {"pipeline": item.pipeline, "user": item.applied_by or NOBODY, "queue": item.queue or "no queue"}[by]
        sources = set(item.sources)
        before = sums.get(name, Used(name, 0, 0.0, 0))
        sums[name] = Used(
            name,
            before.pipelines + 1,
            before.core_s + sum(stage.cpu_s for stage in item.stages),
            before.read_bytes + sum(stage.stored_bytes for stage in item.stages if stage.stage in sources),
        )
    return sorted(sums.values(), key=lambda row: (-row.core_s, row.name))


def read_prices(path: str) -> Prices:
    """The prices of a TOML file: `core_hour`, `read_gb` and `currency`, each of which may be left out."""
    import tomllib

    try:
        with Path(path).open("rb") as file:
            data = file.read(PRICES_BYTES_MAX + 1)
        if len(data) > PRICES_BYTES_MAX:
            raise ValueError(f"it has more than {PRICES_BYTES_MAX} bytes")
        return _prices(tomllib.loads(data.decode()))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CliError(f"price list {path!r}: {why}") from error


def _prices(plain: Mapping[str, Any]) -> Prices:
    if strange := sorted(set(plain) - {"core_hour", "read_gb", "currency"}):
        raise ValueError(f"{strange[0]!r} is no price; it holds core_hour, read_gb and currency")
    currency = plain.get("currency", "")
    if not isinstance(currency, str) or len(currency) > CURRENCY_MAX:
        raise ValueError(f"currency is a text of at most {CURRENCY_MAX} characters, such as EUR")
    numbers = {name: plain.get(name, 0.0) for name in ("core_hour", "read_gb")}
    for name, value in numbers.items():
        if type(value) not in (int, float) or not (math.isfinite(value) and 0 <= value <= PRICE_MAX):
            raise ValueError(f"{name} is a number from 0 to {PRICE_MAX:g}")
    return Prices(**numbers, currency=currency)


def _print(used: Sequence[Used], by: str, prices: Prices | None) -> None:
    out = console()
    out.print(title("cost", "of the pipelines that `headrace status` shows"))
    if not used:
        out.print("  no pipeline: `headrace apply` starts one", style=FAINT)
        return
    headers, right = [by, "pipelines", "core-hours", "GB read"], [1, 2, 3]
    rows = [[row.name, str(row.pipelines), f"{row.core_s / 3600:,.3f}", f"{row.read_bytes / 1e9:,.3f}"] for row in used]
    if prices:
        headers, right = [*headers, f"cost {prices.currency}".strip()], [*right, 4]
        for cells, row in zip(rows, used, strict=True):
            cells.append(f"{row.cost(prices):,.2f}")
    if len(used) > 1:
        rows.append(["all", *_sums(used), *([f"{sum(row.cost(prices) for row in used):,.2f}"] if prices else [])])
    out.print_below(plain_table(headers, rows, right=right))


def _sums(used: Sequence[Used]) -> tuple[str, str, str]:
    core_s, read_bytes = sum(row.core_s for row in used), sum(row.read_bytes for row in used)
    return str(sum(row.pipelines for row in used)), f"{core_s / 3600:,.3f}", f"{read_bytes / 1e9:,.3f}"
