"""Arrow columns of numpy arrays, in the same memory.

`pa.array` asks numpy whether an array is masked, for which each process imports `numpy.ma`: 0.02 s of processor time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def as_column(values: npt.NDArray[Any]) -> Any:
    """A column of whole numbers or floats without nulls, of the type that the array has; a copy only where it has gaps.

    Raises ValueError for an array of more than one dimension, and pa.ArrowException for one of another kind.
    """
    if values.ndim != 1:
        raise ValueError(f"an array of {values.ndim} dimensions is no column")
    kind = pa.from_numpy_dtype(values.dtype)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise pa.ArrowNotImplementedError(f"an array of {values.dtype} is no column of numbers")
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values).data)])
