"""The shipped test lists are what their script writes, and hold the shapes they promise."""

import pytest

from gemm_model.tables.table import read_table
from scripts import make_testlists
from tests.conftest import ROOT


@pytest.mark.parametrize("name", make_testlists.LISTS)
def test_the_shipped_list_is_what_the_script_writes(name):
    assert (ROOT / "testlists" / f"{name}.csv").read_text() == make_testlists.list_text(name)


def shapes(name):
    frame = read_table(ROOT / "testlists" / f"{name}.csv").astype(int)
    return set(map(tuple, frame.to_numpy().tolist()))


def test_deepseek_v3_shapes_by_hand():
    found = shapes("dsv3")
    # q_b_proj: 128 heads of 128 + 64 from rank 1536; forward, input gradient, weight gradient at 4096 tokens.
    assert {(4096, 24576, 1536), (4096, 1536, 24576), (24576, 1536, 4096)} <= found
    # kv_a_proj: rank 512 + 64 from hidden 7168; lm_head: vocabulary 129280.
    assert {(4096, 576, 7168), (4096, 129280, 7168)} <= found


def test_llama_3_8b_shapes_by_hand():
    # qkv: (32 + 2 x 8) heads of 128 = 6144; gate and up: 2 x 14336.
    assert {(1, 6144, 4096), (256, 28672, 4096), (8, 4096, 14336)} <= shapes("llama3_decode")


def test_each_list_says_its_source():
    for name in make_testlists.LISTS:
        first, second = (ROOT / "testlists" / f"{name}.csv").read_text().splitlines()[:2]
        assert first.startswith("# ")
        assert second.startswith("# source: ")
