"""The order of samples: a pure function of (layout, seed, pass, position), with an inverse.

A shuffled order is usually a table: as long as the dataset, rebuilt at every start, and different as soon as the
number of ranks differs. Here it is computed. `Order.locate` maps any position to a row and `Order.inverse` maps any
row to its position, both in constant time, so a resume costs the same at position 0 and at position 10^12, and
"which sample was position p?" and "when is this row read?" are the same arithmetic in two directions.

Construction
------------
*Permutation.* A keyed permutation of [0, n) is a balanced Feistel network over Z_a x Z_a with a = ceil(sqrt(n)): a
value is the pair (left, right) = divmod(value, a), and one round maps (left, right) to (right, left + F(right) mod a).
Each round is invertible whatever F is, therefore the whole is a bijection of [0, a^2). Values at or above n are mapped
again until they fall below it (cycle walking): a bijection restricted to a subset along its own cycles is a bijection
of the subset, and its inverse walks back the same way. Since a^2 - n <= 2 sqrt(n), the walk is rare: one value in 500
at n = 10^6, where a network on bits would map up to three values in four again. F is a keyed multiply-xorshift mixer
(the finaliser of splitmix64 with other shifts), cut to [0, a) by multiply and shift, without a division.

*Modes.* `sequential` is the identity; `full` is one permutation of all rows. `windowed`, the default, has two levels,
so that a reader touches a bounded part of the dataset at a time:

1. rows are cut into blocks of `block_rows` consecutive rows (over shard boundaries), and the blocks are permuted: the
   place of a block in that order is its slot;
2. `window_blocks` consecutive slots make a window, and the rows of a window are permuted among themselves, with a
   key of the window's own.

*The short block.* When `block_rows` does not divide n the last block is short, and it may land in any slot p. Slots
before p start at slot * block_rows, slots after it start lower by the rows that the short block lacks. That is the
only irregularity: a window that holds the short block is smaller by as many rows, and the last window may have fewer
slots. Windows therefore have at most three sizes, and each size is permuted apart.

*Keys.* Each permutation has a key from (seed, pass, level), and each window one from its number besides; so two passes
have unrelated orders, and windows of equal size too.

What it is not
--------------
It is not encryption: six rounds of a fast mixer mix well by the measures of `docs/design/order.md` and resist nobody.
Of five or six values not every permutation comes equally often over the keys, though each value does in each place.
And a window shuffles only its own blocks: rows of one block stay within `window_blocks * block_rows` positions of each
other.

Prior art: Luby and Rackoff (1988) for the network; Black and Rogaway, "Ciphers with arbitrary finite domains" (2002),
for the network on Z_a x Z_b and for cycle walking; Steele, Lea and Flood (2014) for splitmix64.
"""

import enum
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

U64: TypeAlias = NDArray[np.uint64]
I64: TypeAlias = NDArray[np.int64]

#: changes whenever the same arguments give another order; checkpoints carry it
CONSTRUCTION: Final = 1
#: a = ceil(sqrt(n)) then fits 31 bits, and (32 bits of hash) * a fits 64
SAMPLES_MAX: Final = 1 << 62
ROUNDS: Final = 6
#: positions in so many windows are permuted window by window, with one key each; else with a key a position
WINDOWS_APART_MAX: Final = 8
BLOCK_ROWS_DEFAULT: Final = 64
WINDOW_BLOCKS_DEFAULT: Final = 256

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_A: Final = 0xBF58476D1CE4E5B9
_MIX_B: Final = 0x94D049BB133111EB
_U_GOLDEN: Final = np.uint64(_GOLDEN)
_U_MIX_A: Final = np.uint64(_MIX_A)
_U_MIX_B: Final = np.uint64(_MIX_B)
_U_30: Final = np.uint64(30)
_U_27: Final = np.uint64(27)
_U_31: Final = np.uint64(31)
_U_32: Final = np.uint64(32)

_LEVEL_BLOCKS: Final = 1
_LEVEL_ROWS: Final = 2
_LEVEL_FULL: Final = 3


class OrderMode(enum.Enum):
    """How far a row may travel: not at all, within its window, anywhere."""

    SEQUENTIAL = "sequential"
    WINDOWED = "windowed"
    FULL = "full"


def _mix(value: int) -> int:
    """Splitmix64's finaliser over a Python int, modulo 2^64."""
    value = ((value ^ (value >> 30)) * _MIX_A) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_B) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: U64) -> U64:
    """`_mix` over an array; unsigned array arithmetic wraps modulo 2^64."""
    values = (values ^ (values >> _U_30)) * _U_MIX_A
    values = (values ^ (values >> _U_27)) * _U_MIX_B
    return values ^ (values >> _U_31)


def derive_key(seed: int, pass_: int, level: int) -> int:
    """The 64-bit key of one permutation level; any change of an argument gives an unrelated key."""
    key = _mix((seed + _GOLDEN) & _MASK)
    key = _mix((key ^ _mix((pass_ + 2 * _GOLDEN) & _MASK)) & _MASK)
    return _mix((key + level * _GOLDEN) & _MASK)


def distinct(values: I64) -> I64:
    """The distinct values, sorted. What `numpy.unique` does too, after it has imported masked arrays for 50 ms."""
    ordered = np.sort(values)
    found: I64 = ordered[np.concatenate((np.ones(min(ordered.size, 1), dtype=np.bool_), ordered[1:] != ordered[:-1]))]
    return found


def _round_keys(keys: U64) -> list[U64]:
    return [_mix_array(keys + np.uint64(((number + 1) * _GOLDEN) & _MASK)) for number in range(ROUNDS)]


def _shift(right: U64, key: U64, side: np.uint64) -> U64:
    """F(right) in [0, side): the high half of a keyed mix, scaled by multiply and shift."""
    mixed = (right ^ key) * _U_MIX_A
    mixed ^= mixed >> _U_32
    mixed *= _U_MIX_B
    mixed >>= _U_32
    mixed *= side
    mixed >>= _U_32
    return mixed


def _network(values: U64, side: np.uint64, keys: Sequence[U64]) -> U64:
    left = values // side
    right = values - left * side
    for key in keys:
        total = left + _shift(right, key, side)
        # both terms are below side, so one conditional subtraction is the modulus; below side it wraps to huge
        np.minimum(total, total - side, out=total)
        left, right = right, total
    return left * side + right


def _network_back(values: U64, side: np.uint64, keys: Sequence[U64]) -> U64:
    left = values // side
    right = values - left * side
    for key in reversed(keys):
        total = right - _shift(left, key, side)
        # a negative difference wrapped to huge, and adding side brings it back below side
        np.minimum(total, total + side, out=total)
        left, right = total, left
    return left * side + right


def _walk(values: U64, n: int, keys: Sequence[U64], step: Callable[[U64, np.uint64, Sequence[U64]], U64]) -> U64:
    """Apply `step` until every value is below n. `keys` hold one key for all values, or one each."""
    side = np.uint64(isqrt(n - 1) + 1)
    limit = np.uint64(n)
    out = step(values, side, keys)
    astray = np.flatnonzero(out >= limit)
    while astray.size:
        out[astray] = step(out[astray], side, [key if key.size == 1 else key[astray] for key in keys])
        astray = astray[out[astray] >= limit]
    return out


def walk_forth(values: U64, n: int, keys: Sequence[U64]) -> U64:
    """Images [k] of `values` [k], each below n, by the network of `keys`, which hold one key for all, or one each."""
    return _walk(values, n, keys, _network)


def _walk_back(values: U64, n: int, keys: Sequence[U64]) -> U64:
    return _walk(values, n, keys, _network_back)


#: like `walk_forth`
Walk: TypeAlias = Callable[[U64, int, Sequence[U64]], U64]


@dataclass(frozen=True, slots=True, eq=False)
class Windowed:
    """All that a windowed order is computed from."""

    #: rows a block, samples, the short block's slot, the rows that it lacks, blocks a window
    blocks: tuple[int, int, int, int, int]
    row_key: int
    #: round keys of the permutation of blocks
    block_keys: Sequence[U64]
    #: [shards] rows up to each shard's end
    ends: I64


@dataclass(frozen=True, slots=True)
class Loops:
    """Compiled arithmetic of a shell that has some; it must give the same as this module's own."""

    walk: Walk
    #: like `Order.locate` in the windowed mode
    locate: Callable[[Windowed, I64], tuple[I64, I64]]


class Permutation:
    """A keyed permutation of [0, n), 1 <= n <= 2^62, computed per value; memory does not depend on n."""

    __slots__ = ("_walk", "keys", "n")

    def __init__(self, n: int, key: int, walk: Walk = walk_forth) -> None:
        if not 1 <= n <= SAMPLES_MAX:
            raise ValueError(f"a permutation needs 1 to 2^62 values, got {n}")
        self.n = n
        self.keys = _round_keys(np.array([key & _MASK], dtype=np.uint64))
        self._walk = walk

    def apply(self, values: U64) -> U64:
        """Images of `values` (each below n), of the same shape [k]."""
        return self._walk(values, self.n, self.keys)

    def inverse(self, values: U64) -> U64:
        """The values whose images are `values` (each below n), of the same shape [k]."""
        return _walk_back(values, self.n, self.keys)

    def at(self, value: int) -> int:
        """`apply` for one Python int: some microseconds, where a one-element array costs a hundred."""
        if not 0 <= value < self.n:
            raise IndexError(f"{value} is outside of this permutation of {self.n}")
        side = isqrt(self.n - 1) + 1
        keys = [int(key[0]) for key in self.keys]
        while True:
            left, right = divmod(value, side)
            for key in keys:
                mixed = ((right ^ key) * _MIX_A) & _MASK
                mixed = ((mixed ^ (mixed >> 32)) * _MIX_B) & _MASK
                left, right = right, (left + (((mixed >> 32) * side) >> 32)) % side
            value = left * side + right
            if value < self.n:
                return value


class SampleLayout:
    """Where samples lie: prefix sums over the sequences per shard (8 bytes a shard) and a root hash over them.

    `identity` is whatever else the root shall bind, such as the shards' checksums. Shards may be empty.
    """

    __slots__ = ("ends", "root", "samples")

    def __init__(self, sequences: I64, identity: bytes = b"") -> None:
        counts = np.asarray(sequences, dtype=np.int64)
        if counts.ndim != 1 or (counts < 0).any():
            raise ValueError("a layout needs a flat array of sequences per shard, none negative")
        self.ends: I64 = np.cumsum(counts, dtype=np.int64)
        self.samples = int(self.ends[-1]) if counts.size else 0
        if self.samples > SAMPLES_MAX:
            raise ValueError(f"a layout holds at most 2^62 samples, got {self.samples}")
        digest = hashlib.blake2b(b"headrace layout 1\0", digest_size=16)
        digest.update(counts.astype("<i8").tobytes())
        digest.update(identity)
        self.root = digest.hexdigest()

    @property
    def shards(self) -> int:
        """How many shards, empty ones included."""
        return int(self.ends.size)

    def split(self, rows: I64) -> tuple[I64, I64]:
        """Rows of the whole dataset to (shard [k], row in the shard [k])."""
        shard = np.searchsorted(self.ends, rows, side="right").astype(np.int64)
        return shard, rows - self._starts(shard)

    def join(self, shard: I64, row: I64) -> I64:
        """(shard [k], row in the shard [k]) to rows of the whole dataset; raises IndexError outside of it."""
        if shard.size == 0:
            return np.zeros(0, dtype=np.int64)
        if int(shard.min()) < 0 or int(shard.max()) >= self.shards:
            raise IndexError(f"the layout has shards 0 to {self.shards - 1}, asked for {shard.min()} to {shard.max()}")
        rows = self._starts(shard) + row
        if bool((row < 0).any()) or bool((rows >= self.ends[shard]).any()):
            raise IndexError("a row lies outside of its shard")
        return rows

    def _starts(self, shard: I64) -> I64:
        return np.where(shard > 0, self.ends[np.maximum(shard, 1) - 1], 0)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Slots of permuted blocks, of which one is short: the arithmetic between positions and slots."""

    rows: int
    samples: int
    #: the slot where the short block landed, and the rows that it lacks (0 when all blocks are full)
    short_slot: int
    lacking: int

    def start(self, slots: I64) -> I64:
        """First position of each slot; for the slot after the last, the number of samples."""
        return np.minimum(slots * self.rows - np.where(slots > self.short_slot, self.lacking, 0), self.samples)

    def find(self, positions: I64) -> tuple[I64, I64]:
        """(slot, offset in it) of each position."""
        beyond = positions >= (self.short_slot + 1) * self.rows - self.lacking
        shifted = positions + np.where(beyond, self.lacking, 0)
        slots = shifted // self.rows
        return slots, shifted - slots * self.rows


class Order:
    """The order of one pass: `locate` maps positions to rows, `inverse` maps rows to positions.

    Arguments: `seed` and `pass_` are non-negative ints below 2^64; `block_rows` is in rows, `window_blocks` in blocks.
    """

    __slots__ = (
        "_blocks",
        "_loops",
        "_permutation",
        "_row_key",
        "_walk",
        "_windowed",
        "block_rows",
        "layout",
        "mode",
        "pass_",
        "seed",
        "window_blocks",
    )

    def __init__(
        self,
        layout: SampleLayout,
        seed: int = 0,
        pass_: int = 0,
        mode: OrderMode = OrderMode.WINDOWED,
        window_blocks: int = WINDOW_BLOCKS_DEFAULT,
        block_rows: int = BLOCK_ROWS_DEFAULT,
        loops: Loops | None = None,
    ) -> None:
        for name, value in (("seed", seed), ("pass", pass_)):
            if not 0 <= value <= _MASK:
                raise ValueError(f"{name} must lie in [0, 2^64), got {value}")
        if not 1 <= block_rows <= 1 << 31 or not 1 <= window_blocks <= 1 << 31:
            raise ValueError(f"block_rows and window_blocks lie in [1, 2^31], got {block_rows} and {window_blocks}")
        self.layout = layout
        self.seed = seed
        self.pass_ = pass_
        self.mode = mode
        self.window_blocks = window_blocks
        self.block_rows = block_rows
        self._loops = loops
        self._walk = walk = walk_forth if loops is None else loops.walk
        self._row_key = derive_key(seed, pass_, _LEVEL_ROWS)
        samples = max(layout.samples, 1)
        if mode is OrderMode.FULL:
            self._permutation = Permutation(samples, derive_key(seed, pass_, _LEVEL_FULL), walk)
            self._blocks = _Blocks(block_rows, samples, 0, 0)
        else:
            count = -(-samples // block_rows)
            self._permutation = Permutation(count, derive_key(seed, pass_, _LEVEL_BLOCKS), walk)
            last = int(self._permutation.inverse(np.array([count - 1], dtype=np.uint64))[0])
            self._blocks = _Blocks(block_rows, samples, last, count * block_rows - samples)
        blocks = self._blocks
        sizes = (blocks.rows, blocks.samples, blocks.short_slot, blocks.lacking, window_blocks)
        self._windowed = Windowed(sizes, self._row_key, self._permutation.keys, layout.ends)

    def locate(self, positions: U64) -> tuple[I64, I64]:
        """Positions [k], each below `layout.samples`, to (shard [k], row in the shard [k])."""
        places = self._checked(positions)
        if self.mode is OrderMode.FULL:
            places = self._permutation.apply(places.view(np.uint64)).view(np.int64)
        elif self.mode is OrderMode.WINDOWED and places.size:
            if self._loops is not None:
                return self._loops.locate(self._windowed, places)
            slots, offsets = self._blocks.find(self._within_windows(places, self._blocks.find(places)[0], self._walk))
            blocks = self._permutation.apply(slots.view(np.uint64)).view(np.int64)
            places = blocks * self.block_rows + offsets
        return self.layout.split(places)

    def inverse(self, shard: I64, row: I64) -> U64:
        """(shard [k], row in the shard [k]) to the positions [k] at which they are read."""
        rows = self.layout.join(np.asarray(shard, dtype=np.int64), np.asarray(row, dtype=np.int64))
        if self.mode is OrderMode.FULL:
            return self._permutation.inverse(rows.view(np.uint64))
        if self.mode is OrderMode.WINDOWED and rows.size:
            blocks = rows // self.block_rows
            slots = self._permutation.inverse(blocks.view(np.uint64)).view(np.int64)
            places = self._blocks.start(slots) + rows - blocks * self.block_rows
            rows = self._within_windows(places, slots, _walk_back)
        return rows.view(np.uint64)

    def _checked(self, positions: U64) -> I64:
        values = np.asarray(positions, dtype=np.uint64)
        if values.size and int(values.max()) >= self.layout.samples:
            raise IndexError(f"position {values.max()} is past the end of a pass of {self.layout.samples} samples")
        return values.view(np.int64)

    def _within_windows(self, places: I64, slots: I64, walk: Walk) -> I64:
        """Permute each place among the places of its window; `slots` are the slots that the places lie in."""
        windows = slots // self.window_blocks
        # neighbours in the order share a window, whose one key then serves all of them
        if int(windows.min()) == int(windows.max()):
            return self._within_window(int(windows[0]), places, walk)
        out = np.empty_like(places)
        found = distinct(windows)
        if found.size <= WINDOWS_APART_MAX:
            for window in found.tolist():
                chosen = np.flatnonzero(windows == window)
                out[chosen] = self._within_window(window, places[chosen], walk)
            return out
        starts = self._blocks.start(windows * self.window_blocks)
        sizes = self._blocks.start((windows + 1) * self.window_blocks) - starts
        keys = self._window_keys(windows)
        local = (places - starts).view(np.uint64)
        for size in distinct(sizes).tolist():
            chosen = np.flatnonzero(sizes == size)
            moved = walk(local[chosen], size, [key[chosen] for key in keys])
            out[chosen] = starts[chosen] + moved.view(np.int64)
        return out

    def _within_window(self, window: int, places: I64, walk: Walk) -> I64:
        """Permute places that all lie in one window."""
        first, end = self._blocks.start(np.array([window, window + 1]) * self.window_blocks).tolist()
        local = (places - first).view(np.uint64)
        moved = walk(local, end - first, self._window_keys(np.array([window])))
        found: I64 = moved.view(np.int64) + first
        return found

    def _window_keys(self, windows: I64) -> list[U64]:
        numbers = windows.view(np.uint64)
        return _round_keys(_mix_array(np.uint64(self._row_key) + numbers * _U_GOLDEN))
