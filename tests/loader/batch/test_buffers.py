"""The memory of batches: used again from one pass to the next, and never while somebody holds a part of it."""

import gc

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from headrace.loader.batch.buffers import BUFFERS_MAX, LARGE_BYTES, LARGE_BYTES_MIN, Buffers, Wide
from headrace.loader.batch.compiled import KERNELS
from headrace.loader.batch.fields import FIELDS, chosen_fields
from headrace.loader.loader import Loader


@given(rows=st.integers(1, 70), seq_len=st.integers(1, 3000), names=st.sets(st.sampled_from(sorted(FIELDS))))
@settings(max_examples=60, deadline=None)
def test_fields_lie_apart_and_large_ones_on_large_pages(rows: int, seq_len: int, names: set[str]):
    wide = Wide(rows, seq_len, chosen_fields(names))
    arrays = [wide.tokens, wide.labels, wide.mask, wide.position_ids]
    for number, array in enumerate(arrays):
        array[...] = number % 2 if array.dtype == np.bool_ else number + 1
    for number, array in enumerate(arrays):
        assert (array == (number % 2 if array.dtype == np.bool_ else number + 1)).all()
        assert array.flags.c_contiguous
        assert array.flags.aligned
        assert array.size in (0, rows * seq_len)
    if sum(array.nbytes for array in arrays) >= LARGE_BYTES_MIN:
        assert wide.tokens.ctypes.data % LARGE_BYTES == 0
    assert {name for name, _ in wide.given} == {"tokens"} | (names & {"labels", "loss_mask", "position_ids"})


def test_memory_is_free_again_once_no_view_of_a_view_is_left():
    wide = Wide(4, 8, chosen_fields(None))
    assert wide.is_free()
    kept = memoryview(wide.labels[1:3].reshape(-1))[2:]
    assert not wide.is_free()
    del kept
    row = wide.mask[2][::2]
    assert not wide.is_free()
    del row
    assert wide.is_free()


def test_buffers_keep_a_bounded_number_of_sets_and_none_once_cleared():
    buffers = Buffers(chosen_fields(()))
    for wide in [buffers.take(2, 8) for _ in range(BUFFERS_MAX + 3)]:
        buffers.keep(wide)
    assert len(buffers._sets) == BUFFERS_MAX
    buffers.clear()
    assert not buffers._sets


@pytest.mark.parametrize("module", ["numpy", "compiled"])
def test_a_pass_is_made_in_memory_of_the_last_not_held(
    thousand_dataset: str, monkeypatch: pytest.MonkeyPatch, module: str
):
    assert KERNELS.wait(300), KERNELS.error
    monkeypatch.setattr(KERNELS, "_module", KERNELS.get() if module == "compiled" else None)
    loader = Loader(thousand_dataset, batch_size=8, prefetch=0)
    held, before, first = [], [], set()
    for number, batch in enumerate(loader):
        first.add(batch["tokens"].ctypes.data)
        if number % 20 == 0:
            held.append(batch)
            before.append({name: np.copy(value) for name, value in batch.items()})
    del batch
    gc.collect()
    second = {batch["tokens"].ctypes.data for batch in loader}
    assert second <= first
    assert not second & {batch["tokens"].ctypes.data for batch in held}
    for ours, theirs in zip(held, before, strict=True):
        for name, value in theirs.items():
            assert np.array_equal(ours[name], value), name  # type: ignore[literal-required]
