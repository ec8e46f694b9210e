"""The loops that fill a batch, as machine code: `headrace.loader.batch.compiled` calls them, and says when they are
loaded.

Rows lie in any number of mapped files, so they are passed by address and not as arrays: a list of arrays a call would
cost more than the copy. What keeps that safe: the caller holds the shards for as long as it calls; row numbers come
from the layout, whose counts each shard was held against when it was opened; and pieces were checked to lie within
their rows when the index was built. Everything stands in this one file, since numba looks for changes in no other.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

from headrace.store.files import own_cache

#: what numba builds from is no function to a checker of types
_builtin: Any = intrinsic
_array_at: Any = carray
config: Any = numba.config  # pyright: ignore[reportPrivateImportUsage]
Loop = TypeVar("Loop", bound=Callable[..., Any])

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_U_27 = np.uint64(27)
_U_30 = np.uint64(30)
_U_31 = np.uint64(31)
_U_32 = np.uint64(32)

_IGNORED_LABEL = np.int32(-100)
_NOTHING = -1
_LINE_BYTES = 64
#: a cache line of 32-bit tokens
_LINE_TOKENS = 16
#: blocks whose place and shard are remembered while positions are located; a window of the default order has 256
_KNOWN_BLOCKS = 1024
#: of a piece table's row
_PIECE_BYTES = 16
#: moves a piece, on average, after which sorting by insertion is given up
_MOVES_A_PIECE = 8
#: of LLVM's prefetch. On AMD's processors into the nearest cache and no other (0): in the second level it would drive
#: out the tokens that were just written, and whoever reads the batch next would wait for them. On one of Intel's
#: (a Xeon with AMX) a batch of 65,536 tokens that is copied so takes 48 us, and 25 by way of the second level (2)
_LOCALITY = 0 if binding.get_host_cpu_name().startswith("znver") else 2
#: rows between the one whose pieces are read and the one whose pieces are asked for
_ROWS_AHEAD = 12
#: tokens copied between two prefetches: so few that the misses of the next row spread over the copy of this one
_PIECE_TOKENS = 64

_U64 = types.Array(types.uint64, 1, "C")
_U64_2 = types.Array(types.uint64, 2, "C")
_I64 = types.Array(types.int64, 1, "C")
_I64_2 = types.Array(types.int64, 2, "C")
_I32 = types.Array(types.int32, 1, "C")
_I32_2 = types.Array(types.int32, 2, "C")
#: of a mapped file
_I32_READ = types.Array(types.int32, 1, "C", readonly=True)
_BOOL = types.Array(types.boolean, 1, "C")
_BOOL_2 = types.Array(types.boolean, 2, "C")
_I64_X5 = types.UniTuple(types.int64, 5)  # type: ignore[no-untyped-call]


def _compiled(signature: Any) -> Callable[[Loop], Loop]:
    """Compile for one signature, now; the machine code is kept under the user's cache folder where it can be."""

    def compile_(function: Loop) -> Loop:
        # without the GIL, so that a batch is filled while the training loop's Python runs
        options: dict[str, Any] = {"error_model": "numpy", "nogil": True}
        before = config.CACHE_DIR
        try:
            config.CACHE_DIR = _cache_folder()
            return njit(signature, cache=True, **options)(function)  # type: ignore[no-any-return]
        except (RuntimeError, OSError):
            # no folder can be written: each process compiles for itself
            return njit(signature, **options)(function)  # type: ignore[no-any-return]
        finally:
            config.CACHE_DIR = before

    return compile_


def _cache_folder() -> str:
    folder = own_cache("kernels", "loader")
    if folder is None:
        raise PermissionError("no cache folder is this user's alone, and machine code of others must not run")
    return str(folder)


@_builtin  # type: ignore[untyped-decorator]
def _pointer(_context: Any, _address: Any) -> Any:
    """An address as a pointer, which `_array_at` makes an array of."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.uint64), generate


@_builtin  # type: ignore[untyped-decorator]
def _prefetch(_context: Any, _address: Any) -> Any:
    """Ask for the cache line at an address; harmless where none is."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, integer, integer, integer])
        function = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
        # to read, of that locality, data and no code
        options = [integer(0), integer(_LOCALITY), integer(1)]
        builder.call(function, [builder.inttoptr(arguments[0], cgutils.voidptr_t), *options])
        return _context.get_dummy_value()

    return types.void(types.uint64), generate


@njit(error_model="numpy")
def _image(value: Any, n: Any, side: Any, keys: Any, column: Any) -> Any:
    """One value by the network of `keys` [rounds, columns], again until it lies below n."""
    while True:
        left = value // side
        right = value - left * side
        for number in range(keys.shape[0]):
            mixed = (right ^ keys[number, column]) * _MIX_A
            mixed = (mixed ^ (mixed >> _U_32)) * _MIX_B
            total = left + (((mixed >> _U_32) * side) >> _U_32)
            left = right
            right = total - side if total >= side else total
        value = left * side + right
        if value < n:
            return value


@njit(error_model="numpy")
def _side(n: Any) -> Any:
    """The root of n, rounded up."""
    root = np.int64(np.sqrt(np.float64(n - 1)))
    while root * root > n - 1:
        root -= 1
    while (root + 1) * (root + 1) <= n - 1:
        root += 1
    return root + 1


@_compiled(types.void(_U64, types.uint64, types.uint64, _U64_2, _U64))
def walk(values: Any, n: Any, side: Any, keys: Any, images: Any) -> None:
    """See `headrace.loader.order.order.walk_forth`; `keys` [rounds, 1 or k], `side` is the root of n, rounded up."""
    own = keys.shape[1] > 1
    for at in range(values.size):
        images[at] = _image(values[at], n, side, keys, at if own else 0)


@njit(error_model="numpy")
def _mixed(value: Any) -> Any:
    """Splitmix64's finaliser."""
    value = (value ^ (value >> _U_30)) * _MIX_A
    value = (value ^ (value >> _U_27)) * _MIX_B
    return value ^ (value >> _U_31)


@njit(error_model="numpy")
def _find_slot(place: Any, blocks: Any) -> Any:
    """(slot, rows into it) of a place; `blocks` is that of `locate`."""
    block_rows, _, short_slot, lacking, _ = blocks
    if place >= (short_slot + 1) * block_rows - lacking:
        place += lacking
    slot = place // block_rows
    return slot, place - slot * block_rows


@njit(error_model="numpy")
def _slot_start(slot: Any, blocks: Any) -> Any:
    """The first place of a slot."""
    block_rows, samples, short_slot, lacking, _ = blocks
    return min(slot * block_rows - (lacking if slot > short_slot else 0), samples)


@_compiled(types.void(_I64, _I64_X5, types.uint64, _U64_2, _I64, _I64, _I64))
def locate(places: Any, blocks: Any, row_key: Any, block_keys: Any, ends: Any, shards: Any, rows: Any) -> None:
    """See `headrace.loader.order.order.Windowed`: `places` [k] to (`shards` [k], `rows` [k]).

    `blocks` is (rows a block, samples, the short block's slot, the rows that it lacks, blocks a window); `ends`
    [shards] are the rows up to each shard's end.
    """
    block_rows, samples, _, _, window_blocks = blocks
    count = (samples + block_rows - 1) // block_rows
    block_side = _side(count)
    last_shard = ends.size - 1
    keys = np.empty((block_keys.shape[0], 1), np.uint64)
    window, first, size, side = np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    slots, starts, owners = (
        np.full((_KNOWN_BLOCKS), -1),
        np.empty(_KNOWN_BLOCKS, np.int64),
        np.empty(_KNOWN_BLOCKS, np.int64),
    )
    for at in range(places.size):
        place = places[at]
        within = _find_slot(place, blocks)[0] // window_blocks
        if within != window:
            window = within
            first = _slot_start(window * window_blocks, blocks)
            size = _slot_start((window + 1) * window_blocks, blocks) - first
            side = _side(size)
            key = _mixed(row_key + np.uint64(window) * _GOLDEN)
            for number in range(keys.shape[0]):
                keys[number, 0] = _mixed(key + np.uint64(number + 1) * _GOLDEN)
        place = first + np.int64(_image(np.uint64(place - first), np.uint64(size), np.uint64(side), keys, 0))
        slot, offset = _find_slot(place, blocks)
        known = slot % _KNOWN_BLOCKS
        if slots[known] != slot:
            block = np.int64(_image(np.uint64(slot), np.uint64(count), np.uint64(block_side), block_keys, 0))
            slots[known], starts[known] = slot, block * block_rows
            owners[known] = np.searchsorted(ends, block * block_rows, side="right")
        row = starts[known] + offset
        shard = owners[known]
        while shard < last_shard and row >= ends[shard]:
            shard += 1
        shards[at] = shard
        rows[at] = row - (ends[shard - 1] if shard > 0 else 0)


@njit(error_model="numpy")
def _are_apart(pointers: Any, table: Any, seq_len: Any) -> Any:
    """Whether all pieces of a table lie within their sequence and behind each other, and none repeats too much."""
    for row in range(pointers.size - 1):
        end = np.int64(0)
        for piece in range(pointers[row], pointers[row + 1]):
            begin, length = np.int64(table[piece, 0]), np.int64(table[piece, 1])
            if begin < end or length < 1 or table[piece, 2] < 0 or table[piece, 3] < 0 or table[piece, 3] > length:
                return False
            end = begin + length
        if end > seq_len:
            return False
    return True


@_compiled(
    types.boolean(_I32_READ, _I32_READ, _I32_READ, _I32_READ, _I32_READ, types.int64, _I64, _I32_2),
)
def index_pieces(
    sequence: Any, start: Any, length: Any, document: Any, repeated: Any, seq_len: Any, pointers: Any, table: Any
) -> Any:
    """See `headrace.loader.dataset.shard.Shard`: pieces [n] sorted by (`sequence`, `start`) into `table` [n, 4], and
    where each sequence's begin into `pointers` [sequences + 1].

    False where a piece lies outside of its sequence or over another, or where sorting would take long: then what was
    filled in means nothing.
    """
    sequences = pointers.size - 1
    pointers[:] = 0
    for piece in range(sequence.size):
        if sequence[piece] < 0 or sequence[piece] >= sequences:
            return False
        pointers[sequence[piece] + 1] += 1
    for row in range(sequences):
        pointers[row + 1] += pointers[row]
    behind = pointers[:-1].copy()
    moves = sequence.size * _MOVES_A_PIECE
    for piece in range(sequence.size):
        row = sequence[piece]
        at = behind[row]
        behind[row] += 1
        # most pieces of a sequence come in order, and a sequence has few
        while at > pointers[row] and table[at - 1, 0] > start[piece]:
            for column in range(4):
                table[at, column] = table[at - 1, column]
            at -= 1
            moves -= 1
        if moves < 0:
            return False
        table[at, 0], table[at, 1], table[at, 2] = start[piece], length[piece], document[piece]
        table[at, 3] = repeated[piece]
    return _are_apart(pointers, table, seq_len)


@_compiled(types.int64(_U64, _I64, _I64))
def count_pieces(pointers_at: Any, which: Any, rows: Any) -> Any:
    """Pieces of `rows` [n], each in the shard `which` [n], whose row pointers lie at `pointers_at` [shards]."""
    total = 0
    for at in range(rows.size):
        pointers = _array_at(_pointer(pointers_at[which[at]]), (rows[at] + 2,), np.int64)
        total += pointers[rows[at] + 1] - pointers[rows[at]]
    return total


@_compiled(types.void(_U64, _U64, _I64, _I64, _I64, types.int64, types.int64, _I32, _I64_2, _I32, _I64, _I64))
def find_segments(
    pointers_at: Any, tables_at: Any, numbers: Any, which: Any, rows: Any, batch_size: Any, seq_len: Any,
    cu_seqlens: Any, documents: Any, repeated: Any, edges: Any, longest: Any,
) -> None:  # fmt: skip
    """Find the segments of `edges.size - 1` batches of `batch_size` rows; those behind `rows` [n] are padding.

    Batch b's segments are `edges[b]` to `edges[b + 1]` of `documents`, and its bounds begin at `edges[b] + b`.
    """
    segment = 0
    for batch in range(longest.size):
        edges[batch] = segment
        most = np.int64(0)
        for line in range(batch_size):
            origin = line * seq_len
            at = batch * batch_size + line
            end = np.int64(0)
            if at < rows.size:
                coming = min(at + _ROWS_AHEAD, rows.size - 1)
                pointers = _array_at(_pointer(pointers_at[which[coming]]), (rows[coming] + 1,), np.int64)
                _prefetch(tables_at[which[coming]] + np.uint64(pointers[rows[coming]] * _PIECE_BYTES))
                shard, row = which[at], rows[at]
                pointers = _array_at(_pointer(pointers_at[shard]), (row + 2,), np.int64)
                table = _array_at(_pointer(tables_at[shard]), (pointers[row + 1], 4), np.int32)
                for piece in range(pointers[row], pointers[row + 1]):
                    start, length = np.int64(table[piece, 0]), np.int64(table[piece, 1])
                    if start > end:
                        cu_seqlens[segment + batch] = np.int32(origin + end)
                        documents[segment, 0] = documents[segment, 1] = _NOTHING
                        repeated[segment] = 0
                        most = max(most, start - end)
                        segment += 1
                    cu_seqlens[segment + batch] = np.int32(origin + start)
                    documents[segment, 0] = numbers[shard]
                    documents[segment, 1] = table[piece, 2]
                    repeated[segment] = table[piece, 3]
                    most = max(most, length)
                    segment += 1
                    end = start + length
            if end < seq_len:
                cu_seqlens[segment + batch] = np.int32(origin + end)
                documents[segment, 0] = documents[segment, 1] = _NOTHING
                repeated[segment] = 0
                most = max(most, seq_len - end)
                segment += 1
        cu_seqlens[segment + batch] = np.int32(batch_size * seq_len)
        longest[batch] = most
    edges[longest.size] = segment


@njit(error_model="numpy")
def _address(tokens_at: Any, narrow: Any, which: Any, rows: Any, seq_len: Any, at: Any) -> Any:
    """Where the tokens of row `at` begin, or of the last one; 0 where there is no row."""
    if rows.size == 0:
        return np.uint64(0)
    at = min(at, rows.size - 1)
    size = 2 if narrow[which[at]] else 4
    return tokens_at[which[at]] + np.uint64(rows[at] * seq_len * size)


@njit(error_model="numpy")
def _label(labels: Any, mask: Any, tokens: Any, coming: Any) -> None:
    """Labels of a row as if it were one piece; meanwhile the next row comes from memory, whose tokens lie there."""
    whole = (tokens.size - 1) // _LINE_TOKENS
    for chunk in range(whole):
        _prefetch(coming + np.uint64(chunk * _LINE_BYTES))
        begin = chunk * _LINE_TOKENS
        for token in range(begin, begin + _LINE_TOKENS):
            labels[token] = tokens[token + 1]
    for token in range(whole * _LINE_TOKENS, tokens.size - 1):
        labels[token] = tokens[token + 1]
    mask[:] = True


@njit(error_model="numpy")
def _ignore(labels: Any, mask: Any, begin: Any, end: Any, is_padding: Any, repeated: Any) -> None:
    """Leave out the labels of a row that segment [`begin`, `end`) does not have."""
    if is_padding:
        labels[begin:end] = _IGNORED_LABEL
        mask[begin:end] = False
    # the first label of a new token stands at the last repeated one
    for again in range(begin, begin + repeated - 1):
        labels[again] = _IGNORED_LABEL
        mask[again] = False
    labels[end - 1] = _IGNORED_LABEL
    mask[end - 1] = False


@_compiled(
    types.void(
        _U64, _BOOL, _I64, _I64, _I32, _I64_2, _I32, _I64, types.int64, types.int64, types.int32,
        _I32_2, _I32_2, _BOOL_2, _I32_2,
    )
)  # fmt: skip
def fill(
    tokens_at: Any, narrow: Any, which: Any, rows: Any, cu_seqlens: Any, documents: Any, repeated: Any, edges: Any,
    first: Any, batch_size: Any, pad_id: Any, tokens: Any, labels: Any, mask: Any, position_ids: Any,
) -> None:  # fmt: skip
    """Fill the wide fields [lines, seq_len] of whole batches, of which batch `first` is the first.

    Each row passes through the nearest cache once for all four fields. `narrow` [shards] is True for uint16. Labels
    with their mask, and position ids, are left out where their arrays have no lines.
    """
    lines, seq_len = tokens.shape
    has_labels, has_places = labels.shape[0] > 0, position_ids.shape[0] > 0
    segment = edges[first]
    for line in range(lines):
        at = first * batch_size + line
        row_tokens, row_labels, row_mask, row_places = tokens[line], labels[line], mask[line], position_ids[line]
        if at >= rows.size:
            row_tokens[:] = pad_id
        elif narrow[which[at]]:
            thin = _array_at(_pointer(tokens_at[which[at]] + np.uint64(rows[at] * seq_len * 2)), (seq_len,), np.uint16)
            for token in range(seq_len):
                row_tokens[token] = thin[token]
        else:
            thick = _array_at(_pointer(tokens_at[which[at]] + np.uint64(rows[at] * seq_len * 4)), (seq_len,), np.int32)
            for token in range(seq_len):
                row_tokens[token] = thick[token]
        coming = _address(tokens_at, narrow, which, rows, seq_len, at + 1)
        if has_labels:
            _label(row_labels, row_mask, row_tokens, coming)
        batch = at // batch_size
        origin = (at - batch * batch_size) * seq_len
        end = np.int64(0)
        while end < seq_len:
            begin = end
            end = np.int64(cu_seqlens[segment + batch + 1]) - origin
            if has_places:
                places = row_places[begin:end]
                # in 32 bits throughout, which halves the time of this loop
                for place in range(np.int32(end - begin)):
                    places[place] = np.int32(place)
            is_padding = documents[segment, 0] == _NOTHING
            if is_padding:
                # what was retracted lies in the shard still
                row_tokens[begin:end] = pad_id
            if has_labels:
                _ignore(row_labels, row_mask, begin, end, is_padding, repeated[segment])
            segment += 1


@_compiled(types.void(_U64, _BOOL, _I64, _I64, types.int64, types.int32, _I32_2))
def copy_rows(tokens_at: Any, narrow: Any, which: Any, rows: Any, first: Any, pad_id: Any, tokens: Any) -> None:
    """Copy the rows from `first` on into `tokens` [lines, seq_len], and padding behind the last: like `fill`."""
    lines, seq_len = tokens.shape
    whole = seq_len // _PIECE_TOKENS
    for line in range(lines):
        at = first + line
        if at >= rows.size:
            tokens[line, :] = pad_id
            continue
        row_tokens = tokens[line]
        is_narrow = narrow[which[at]]
        row_bytes = seq_len * (2 if is_narrow else 4)
        origin = _pointer(tokens_at[which[at]] + np.uint64(rows[at] * row_bytes))
        thin, thick = _array_at(origin, (seq_len,), np.uint16), _array_at(origin, (seq_len,), np.int32)
        coming = _address(tokens_at, narrow, which, rows, seq_len, at + 1)
        for piece in range(whole):
            begin = piece * _PIECE_TOKENS
            # the next row comes from memory while this one is copied, as much of it as of this one
            for ahead in range(_PIECE_TOKENS // _LINE_TOKENS):
                _prefetch(coming + np.uint64((begin + ahead * _LINE_TOKENS) * 4))
            if is_narrow:
                for token in range(begin, begin + _PIECE_TOKENS):
                    row_tokens[token] = thin[token]
            else:
                for token in range(begin, begin + _PIECE_TOKENS):
                    row_tokens[token] = thick[token]
        for token in range(whole * _PIECE_TOKENS, seq_len):
            row_tokens[token] = thin[token] if is_narrow else thick[token]
