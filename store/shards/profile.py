"""The `.profile` file of a shard: how its records are distributed, as counts that add up.

A profile is some **series**, each a mapping of a key to a count, so the profile of a version is the sum of its shards'.
Nothing is drawn at random and no bin follows from a logarithm: the same records give the same bytes on any machine.
`headrace.store.history.audit` compares profiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.store import NUMBER_MAX, Buffer, FormatError, ObjectStore
from headrace.store.shards.shard import read_header, read_shard
from headrace.store.shards.sidecars import SCORE_PREFIX

PROFILE_ROLE = "profile"
PROFILE_SUFFIX = ".profile"
PROFILE_FORMAT = 1
#: Bytes of a file, series in it, keys of one series and characters of a name that a reader takes.
PROFILE_BYTES_MAX = 8 << 20
SERIES_MAX = 1024
KEYS_MAX = 1 << 16
NAME_CHARACTERS_MAX = 200
#: Names of one series that a shard keeps: the most frequent; the others count as OTHER.
NAMES_MAX = 256
OTHER = "(other)"

LENGTH, CONTENT, SOURCE, DOMAIN, LANGUAGE, VERDICT = "length", "content", "source", "domain", "language", "verdict"
#: Bins of contents, by the highest bits of a hash.
CONTENT_BITS = 12
_HASH = np.uint32(2654435761)
#: Of a shard with more tokens not all are counted, but at least so many, and at least each of so many.
ALL_TOKENS_MAX = 1 << 18
TOKEN_STEP_MAX = 32
#: Of texts one pair of bytes in so many is counted.
BYTE_STEP = 16
#: Of a shard with more documents the fields of every so many are counted.
ALL_FIELDS_MAX = 1 << 13
FIELD_STEP = 8
#: A bin of numbers is a 32nd of a power of two wide: 3 % at most. Numbers below 2^-40 count as 0, those above 2^80
#: as 2^80.
_PARTS, _LOW, _HIGH = 32, -40, 80
_DOMAIN = r'"url"\s*:\s*"[a-zA-Z]+://(?P<name>[^/":?#\\]+)'
_LANGUAGE = r'"language"\s*:\s*"(?P<name>[^"\\]+)"'


class SeriesKind(Enum):
    """What the keys of a series are."""

    #: bins of numbers, in their order (`bins_of`)
    NUMBERS = "numbers"
    #: names
    NAMES = "names"
    #: bins of a hash
    HASHES = "hashes"


@dataclass(slots=True)
class Series:
    """How often each key was seen."""

    kind: SeriesKind
    counts: Counter[Any] = field(default_factory=Counter[Any])

    @property
    def total(self) -> int:
        """All counts together."""
        return sum(self.counts.values())


class Profile(dict[str, Series]):
    """Series by name."""

    def add(self, other: Mapping[str, Series]) -> None:
        """Add another profile to this one. Raises FormatError where a series of one name is of two kinds, and for more
        than SERIES_MAX of them: each shard may name others.
        """
        for name, series in other.items():
            if name not in self and len(self) >= SERIES_MAX:
                raise FormatError(f"the profiles of these shards have more than {SERIES_MAX:,} series together")
            mine = self.setdefault(name, Series(series.kind))
            if mine.kind is not series.kind:
                raise FormatError(
                    f"series {name!r} is of {series.kind.value} in one profile, {mine.kind.value} in another"
                )
            mine.counts.update(series.counts)
            if len(mine.counts) > KEYS_MAX:
                mine.counts = _capped(mine.counts, KEYS_MAX)


def bins_of(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The bin `[n]` of each number `[n]`: in their order, and the same on any machine."""
    numbers = np.clip(np.nan_to_num(np.asarray(values, np.float64)), -(2.0**_HIGH), 2.0**_HIGH)
    mantissa, exponent = np.frexp(np.abs(numbers))
    part = ((mantissa - 0.5) * 2 * _PARTS).astype(np.int64)
    found = (exponent.astype(np.int64) - _LOW) * _PARTS + part + 1
    return np.where((exponent > _LOW) & (mantissa > 0), np.where(numbers < 0, -found, found), 0)


def middle_of(number: int) -> float:
    """The middle of a bin of numbers."""
    if not number:
        return 0.0
    exponent, part = divmod(abs(number) - 1, _PARTS)
    value = float(np.ldexp(0.5 + part / (2 * _PARTS), exponent + _LOW))
    width = float(np.ldexp(1 / (2 * _PARTS), exponent + _LOW))
    # a count below 64 has a bin of its own
    middle = value if width <= 1 and value == int(value) else value + width / 2
    return -middle if number < 0 else middle


def quantile(series: Series, share: float) -> float:
    """The number below which this share of a series lies, within the width of a bin."""
    left = share * series.total
    for number in sorted(series.counts):
        left -= series.counts[number]
        if left <= 0:
            return middle_of(number)
    return 0.0


class ProfileBuilder:
    """Gathers the profile of one shard while it is written."""

    def __init__(self) -> None:
        self._profile = Profile()
        self._hashed = np.zeros(1 << CONTENT_BITS, np.int64)
        #: How often each token was seen, where a token has two bytes.
        self._short: npt.NDArray[np.int64] | None = None
        self._tokens_seen = self._rows_seen = 0

    def add(self, documents: pa.Table) -> None:
        """Count rows of a documents table; `tokens` are the length of each where it has no text."""
        names = documents.column_names
        if "text" in names:
            self.add_texts(documents.column("text"))
        elif documents.num_rows and bool(_numbers(documents.column("tokens")).any()):
            self._count(LENGTH, SeriesKind.NUMBERS, bins_of(_numbers(documents.column("tokens"))))
        folders: Counter[str] = Counter()
        for uri, count in _values_of(documents.column("source")).items():
            folders[str(uri).rpartition("/")[0]] += count
        self._named(SOURCE, folders)
        self._scores(documents)
        metadata: Any = documents.column("metadata")
        first, self._rows_seen = self._rows_seen, self._rows_seen + documents.num_rows
        whole = max(0, min(documents.num_rows, ALL_FIELDS_MAX - first))
        # a list: of an array of numpy's Arrow imports masked arrays
        drawn = range(whole + (-(first + whole)) % FIELD_STEP, documents.num_rows, FIELD_STEP)
        for column, weight in (
            (metadata.slice(0, whole), 1),
            (metadata.take(pa.array(list(drawn), pa.int64())), FIELD_STEP),
        ):
            self._fields(column, weight, has_language=any(name.endswith(".language") for name in names))

    def add_texts(self, texts: Any) -> None:
        """Count the bytes of texts, a column of strings, and some of their pairs."""
        chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
        for chunk in chunks:
            if not len(chunk):
                continue
            buffers: Any = chunk.buffers()
            offsets = np.frombuffer(buffers[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
            self._count(LENGTH, SeriesKind.NUMBERS, bins_of(np.diff(offsets)))
            data = buffers[2]
            if data is None:
                continue
            line = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
            even = len(line) - len(line) % 2
            pairs = line[0:even:BYTE_STEP].astype(np.uint32) << np.uint32(8) | line[1:even:BYTE_STEP]
            self._hash(pairs, BYTE_STEP)

    def token_counter(self, tokens: int, pad_id: int) -> Callable[[npt.NDArray[Any]], None]:
        """What takes the lines of a shard of so many tokens, one after the other, and counts all but padding."""
        step = min(max(tokens // ALL_TOKENS_MAX, 1), TOKEN_STEP_MAX)

        def take(line: npt.NDArray[Any]) -> None:
            drawn = line[-self._tokens_seen % step :: step]
            self._tokens_seen += len(line)
            if line.dtype.itemsize > 2:
                self._hash(drawn[drawn != pad_id].astype(np.uint32), step)
                return
            if self._short is None:
                self._short = np.zeros(1 << 16, np.int64)
            counts = np.bincount(drawn, minlength=1 << 16)
            counts[pad_id] = 0
            self._short += counts * step

        return take

    def finish(self, verdicts: Mapping[str, int]) -> Profile:
        """The profile, with what became of the records."""
        self._named(VERDICT, verdicts)
        if self._short is not None:
            bins = (np.arange(1 << 16, dtype=np.uint32) * _HASH) >> np.uint32(32 - CONTENT_BITS)
            self._hashed += np.bincount(bins, self._short, 1 << CONTENT_BITS).astype(np.int64)
        found = np.flatnonzero(self._hashed)
        if len(found):
            counts = zip(found.tolist(), self._hashed[found].tolist(), strict=True)
            self._profile[CONTENT] = Series(SeriesKind.HASHES, Counter(dict(counts)))
        for series in self._profile.values():
            if series.kind is SeriesKind.NAMES and len(series.counts) > NAMES_MAX:
                series.counts = _capped(series.counts, NAMES_MAX)
        return self._profile

    def _fields(self, metadata: Any, weight: int, *, has_language: bool) -> None:
        if metadata.null_count < len(metadata):
            for name, pattern in ((DOMAIN, _DOMAIN), (LANGUAGE, _LANGUAGE))[: 1 if has_language else 2]:
                found = _extracted(metadata, pattern)
                self._named(name, {key: count * weight for key, count in found.items()})

    def _scores(self, documents: pa.Table) -> None:
        for name in documents.column_names:
            if not name.startswith(SCORE_PREFIX):
                continue
            column: Any = documents.column(name).drop_null()
            short = LANGUAGE if name.endswith(".language") else name
            if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
                values = np.asarray(column.to_numpy(), np.float64)
                self._count(name, SeriesKind.NUMBERS, bins_of(values[~np.isnan(values)]))
            else:
                self._named(short, {_word(value): count for value, count in _values_of(column).items()})

    def _hash(self, values: npt.NDArray[np.uint32], weight: int) -> None:
        bins = (values * _HASH) >> np.uint32(32 - CONTENT_BITS)
        self._hashed += np.bincount(bins, minlength=1 << CONTENT_BITS) * weight

    def _count(self, name: str, kind: SeriesKind, keys: npt.NDArray[np.int64]) -> None:
        if len(keys):
            # not np.unique, which imports masked arrays
            low = int(keys.min())
            counts = np.bincount(keys - low)
            found = np.flatnonzero(counts)
            series = self._profile.setdefault(name[:NAME_CHARACTERS_MAX], Series(kind))
            series.counts.update(dict(zip((found + low).tolist(), counts[found].tolist(), strict=True)))

    def _named(self, name: str, counts: Mapping[str, int]) -> None:
        held: Counter[Any] = Counter()
        for key, count in counts.items():
            if count:
                held[key[:NAME_CHARACTERS_MAX]] += count
        if held:
            self._profile.setdefault(name[:NAME_CHARACTERS_MAX], Series(SeriesKind.NAMES)).counts.update(held)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _numbers(column: Any) -> npt.NDArray[np.int64]:
    return np.asarray(column.to_numpy(), np.int64)


def _values_of(column: Any) -> dict[Any, int]:
    # A tenth of a second to import, which no loader needs.
    import pyarrow.compute as pc

    counted: Any = pc.value_counts(column)
    return dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))


def _extracted(column: Any, pattern: str) -> dict[str, int]:
    """The values of a field of JSON objects, as the text has it first."""
    import pyarrow.compute as pc

    found: Any = pc.struct_field(pc.extract_regex(column.drop_null(), pattern=pattern), [0])
    return {str(value): count for value, count in _values_of(found.drop_null()).items()}


def _capped(counts: Counter[Any], keys_max: int) -> Counter[Any]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
    kept = Counter(dict(ordered[: keys_max - 1]))
    kept[OTHER if isinstance(ordered[0][0], str) else ordered[-1][0]] += sum(
        count for _, count in ordered[keys_max - 1 :]
    )
    return kept


def encode_profile(profile: Mapping[str, Series]) -> bytes:
    """The file of a profile."""
    body: dict[str, list[Any]] = {}
    for name, series in sorted(profile.items()):
        keys = sorted(key for key, count in series.counts.items() if count)
        body[name] = [series.kind.value, keys, [series.counts[key] for key in keys]]
    return msgpack.packb([PROFILE_FORMAT, body], use_bin_type=True)


def decode_profile(data: Buffer, what: str) -> Profile:
    """The profile that these bytes hold; FormatError, which calls them `what`, on any others."""
    try:
        if memoryview(data).nbytes > PROFILE_BYTES_MAX:
            raise ValueError(f"{memoryview(data).nbytes} bytes, the limit is {PROFILE_BYTES_MAX}")
        body: Any = msgpack.unpackb(
            data, raw=False, strict_map_key=True, max_array_len=KEYS_MAX, max_map_len=SERIES_MAX, max_ext_len=0
        )
        known, series = body
        if known != PROFILE_FORMAT:
            raise ValueError(f"format {known!r:.80}, this Headrace reads {PROFILE_FORMAT}: upgrade it")
        return Profile({_name(name): _series(*row) for name, row in series.items()})
    except (ValueError, TypeError, AttributeError, RecursionError, msgpack.UnpackException) as error:
        raise FormatError(f"{what} is no profile of a shard: {error}; restore it") from error


def measure_profile(
    store: ObjectStore, tokens: str, documents: pa.Table | None, verdicts: Mapping[str, int], count: int
) -> Profile:
    """The profile of a shard as its sink writes it, from its objects: the key of its tokens ("" for none), of which
    there are so many, and its documents. Raises ObjectMissing, FormatError.
    """
    builder = ProfileBuilder()
    if tokens:
        header = read_header(store, tokens)
        lines = read_shard(store, tokens, header)["tokens"].reshape(-1)
        builder.token_counter(count, int(header.metadata.get("pad_id", "0")))(lines)
    if documents is not None:
        builder.add(documents)
    return builder.finish(verdicts)


def _name(name: object) -> str:
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS_MAX:
        raise ValueError(f"a name {name!r:.80}")
    return name


def _series(kind: object, keys: object, counts: object) -> Series:
    known = SeriesKind(kind)
    if not isinstance(keys, list) or not isinstance(counts, list) or len(keys) != len(counts):
        raise ValueError("keys and counts of two lengths")
    wanted: type = str if known is SeriesKind.NAMES else int
    if not all(type(key) is wanted for key in keys) or len(set(keys)) != len(keys):
        raise ValueError(f"keys of {known.value} that are none, or twice")
    if wanted is int and not all(abs(key) <= NUMBER_MAX for key in keys):
        raise ValueError("a bin out of range")
    if not all(type(count) is int and 0 < count <= NUMBER_MAX for count in counts):
        raise ValueError("a count that is none")
    return Series(known, Counter(dict(zip(map(_name, keys) if wanted is str else keys, counts, strict=True))))
