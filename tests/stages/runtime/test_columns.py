"""Arrow columns of numpy arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from headrace.stages.runtime.batch import as_column


@pytest.mark.parametrize("kind", ["int32", "int64", "uint16", "uint32", "float64"])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_column_is_what_arrow_itself_makes(kind: str, count: int) -> None:
    values = np.arange(count).astype(kind)
    found = as_column(values)
    assert found.equals(pa.array(values))
    assert found.type == pa.array(values).type


def test_a_column_is_the_memory_of_its_array_and_keeps_it() -> None:
    values = np.arange(5, dtype=np.int64)
    found = as_column(values)
    values[2] = 9
    del values
    assert found.to_pylist() == [0, 1, 9, 3, 4]


def test_a_column_of_an_array_with_gaps_is_a_copy() -> None:
    assert as_column(np.arange(6, dtype=np.int32)[::2]).to_pylist() == [0, 2, 4]


def test_what_is_no_column_of_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="2 dimensions"):
        as_column(np.zeros((2, 2)))
    with pytest.raises(pa.ArrowException):
        as_column(np.array([object()]))


@pytest.mark.parametrize("count", [0, 1, 8, 9, 77])
def test_truth_values_are_packed_as_arrow_packs_them(count: int) -> None:
    values = np.arange(count) % 3 == 1
    found = as_column(values)
    assert found.equals(pa.array(values))
    assert (found.type, found.null_count) == (pa.bool_(), 0)


PLAIN = """
import sys
import numpy as np
import pyarrow as pa
from headrace.stages.runtime.batch import as_column
as_column(np.arange(3))
as_column(np.arange(3) > 1)
print("numpy.ma" in sys.modules)
"""


def test_nothing_is_imported_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["False"]
