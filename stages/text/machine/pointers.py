"""Arrays as bare pointers: what the loops pass to each other.

An array is seven arguments of a call to numba, and a loop with six arrays spent more time on handing them to its
functions than those took. A pointer is one. It knows no size: who makes one has seen to it that there is room, and
texts have `texts.PADDING` bytes behind them, so that 64 may be loaded from wherever a text has one.
"""

from __future__ import annotations

from typing import Any

from headrace.stages.text.machine.intrinsics import intrinsic, ir, types


@intrinsic
def pointer(_: Any, array: Any, first: Any) -> Any:
    """A pointer to the element `first` of a contiguous array, whatever its shape."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, index = signature.args
        data = context.make_array(kind)(context, builder, args[0]).data
        return builder.gep(data, [context.cast(builder, args[1], index, types.intp)])

    return types.CPointer(array.dtype)(array, first), generate


@intrinsic
def load_eight(_: Any, data: Any, at: Any) -> Any:
    """The eight bytes from `data[at]` on as one integer, the first in its lowest bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.IntType(64)
        place = builder.gep(args[0], [context.cast(builder, args[1], signature.args[1], types.intp)])
        return builder.load(builder.bitcast(place, kind.as_pointer()), align=1)

    return types.uint64(data, at), generate
