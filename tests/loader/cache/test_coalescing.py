"""What a request takes along beside what is wanted: where it saves a request, and nothing that is not read here."""

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from headrace.loader.cache.rowblocks import AMONG_HOSTS, CROWDED, ROOMY, Coalescing
from headrace.loader.order.mixture import Mixture, Shuffle
from headrace.loader.order.order import OrderMode, SampleLayout
from headrace.loader.prefetch.shard_prefetcher import COMING_SHARE_MIN, coming_share, needed_by

ROW_BYTES = 8192
REACHES = (AMONG_HOSTS, CROWDED, ROOMY)


def requests_for(rows: np.ndarray, coalescing: Coalescing) -> tuple[int, int]:
    """(requests, rows that they bring), counted one row after the other."""
    requests, brought, last = 0, 0, None
    for row in rows.tolist():
        if last is not None and (row - last - 1) * ROW_BYTES <= coalescing.gap_bytes:
            brought += row - last
        else:
            requests, brought = requests + 1, brought + 1
        last = row
    return requests, brought


@given(
    st.sets(st.integers(0, 4999), max_size=60).map(sorted),
    st.integers(0, 5000),
    st.sampled_from(REACHES),
)
# as far apart as one request coalescings, a row further, one row, and two of which the whole is a little more
@example([0, 33], 0, AMONG_HOSTS)
@example([0, 34], 0, AMONG_HOSTS)
@example([0], 0, AMONG_HOSTS)
@example([0, 5], 1, AMONG_HOSTS)
def test_a_shard_is_taken_whole_where_its_parts_cost_that(rows: list[int], more: int, coalescing: Coalescing):
    sequences = (rows[-1] + 1 if rows else 1) + more
    wanted = np.array(rows, dtype=np.int64)
    requests, brought = requests_for(wanted, coalescing)
    # its head is one more
    parts = (requests + 1) * coalescing.request_bytes + brought * ROW_BYTES
    whole = coalescing.request_bytes + sequences * ROW_BYTES
    assert coalescing.takes_whole_for(wanted, ROW_BYTES, sequences) == (parts >= coalescing.whole_share * whole)


@given(st.integers(1, 50), st.integers(0, 1 << 28), st.integers(1, 1 << 30), st.sampled_from(REACHES))
def test_more_that_is_wanted_never_makes_a_part_of_a_whole(
    requests: int, wanted: int, size: int, coalescing: Coalescing
):
    if coalescing.takes_whole(requests, wanted, size):
        assert coalescing.takes_whole(requests + 1, wanted, size)
        assert coalescing.takes_whole(requests, wanted + 1, size)
    # what is wanted whole is taken whole
    assert coalescing.takes_whole(requests, size, size)


def test_a_quarter_of_the_cost_decides_elsewhere_nearly_all_bytes():
    size = 31 << 20
    for coalescing, wanted, share in (
        (CROWDED, size // 4, True),
        (CROWDED, size // 5, False),
        (AMONG_HOSTS, size // 2, False),
    ):
        assert coalescing.takes_whole(1, wanted, size) == share
    # three far blocks of 512 KiB cost as much as half of the shard, in a cache that keeps the rest
    assert ROOMY.takes_whole(3, 3 << 19, size)
    assert not CROWDED.takes_whole(3, 3 << 19, size)
    # of a shard of 512 MiB they do not
    assert not ROOMY.takes_whole(3, 3 << 19, 512 << 20)


def mixture(samples: tuple[int, ...], weights: tuple[float, ...], pass_samples: int) -> Mixture:
    layouts = [SampleLayout(np.array([count], dtype=np.int64), b"x") for count in samples]
    return Mixture(layouts, Shuffle(0, OrderMode.SEQUENTIAL, 4, 4), weights, pass_samples)


@pytest.mark.parametrize(("position", "share"), [(0, 1.0), (250, 0.75), (999, 0.001), (1000, 1.0), (1500, 0.5)])
def test_what_is_left_of_a_pass_is_coming(position: int, share: float):
    assert coming_share(mixture((1000,), (1.0,), 1000), 0, position) == pytest.approx(share)


def test_a_source_of_which_a_pass_reads_little_is_not_coming():
    rare = mixture((1000, 1000), (0.9, 0.1), 2000)
    # read nearly twice, and a fifth of it
    assert coming_share(rare, 0, 0) == 1.0
    assert coming_share(rare, 1, 0) == pytest.approx(0.2)
    assert coming_share(rare, 1, 0) < COMING_SHARE_MIN


def test_each_shard_is_asked_for_by_the_reach_of_its_source():
    both = mixture((30, 30), (0.5, 0.5), 60)
    found = needed_by(both, np.arange(20), [ROOMY, CROWDED])
    assert [(one.shard, one.coalescing) for one in sorted(found, key=lambda one: one.shard)] == [
        (0, ROOMY),
        (1, CROWDED),
    ]


@pytest.mark.parametrize("shards", [3, 70_000])
def test_what_positions_need_is_told_by_shard_in_order_of_first_need(shards: int):
    layout = SampleLayout(np.full(shards, 3, dtype=np.int64), b"x")
    one = Mixture([layout], Shuffle(5, OrderMode.FULL, 4, 4), [1.0], layout.samples)
    positions = np.arange(100, 160) if shards > 3 else np.arange(2, 8)
    found = needed_by(one, positions, [CROWDED])
    expected: dict[int, list[tuple[int, int]]] = {}
    for position in positions.tolist():
        shard, row = (int(part[0]) for part in one.locate(np.array([position])))
        expected.setdefault(shard, []).append((position, row))
    assert [need.shard for need in found] == list(expected)
    for need in found:
        read = expected[need.shard]
        assert (need.first, need.last) == (read[0][0], read[-1][0])
        assert need.rows.tolist() == sorted({row for _, row in read})
