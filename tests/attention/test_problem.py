"""Attention problems and configurations: words, FLOP by counting scores, and what is refused."""

from dataclasses import replace

import pytest

from gemm_model import AttentionConfig, AttentionProblem, InputError, load_gpu, predict
from gemm_model.attention.kernels import candidates, refusal, resolved, smem_bytes
from tests.cases import cases

GPU = load_gpu("h200")


def _scores(problem):
    count = 0
    for query in range(problem.seq_q):
        last = query + problem.seq_kv - problem.seq_q if problem.causal else problem.seq_kv - 1
        first = max(last - problem.window, 0) if problem.window else 0
        count += last - first + 1
    return count


@pytest.mark.parametrize(*cases(__file__, "test_flop_counts_the_scores_that_the_mask_leaves"))
def test_flop_counts_the_scores_that_the_mask_leaves(words):
    problem = AttentionProblem.parse(words)
    each = problem.batch * problem.heads * 2 * (problem.head_dim + problem.head_dim_v)
    assert problem.flop == each * _scores(problem)


def test_words_come_back():
    for words in (
        "causal heads=32 kv_heads=8 seq_q=4096 head_dim=128",
        "full batch=3 heads=8 seq_q=1 seq_kv=999 head_dim=64 dtype=fp16 softcap=30",
        "causal heads=8 head_dim=128 lengths=10:20+0:5",
    ):
        problem = AttentionProblem.parse(words)
        assert AttentionProblem.parse(problem.name) == problem


def test_lengths_give_batch_and_longest(tmp_path):
    problem = AttentionProblem.parse("causal heads=8 head_dim=128 lengths=10:20+0:50+7:7")
    assert (problem.batch, problem.seq_q, problem.seq_kv) == (3, 10, 50)
    (tmp_path / "lengths.csv").write_text("seq_q,seq_kv\n10,20\n0,50\n7,7\n")
    assert AttentionProblem.parse(f"causal heads=8 head_dim=128 lengths={tmp_path}/lengths.csv") == problem
    assert replace(problem, lengths=[[10, 20], (0, 50), (7, 7)]) == problem
    with pytest.raises(InputError, match="expected pairs of queries and keys"):
        replace(problem, lengths=[5])


@pytest.mark.parametrize(*cases(__file__, "test_bad_problems_are_told_in_a_sentence"))
def test_bad_problems_are_told_in_a_sentence(words, sentence):
    with pytest.raises(InputError, match=sentence.replace("(", "\\(")):
        AttentionProblem.parse(words)


@pytest.mark.parametrize(*cases(__file__, "test_kernels_that_cannot_run_are_refused"))
def test_kernels_that_cannot_run_are_refused(words, config, sentence):
    with pytest.raises(InputError, match=sentence):
        predict(AttentionProblem.parse(words), AttentionConfig.parse(config), "h200")


def test_shared_memory_is_q_and_the_rings():
    problem = AttentionProblem.parse("full heads=8 seq_q=64 head_dim=128")
    config = resolved(problem, AttentionConfig.parse("flash_attention tile=128x176"), GPU)
    assert smem_bytes(problem, config) == 2 * (128 * 128 + 2 * 176 * 256) + 1024
    assert refusal(problem, config, GPU) is None


def test_candidates_can_run_and_begin_with_the_library_s_own():
    problem = AttentionProblem.parse("full batch=2 heads=32 kv_heads=8 seq_q=1 seq_kv=8192 head_dim=128")
    found = candidates(problem, GPU, "flash_attention")
    assert (found[0].tile_m, found[0].tile_n, found[0].num_splits, found[0].pack_gqa) == (128, 128, 1, True)
    assert {config.num_splits for config in found} == {1, 2, 4, 8, 16, 32}
    assert all(refusal(problem, config, GPU) is None for config in found)
