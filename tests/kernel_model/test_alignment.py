"""Where rows start, and into how many pieces they fall."""

import pytest

from gemm_model.kernel_model.alignment import further_pieces, row_alignment


@pytest.mark.parametrize(("pitch", "pieces"), [(128, 0), (192, 0), (96, 1), (1040, 3), (1036, 3), (2080, 1)])
def test_rows_off_64_byte_boundaries_fall_into_further_pieces(pitch, pieces):
    assert further_pieces(float(pitch)) == pieces


@pytest.mark.parametrize(("pitch", "alignment"), [(8192, 128), (8256, 64), (8224, 32), (8208, 16), (9, 16)])
def test_rows_start_at_multiples_of_what_divides_their_pitch(pitch, alignment):
    assert row_alignment(float(pitch)) == alignment
