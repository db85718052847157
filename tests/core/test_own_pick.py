"""What a library loses that chooses for itself, by hand."""

import numpy as np
import pytest

from gemm_model.core.prediction import OwnPick


def test_it_is_the_same_share_everywhere_and_nothing_by_default():
    assert OwnPick(share=0.07).time_us(np.array([10.0, 1000.0])) == pytest.approx([10.7, 1070.0])
    assert OwnPick().time_us(1000.0) == 1000.0


def test_an_own_pick_may_go_by_the_sort_of_problem():
    pick = OwnPick(share=0.05, shares={"padded": 0.5})
    assert pick.of("padded").time_us(10.0) == 15.0
    assert pick.of("another") == OwnPick(share=0.05)
