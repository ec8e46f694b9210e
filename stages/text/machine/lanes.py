"""What kind of byte each of 64 is, at once; a bit for each, in integers.

numba has no words for it, so it is spelt out for LLVM, which makes a few instructions of it where the processor has
registers of 64 bytes (AVX-512), and some more where it has not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.stages.text.machine.intrinsics import intrinsic, ir, types
from headrace.stages.text.machine.kernels import compiled

#: Bytes that `look` looks at, at most `texts.PADDING`.
LANES = 64
ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


@intrinsic
def trailing_zeros(_: Any, __: Any) -> Any:
    """The bits below the lowest one that is set; 64 where none is."""

    def generate(_: Any, builder: Any, ___: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def _classes(_: Any, data: Any, at: Any) -> Any:
    """Of the 64 bytes from `data[at]` on: a bit for each that is ASCII white space, a letter, a digit."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = ir.VectorType(ir.IntType(8), LANES)
        place = builder.gep(args[0], [context.cast(builder, args[1], signature.args[1], types.intp)])
        block = builder.load(builder.bitcast(place, lanes.as_pointer()), align=1)

        def all_of(byte: int) -> Any:
            return ir.Constant(lanes, [byte] * LANES)

        def between(value: Any, first: int, last: int) -> Any:
            return builder.icmp_unsigned("<", builder.sub(value, all_of(first)), all_of(last - first + 1))

        letters = between(builder.or_(block, all_of(0x20)), 0x61, 0x7A)
        spaces = builder.or_(between(block, 0x09, 0x0D), between(block, 0x1C, 0x20))
        bits = [builder.bitcast(mask, ir.IntType(64)) for mask in (spaces, letters, between(block, 0x30, 0x39))]
        return context.make_tuple(builder, signature.return_type, bits)

    return types.UniTuple(types.uint64, 3)(data, at), generate


@intrinsic
def widen(_: Any, data: Any, at: Any, codes: Any, place: Any) -> Any:
    """Put the 64 bytes from `data[at]` on into `codes[place:]`: letters in lower case, digits, and 0 for all others.

    A bit for each of the bytes that is not ASCII.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = ir.VectorType(ir.IntType(8), LANES)

        def place_of(index: int, kind: Any) -> Any:
            offset = context.cast(builder, args[index], signature.args[index], types.intp)
            return builder.bitcast(builder.gep(args[index - 1], [offset]), kind.as_pointer())

        def all_of(byte: int) -> Any:
            return ir.Constant(lanes, [byte] * LANES)

        def between(value: Any, first: int, last: int) -> Any:
            return builder.icmp_unsigned("<", builder.sub(value, all_of(first)), all_of(last - first + 1))

        block = builder.load(place_of(1, lanes), align=1)
        lower = builder.or_(block, all_of(0x20))
        digits = builder.select(between(block, 0x30, 0x39), block, all_of(0))
        found = builder.select(between(lower, 0x61, 0x7A), lower, digits)
        wide = ir.VectorType(ir.IntType(32), LANES)
        builder.store(builder.zext(found, wide), place_of(3, wide), align=4)
        return builder.bitcast(builder.icmp_signed("<", block, all_of(0)), ir.IntType(64))

    return types.uint64(data, at, codes, place), generate


@compiled
def look(data: Any, at: int, end: int) -> tuple[Any, Any, Any]:
    """A bit for each of the 64 bytes from `at` on that is ASCII white space, a letter, a digit; all behind `end` is
    white space.
    """
    spaces, letters, digits = _classes(data, at)
    if end - at < LANES:
        spaces |= ALL << np.uint64(end - at)
    return spaces, letters, digits
