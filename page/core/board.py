"""What a run's page shows: rows by table and key, a timeline of bounded length, and loaders that report. Pure.

Every viewer is sent the whole board once and each change after it, so a change is written once for all of them.

When there are as many points as fit, each second one goes and the points to come stand twice as far apart.

A report says sums, and who it is; nothing of it is believed but that it is a number within bounds. Who is silent is
let go of, and no more than so many are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

#: Bytes of one row; a longer one is not shown.
ROW_BYTES_MAX = 256 << 10
#: Rows of one table; what comes beyond is not shown, but for its sums.
ROWS_MAX = 50_000
#: Lists and objects within each other of what JSON's writer refuses; and the first number that it refuses.
NESTING_MAX, NUMBERS_END = 16, 1 << 63


def written(value: object) -> bytes:
    """JSON of a value that came from files or tasks, whatever its texts and numbers are."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(_writable(value))


def _writable(value: object, depth: int = 0) -> object:
    """What is no UTF-8 as an escape, as of a file's name; a long number as text; of what is nested deep the top."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping | list | tuple) and depth >= NESTING_MAX:
        return "…"
    if isinstance(value, Mapping):
        return {_writable(str(name)): _writable(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(item, depth + 1) for item in value]
    return str(value) if isinstance(value, int) and abs(value) >= NUMBERS_END else value


class Board:
    """What the page shows."""

    def __init__(self) -> None:
        #: By table and key, the JSON of the key and the row.
        self._rows: dict[str, dict[str, bytes]] = {}
        self._changed: dict[str, set[str]] = {}
        #: Rows that were too many or too long.
        self.left_out = 0

    def put(self, table: str, key: str, row: object) -> None:
        """Set a row; `bytes` are JSON already. A row that stands as it is changes nothing."""
        data = row if isinstance(row, bytes) else written(row)
        rows = self._rows.setdefault(table, {})
        if len(data) > ROW_BYTES_MAX or (key not in rows and len(rows) >= ROWS_MAX):
            self.left_out += 1
            return
        item = written(key) + b":" + data
        if rows.get(key) != item:
            rows[key] = item
            self._changed.setdefault(table, set()).add(key)

    def drop(self, table: str, key: str) -> None:
        """A row is no more."""
        if self._rows.get(table, {}).pop(key, None) is not None:
            self._changed.setdefault(table, set()).add(key)

    def keep(self, table: str, keys: Iterable[str]) -> None:
        """Drop every row of a table but these."""
        for key in self._rows.get(table, {}).keys() - set(keys):
            self.drop(table, key)

    def whole(self) -> bytes:
        """All rows, as a JSON object by table."""
        return _object((table, list(rows.values())) for table, rows in self._rows.items())

    def change(self) -> bytes:
        """The rows that changed since this was asked last; null for one that is no more. Empty for no change."""
        changed, self._changed = self._changed, {}
        if not changed:
            return b""
        tables: list[tuple[str, list[bytes]]] = []
        for table, keys in changed.items():
            rows = self._rows[table]
            tables.append((table, [rows.get(key) or written(key) + b":null" for key in keys]))
        return _object(tables)


def _object(tables: Iterable[tuple[str, list[bytes]]]) -> bytes:
    return b"{" + b",".join(orjson.dumps(name) + b":{" + b",".join(rows) + b"}" for name, rows in tables) + b"}"


#: Points of one series, and marks of all.
POINTS_MAX = 600
MARKS_MAX = 400
#: Seconds between two points at first.
STEP_S = 1.0
#: Characters of a mark.
WORDS_MAX = 300


class Timeline:
    """The series of each pipeline, and marks, as rows of a board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        #: By pipeline: the seconds between two points, the last one's time, and the keys of all.
        self._series: dict[str, tuple[float, float, list[str]]] = {}
        self._marks: list[str] = []
        self._made = 0

    def point(self, pipeline: str, at: float, values: Mapping[str, float]) -> None:
        """Note what holds at this time, in seconds since 1970, if it is time for a point."""
        step, last, keys = self._series.get(pipeline, (STEP_S, float("-inf"), []))
        if at < last + step * 0.9:
            return
        if len(keys) >= POINTS_MAX:
            for key in keys[1::2]:
                self._board.drop("points", key)
            step, keys = step * 2, keys[0::2]
        self._made += 1
        key = f"{pipeline}#{self._made}"
        self._board.put("points", key, {"pipeline": pipeline, "at": round(at, 1), **values})
        self._series[pipeline] = step, at, [*keys, key]

    def mark(self, at: float, kind: str, words: str, pipeline: str = "") -> None:
        """Note that something happened."""
        self._made += 1
        key = str(self._made)
        self._board.put("marks", key, {"at": round(at, 1), "kind": kind, "words": words[:WORDS_MAX], "of": pipeline})
        self._marks.append(key)
        if len(self._marks) > MARKS_MAX:
            self._board.drop("marks", self._marks.pop(0))

    def forget(self, pipeline: str) -> None:
        """A pipeline is no more, or begins anew."""
        for key in self._series.pop(pipeline, (0.0, 0.0, []))[2]:
            self._board.drop("points", key)


#: Loaders at once, characters of a name, and ranks.
LOADERS_MAX, NAME_MAX, RANKS_MAX = 1024, 128, 1 << 24
#: Seconds of silence after which a loader is let go of.
SILENT_S_MAX = 60.0
#: The largest sum: what every browser reads exactly.
SUM_MAX = 1 << 53
_SUMS = ("tokens", "position", "batches", "data_wait_s", "elapsed_s")


class ReportRefused(Exception):  # noqa: N818 - named after what is so
    """What is no report of a loader, and why."""


@dataclass(frozen=True, slots=True)
class _Heard:
    at: float
    sums: Mapping[str, float]


class Loaders:
    """The loaders of which a page knows, as rows of a board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._heard: dict[str, _Heard] = {}

    def take(self, given: Mapping[str, Any], now: float) -> None:
        """Note a report; `now` is in seconds. Raises ReportRefused."""
        name, rank = given.get("name"), given.get("rank")
        if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
            raise ReportRefused(f"a loader's name has from 1 to {NAME_MAX} characters")
        if type(rank) is not int or not 0 <= rank < RANKS_MAX:
            raise ReportRefused("a rank is a whole number, from 0 on")
        sums = {key: _number(key, given.get(key)) for key in _SUMS}
        key = f"{rank} {name}"
        before = self._heard.get(key)
        if before is None and len(self._heard) >= LOADERS_MAX:
            raise ReportRefused(f"{LOADERS_MAX} loaders report already")
        self._heard[key] = _Heard(now, sums)
        row: dict[str, Any] = {"name": name, "rank": rank, "position": sums["position"], "batches": sums["batches"]}
        if before is not None and now > before.at:
            more = {item: sums[item] - before.sums[item] for item in _SUMS}
            if min(more["tokens"], more["data_wait_s"], more["elapsed_s"]) >= 0:
                row["tokens_s"] = more["tokens"] / (now - before.at)
                row["wait"] = min(1.0, more["data_wait_s"] / more["elapsed_s"]) if more["elapsed_s"] else None
        self._board.put("loaders", key, row)

    def expire(self, now: float) -> None:
        """Let go of those that have been silent for long."""
        for key in [key for key, heard in self._heard.items() if now - heard.at > SILENT_S_MAX]:
            del self._heard[key]
            self._board.drop("loaders", key)


def _number(key: str, value: object) -> float:
    # A comparison with NaN is false.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SUM_MAX:
        raise ReportRefused(f"{key} is a number from 0 to 2^53")
    return value
