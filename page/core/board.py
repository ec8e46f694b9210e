"""Rows by table and key, as JSON, and what changed since somebody asked last. Pure.

Every viewer is sent the whole board once and each change after it, so a change is written once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable

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
