"""Measuring attention, as far as that goes without a GPU: the reference, and rows that cannot run."""

import csv

import pytest

torch = pytest.importorskip("torch")

from gemm_model.bench import attention
from gemm_model.core.attention import AttentionConfig, AttentionProblem
from tests.cases import cases


@pytest.mark.parametrize(*cases(__file__, "test_the_reference_agrees_with_torch_and_sees_a_wrong_row"))
def test_the_reference_agrees_with_torch_and_sees_a_wrong_row(words):
    problem = AttentionProblem.parse(words)
    tensors = attention.operands_of(problem, "cpu")
    q, k, v = (each.transpose(1, 2).float() for each in tensors)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=problem.causal, enable_gqa=problem.group > 1
    ).transpose(1, 2)
    assert attention.relative_error(problem, tensors, out) < 1e-5
    out[-1, -1, (problem.seq_q - 1) % problem.heads] *= 1.1
    assert attention.relative_error(problem, tensors, out) == pytest.approx(0.1, rel=1e-3)


def test_windows_and_lengths_are_those_of_a_mask_by_hand():
    problem = AttentionProblem.parse("causal heads=2 head_dim=32 window=5 lengths=9:20+0:4+7:7")
    tensors = attention.operands_of(problem, "cpu")
    out = torch.empty(16, 2, 32)
    begin_q = begin_kv = 0
    for seq_q, seq_kv in problem.lengths:
        rows, keys = torch.arange(seq_q)[:, None] + seq_kv - seq_q, torch.arange(seq_kv)[None, :]
        kept = (keys <= rows) & (keys >= rows - 5)
        for head in range(2):
            q = tensors[0][begin_q : begin_q + seq_q, head].float()
            k, v = (each[begin_kv : begin_kv + seq_kv, head].float() for each in tensors[1:])
            scores = (q @ k.T / 32**0.5).masked_fill(~kept, -torch.inf)
            out[begin_q : begin_q + seq_q, head] = torch.softmax(scores, 1) @ v
        begin_q, begin_kv = begin_q + seq_q, begin_kv + seq_kv
    assert attention.relative_error(problem, tensors, out) < 1e-5


def test_rows_that_cannot_run_say_why(tmp_path, monkeypatch):
    made = attention.operands_of
    monkeypatch.setattr(attention, "operands_of", lambda problem, device: made(problem, "cpu"))
    problem = AttentionProblem.parse("causal heads=2 seq_q=8 head_dim=32 window=4")
    config = AttentionConfig(kernel="flash_attention_2")
    rows = [{"heads": "2", "seq_q": "8", "runtime_us": "9"}]
    assert attention.measure_rows(rows, [(problem, config)], tmp_path / "out.csv") == 0
    with (tmp_path / "out.csv").open() as file:
        (found,) = csv.DictReader(file)
    assert (found["disposition"], found["runtime_us"]) == ("failed", "")
    assert "masks from the first key" in found["reason"]
