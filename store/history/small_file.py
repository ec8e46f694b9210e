"""A small JSON file beside the ledger, which is only ever replaced by what follows from the one that stands.

Of two writers at one moment the second sees what the first wrote (`ObjectStore.update`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from headrace.store import Buffer, FormatError, ObjectMissing, ObjectStore

T = TypeVar("T")

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SmallFile(Generic[T]):
    """What holds one value of kind T under `key`, in at most `bytes_max` bytes.

    `parse` makes it of the fields of the file, or raises ValueError, KeyError, TypeError or AttributeError; of None
    where there is no file. `fields` is its inverse. `lost` says what is lost with the file.
    """

    key: str
    bytes_max: int
    lost: str
    parse: Callable[[Any], T]
    fields: Callable[[T], dict[str, Any]]

    def read(self, store: ObjectStore) -> T:
        """What stands in a store. Raises FormatError, StoreError."""
        try:
            return self.decode(store.get(self.key, 0, self.bytes_max + 1), store.uri)
        except ObjectMissing:
            return self.parse(None)

    def decode(self, data: Buffer, uri: str) -> T:
        """What these bytes say of the dataset at `uri`. Raises FormatError."""
        wrong = f"{uri}: {self.key} is malformed; restore it from a copy, or delete it: {self.lost}"
        if memoryview(data).nbytes > self.bytes_max:
            raise FormatError(f"{wrong} (more than {self.bytes_max} bytes)")
        try:
            found: Any = orjson.loads(data)
            if found["format"] != FORMAT:
                raise FormatError(f"{uri}: {self.key} has format {found['format']!r:.80}, not {FORMAT}: upgrade")
            return self.parse(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"{wrong} ({type(error).__name__}: {error!s:.200})") from error

    def encode(self, value: T) -> bytes:
        """The bytes of the file."""
        said = {"format": FORMAT, **self.fields(value)}
        return orjson.dumps(said, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    def update(self, store: ObjectStore, change: Callable[[T], T]) -> None:
        """Put what follows from what stands in its place. Raises what `change` raises, FormatError, StoreError."""

        def decide(standing: bytes | None) -> list[Buffer] | None:
            data = self.encode(change(self.parse(None) if standing is None else self.decode(standing, store.uri)))
            return None if data == standing else [data]

        store.update(self.key, decide)
