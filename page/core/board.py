"""What a run's page shows: rows by table and key, and a timeline of bounded length. Pure.

Every viewer is sent the whole board once and each change after it, so a change is written once for all of them.

When there are as many points as fit, each second one goes and the points to come stand twice as far apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson

#: Bytes of one row; a longer one is not shown.
ROW_BYTES_MAX = 256 << 10
#: Rows of one table; what comes beyond is not shown, but for its sums.
ROWS_MAX = 50_000


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
        data = row if isinstance(row, bytes) else orjson.dumps(row)
        rows = self._rows.setdefault(table, {})
        if len(data) > ROW_BYTES_MAX or (key not in rows and len(rows) >= ROWS_MAX):
            self.left_out += 1
            return
        item = orjson.dumps(key) + b":" + data
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
            tables.append((table, [rows.get(key) or orjson.dumps(key) + b":null" for key in keys]))
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
