import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from headrace.loader.batch.compiled import KERNELS
from headrace.loader.order.order import SAMPLES_MAX, Order, OrderMode, Permutation, SampleLayout, derive_key, walk_forth

ANY_SIZE = st.one_of(st.integers(1, 3000), st.integers(1, 1_000_000))


def layout_of(samples: int, shards: int = 3) -> SampleLayout:
    cuts = np.sort(np.random.default_rng(samples).integers(0, samples + 1, shards - 1))
    return SampleLayout(np.diff(np.concatenate(([0], cuts, [samples]))))


def rows_of(order: Order, positions: np.ndarray) -> np.ndarray:
    return order.layout.join(*order.locate(positions.astype(np.uint64)))


# ---- every size from 1 to a million ----
#
# All sizes n with (a - 1)^2 < n <= a^2 have one network, of a^2 values, and walk along its cycles until they are below
# n. Walking to the next value below n permutes the values below n, whatever permutation is walked along: two of them
# that met would have met on the way back. So what is to be shown for all sizes to a million is that the networks of a
# thousand squares are permutations (each value once: `test_the_network_of_a_square...`, the squares between these in
# `make kill`), and that each size walks along its own (`test_each_size_to_a_million...`). To two thousand each value of
# each size is looked at besides.

SIDES = range(1, 1001)
SOME_SIDES = sorted({*range(1, 101), *range(200, 1001, 200)})


def square_key(side: int) -> int:
    return derive_key(side, 0, 1)


def require_square_is_permuted(side: int) -> None:
    seen = np.zeros(side * side, dtype=np.bool_)
    network = Permutation(side * side, square_key(side), KERNELS.loops.walk)
    seen[network.apply(np.arange(side * side, dtype=np.uint64)).view(np.int64)] = True
    assert seen.all(), side


def test_the_network_of_a_square_to_a_million_is_a_permutation():
    assert KERNELS.wait(300), KERNELS.error
    for side in SOME_SIDES:
        require_square_is_permuted(side)


@pytest.mark.slow
def test_the_network_of_every_square_to_a_million_is_a_permutation():
    assert KERNELS.wait(300), KERNELS.error
    for side in SIDES:
        require_square_is_permuted(side)


def walked_back(network: Permutation, images: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The values [sizes, k] below `sizes` [sizes] from which `network` comes to `images` [sizes, k]."""
    values = network.inverse(images)
    while (astray := values >= sizes[:, None]).any():
        values[astray] = network.inverse(values[astray])
    return values


def test_each_size_to_a_million_walks_the_network_and_back():
    assert KERNELS.wait(300), KERNELS.error
    walk, random = KERNELS.get().walk, np.random.default_rng(0)
    for side in SIDES:
        sizes = np.arange((side - 1) ** 2 + 1, side**2 + 1, dtype=np.uint64)
        network = Permutation(side**2, square_key(side))
        keys = np.stack(network.keys)
        # the first and the last value, two others, and the one that the network sends to n itself, one too far
        values = np.zeros((sizes.size, 5), dtype=np.uint64)
        values[:, 1] = sizes - np.uint64(1)
        values[:, 2:4] = random.integers(0, sizes[:, None], (sizes.size, 2), dtype=np.uint64)
        values[:-1, 4] = network.inverse(sizes[:-1])
        values[:, 4] %= sizes
        images = np.empty_like(values)
        for at, size in enumerate(sizes.tolist()):
            walk(values[at], size, side, keys, images[at])
        assert (images < sizes[:, None]).all(), side
        assert np.array_equal(walked_back(network, images, sizes), values), side
        # and the public way, at one of the sizes
        at = int(random.integers(sizes.size))
        permutation = Permutation(int(sizes[at]), square_key(side))
        assert np.array_equal(permutation.apply(values[at]), images[at]), sizes[at]
        assert np.array_equal(permutation.inverse(images[at]), values[at]), sizes[at]


def test_the_permutation_is_a_bijection_up_to_two_thousand():
    for n in range(1, 2001):
        permutation = Permutation(n, derive_key(n, 0, 1))
        values = np.arange(n, dtype=np.uint64)
        images = permutation.apply(values)
        assert np.array_equal(np.sort(images), values), n
        assert np.array_equal(permutation.inverse(images), values), n


@given(n=ANY_SIZE, key=st.integers(0, 2**64 - 1))
@settings(max_examples=30, deadline=None)
def test_the_permutation_is_a_bijection_at_any_size_to_a_million(n: int, key: int):
    seen = np.zeros(n, dtype=np.int8)
    seen[Permutation(n, key).apply(np.arange(n, dtype=np.uint64)).astype(np.int64)] += 1
    assert seen.all()


@pytest.mark.parametrize("n", [10**12, 2**62 - 57, SAMPLES_MAX, 2**40 + 1])
def test_a_huge_permutation_stays_in_range_and_its_inverse_undoes_it(n: int):
    values = np.random.default_rng(n % 1000).integers(0, n, 200_000, dtype=np.uint64)
    values = np.unique(np.concatenate((values, np.array([0, 1, n - 2, n - 1], dtype=np.uint64))))
    permutation = Permutation(n, 7)
    images = permutation.apply(values)
    assert int(images.max()) < n
    assert np.unique(images).size == values.size
    assert np.array_equal(permutation.inverse(images), values)


@given(n=st.integers(1, SAMPLES_MAX), key=st.integers(0, 2**64 - 1), data=st.data())
def test_one_value_is_permuted_as_an_array_of_it(n: int, key: int, data: st.DataObject):
    value = data.draw(st.integers(0, n - 1))
    permutation = Permutation(n, key)
    assert permutation.at(value) == permutation.apply(np.array([value], dtype=np.uint64))[0]


@pytest.mark.parametrize("n", [0, -1, SAMPLES_MAX + 1])
def test_a_permutation_of_an_impossible_size_is_refused(n: int):
    with pytest.raises(ValueError, match="1 to 2\\^62"):
        Permutation(n, 0)


@pytest.mark.parametrize("mode", OrderMode)
def test_every_order_of_every_small_dataset_is_a_bijection_with_an_inverse(mode: OrderMode):
    for samples in range(1, 400):
        for window_blocks, block_rows in ((1, 1), (3, 4), (2, 7), (256, 64)):
            order = Order(layout_of(samples), 5, 1, mode, window_blocks, block_rows)
            positions = np.arange(samples, dtype=np.uint64)
            shard, row = order.locate(positions)
            assert np.array_equal(np.sort(order.layout.join(shard, row)), np.arange(samples)), samples
            assert np.array_equal(order.inverse(shard, row), positions), samples


@given(
    samples=ANY_SIZE,
    mode=st.sampled_from(OrderMode),
    window_blocks=st.integers(1, 300),
    block_rows=st.integers(1, 200),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=30, deadline=None)
def test_an_order_is_a_bijection_with_any_blocks_and_windows(
    samples: int, mode: OrderMode, window_blocks: int, block_rows: int, seed: int
):
    order = Order(layout_of(samples, 7), seed, 0, mode, window_blocks, block_rows)
    seen = np.zeros(samples, dtype=np.int8)
    seen[rows_of(order, np.arange(samples))] += 1
    assert seen.all()


@pytest.mark.parametrize("mode", OrderMode)
def test_an_order_of_a_million_million_has_distinct_findable_rows(mode: OrderMode):
    order = Order(SampleLayout(np.full(1000, 10**9) + (np.arange(1000) == 999)), 1, 2, mode)
    ends = np.array([0, 10**12], dtype=np.uint64)
    run = np.arange(5 * 10**11, 5 * 10**11 + 50_000, dtype=np.uint64)
    scattered = np.random.default_rng(0).integers(0, 10**12, 50_000, dtype=np.uint64)
    positions = np.unique(np.concatenate((ends, run, scattered)))
    shard, row = order.locate(positions)
    assert np.unique(order.layout.join(shard, row)).size == positions.size
    assert np.array_equal(order.inverse(shard, row), positions)


def test_positions_in_any_split_give_the_rows_of_the_whole():
    order = Order(layout_of(10_007), 3, 0, OrderMode.WINDOWED, 5, 8)
    whole = rows_of(order, np.arange(10_007))
    mixed = np.random.default_rng(0).permutation(10_007)
    assert np.array_equal(rows_of(order, mixed), whole[mixed])
    assert np.array_equal(
        np.concatenate([rows_of(order, part) for part in np.array_split(np.arange(10_007), 997)]), whole
    )


def test_a_window_reads_only_its_own_blocks():
    order = Order(layout_of(64 * 100), 3, 0, OrderMode.WINDOWED, window_blocks=10, block_rows=64)
    blocks = rows_of(order, np.arange(order.layout.samples)) // 64
    assert [np.unique(window).size for window in blocks.reshape(10, 640)] == [10] * 10


def test_seed_and_pass_each_give_an_unrelated_order():
    layout = layout_of(50_000)
    orders = [
        rows_of(Order(layout, seed, pass_), np.arange(50_000)) for seed, pass_ in ((0, 0), (1, 0), (0, 1), (1, 1))
    ]
    for at, one in enumerate(orders):
        for other in orders[at + 1 :]:
            assert (one == other).sum() < 20
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.03


def test_the_full_order_looks_uniform_to_chi_square():
    order = Order(SampleLayout(np.array([100_000])), 11, 0, OrderMode.FULL)
    cells = np.histogram2d(np.arange(100_000), rows_of(order, np.arange(100_000)), bins=20)[0]
    chi = float(((cells - 250) ** 2 / 250).sum())
    assert 361 - 5 * np.sqrt(2 * 361) < chi < 361 + 5 * np.sqrt(2 * 361)


def test_neighbours_in_the_full_order_come_from_unrelated_places():
    rows = rows_of(Order(SampleLayout(np.array([100_000])), 4, 0, OrderMode.FULL), np.arange(100_000))
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < 0.02
    assert (np.abs(np.diff(rows)) < 10).mean() < 0.0005


@pytest.mark.parametrize("mode", OrderMode)
def test_the_order_of_a_construction_never_changes(mode: OrderMode):
    order = Order(SampleLayout(np.array([70, 0, 33])), 42, 7, mode, 4, 8)
    expected = {
        OrderMode.SEQUENTIAL: [0, 1, 2, 3, 4, 5, 6, 7],
        OrderMode.WINDOWED: [36, 13, 38, 43, 35, 32, 73, 45],
        OrderMode.FULL: [100, 58, 95, 97, 18, 51, 41, 62],
    }[mode]
    assert rows_of(order, np.arange(8)).tolist() == expected


def test_a_position_past_the_end_is_refused():
    with pytest.raises(IndexError, match="past the end of a pass of 10"):
        Order(layout_of(10)).locate(np.array([10], dtype=np.uint64))


def test_a_row_outside_of_its_shard_has_no_position():
    order = Order(SampleLayout(np.array([4, 6])))
    with pytest.raises(IndexError, match="outside of its shard"):
        order.inverse(np.array([0]), np.array([4]))
    with pytest.raises(IndexError, match="shards 0 to 1"):
        order.inverse(np.array([2]), np.array([0]))


@pytest.mark.parametrize("field", ["seed", "pass_", "block_rows", "window_blocks"])
def test_a_negative_argument_of_an_order_is_refused(field: str):
    with pytest.raises(ValueError, match="got"):
        Order(layout_of(10), **{field: -1})


def test_the_root_depends_on_the_shards_and_on_their_identity():
    roots = {
        SampleLayout(np.array(counts), identity).root
        for counts, identity in (
            ([3, 4], b""),
            ([4, 3], b""),
            ([7], b""),
            ([3, 4, 0], b""),
            ([3, 4], b"x"),
        )
    }
    assert len(roots) == 5


def test_a_layout_keeps_eight_bytes_a_shard():
    assert SampleLayout(np.full(1000, 10**9)).ends.nbytes == 8000


def spread_of_batch_means(order: Order, batch: int) -> float:
    """Standard deviation of the mean row of a batch, over that of independent draws (docs/design/order.md)."""
    samples = order.layout.samples // batch * batch
    means = rows_of(order, np.arange(samples)).reshape(-1, batch).mean(axis=1) / order.layout.samples
    return float(means.std() * np.sqrt(12 * batch))


@pytest.mark.parametrize("window_blocks", [64, 256, 1024])
def test_a_window_spreads_batches_as_the_documentation_says(window_blocks: int):
    order = Order(SampleLayout(np.full(100, 3000)), 1, 0, OrderMode.WINDOWED, window_blocks, 16)
    assert spread_of_batch_means(order, 128) == pytest.approx(np.sqrt(1 + 128 / window_blocks), rel=0.1)


def test_the_full_order_spreads_batches_as_independent_draws_do():
    order = Order(SampleLayout(np.full(100, 3000)), 1, 0, OrderMode.FULL)
    assert spread_of_batch_means(order, 128) == pytest.approx(1, abs=0.05)


@given(n=st.integers(1, SAMPLES_MAX), key=st.integers(0, 2**64 - 1), own_keys=st.booleans(), data=st.data())
@settings(deadline=None)
def test_the_compiled_network_gives_the_same_images(n: int, key: int, own_keys: bool, data: st.DataObject):
    assert KERNELS.wait(300), KERNELS.error
    values = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)), dtype=np.uint64)
    offsets = np.arange(values.size if own_keys else 1, dtype=np.uint64)
    keys = [np.uint64(derive_key(key, 0, number)) + offsets for number in range(6)]
    assert np.array_equal(KERNELS.loops.walk(values, n, keys), walk_forth(values, n, keys))


def test_a_pass_over_many_windows_is_the_same_by_the_compiled_network():
    assert KERNELS.wait(300), KERNELS.error
    positions = np.arange(5000, dtype=np.uint64)
    for mode in OrderMode:
        plain, compiled = (Order(layout_of(5000), 3, 1, mode, 4, 16, loops) for loops in (None, KERNELS.loops))
        for expected, found in zip(plain.locate(positions), compiled.locate(positions), strict=True):
            assert np.array_equal(expected, found)


@given(
    counts=st.lists(st.sampled_from([0, 1, 7, 63, 64, 1000, 10**6, 2**40]), min_size=1, max_size=8).filter(any),
    window_blocks=st.one_of(st.integers(1, 3000), st.just(1 << 31)),
    block_rows=st.one_of(st.integers(1, 200), st.just(1 << 31)),
    seed=st.integers(0, 2**64 - 1),
    data=st.data(),
)
@settings(deadline=None)
def test_compiled_and_plain_location_of_windowed_orders_agree(
    counts: list[int], window_blocks: int, block_rows: int, seed: int, data: st.DataObject
):
    assert KERNELS.wait(300), KERNELS.error
    layout = SampleLayout(np.array(counts, dtype=np.int64))
    first = data.draw(st.integers(0, layout.samples - 1))
    neighbours = np.arange(first, min(first + 200, layout.samples))
    scattered = data.draw(st.lists(st.integers(0, layout.samples - 1), max_size=50))
    positions = np.concatenate((neighbours, np.array(scattered, dtype=np.int64))).astype(np.uint64)
    plain, compiled = (
        Order(layout, seed, 2, OrderMode.WINDOWED, window_blocks, block_rows, loops) for loops in (None, KERNELS.loops)
    )
    for expected, found in zip(plain.locate(positions), compiled.locate(positions), strict=True):
        assert np.array_equal(expected, found)
