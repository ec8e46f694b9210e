"""Inner loops as machine code: compiled once, kept, and the smallest of them."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.text.machine.hashing import (
        FOLD as FOLD,
        MULTIPLIER as MULTIPLIER,
        hash_of as hash_of,
        hash_span as hash_span,
    )
    from headrace.stages.text.machine.intrinsics import intrinsic as intrinsic, ir as ir, types as types
    from headrace.stages.text.machine.kernels import (
        COMPILER_ADVICE as COMPILER_ADVICE,
        NEEDS_COMPILER as NEEDS_COMPILER,
        can_compile as can_compile,
        compile_parts as compile_parts,
        compiled as compiled,
        entry as entry,
        is_kept as is_kept,
        is_prepared as is_prepared,
        prepared as prepared,
    )
    from headrace.stages.text.machine.lanes import (
        ALL as ALL,
        LANES as LANES,
        look as look,
        trailing_zeros as trailing_zeros,
        widen as widen,
    )
    from headrace.stages.text.machine.pointers import load_eight as load_eight, pointer as pointer
else:
    __getattr__ = door(__name__)
