import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_model.hierarchy.matching import multicast, output_bytes_per_fma, tiling

EXTENTS = st.integers(1, 512)
WIDTHS = st.sampled_from([0.5, 1.0, 2.0, 4.0])


def counted_amplification(m, n, k, a_bytes, b_bytes):
    """Bytes taken over bytes loaded, by walking through every product of a tile."""
    taken = sum(a_bytes + b_bytes for _ in range(m) for _ in range(n) for _ in range(k))
    return taken / (sum(a_bytes for _ in range(m * k)) + sum(b_bytes for _ in range(n * k)))


@pytest.mark.parametrize(("m", "n", "a", "b"), [(1, 1, 4, 4), (4, 4, 4, 4), (8, 3, 2, 2), (5, 7, 1, 2)])
def test_tiling_counts_uses_of_each_byte(m, n, a, b):
    assert tiling(m, n, a, b) == pytest.approx(counted_amplification(m, n, 3, a, b))


@given(side=EXTENTS, a=WIDTHS, b=WIDTHS)
def test_a_square_tile_amplifies_by_its_side(side, a, b):
    assert tiling(side, side, a, b) == pytest.approx(side)


@given(m=EXTENTS, n=EXTENTS, a=WIDTHS, b=WIDTHS)
def test_a_longer_tile_amplifies_more_and_never_beyond_its_sides(m, n, a, b):
    assert tiling(m + 1, n, a, b) > tiling(m, n, a, b)
    assert min(m, n) - 1e-9 <= tiling(m, n, a, b) <= max(m, n) + 1e-9


@given(m=EXTENTS, n=EXTENTS, rows=st.integers(1, 8), columns=st.integers(1, 8), a=WIDTHS, b=WIDTHS)
def test_multicast_is_the_bytes_saved_by_sharing(m, n, rows, columns, a, b):
    alone = rows * columns * (m * a + n * b)
    together = rows * m * a + columns * n * b
    assert multicast(m, n, rows, columns, a, b) == pytest.approx(alone / together)


def test_partial_sums_come_and_go_for_every_slice():
    assert output_bytes_per_fma(4096, 4, stationary=True) == pytest.approx(4 / 4096)
    assert output_bytes_per_fma(16, 4, stationary=False) == pytest.approx(2 * 4 / 16)
