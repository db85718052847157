"""Epilogues, groups, routings, block scales and convolutions: what they mean, and which they refuse."""

from dataclasses import replace

import numpy as np
import pytest

from gemm_model import ConvProblem, Epilogue, GemmProblem, GroupedGemm, InputError, Routing
from gemm_model.core.batch_strides import BatchStrides
from gemm_model.core.block_scaling import BlockScaling
from gemm_model.core.fields import problem_fields, problem_of_row
from gemm_model.core.kind_columns import kind_columns
from tests.cases import cases

RESNET = "fprop n=32 c=64 h=56 w=56 k=128 r=3 s=3 stride=1 pad=1"


def test_an_epilogue_tells_what_it_reads_computes_and_writes():
    gated = Epilogue.parse("gated_silu,bias,residual")
    assert gated.words == ("gated_silu", "bias_n", "residual")
    assert gated.output_share == 0.5
    assert gated.source_share == 0.5  # read after the gate: half as many
    assert Epilogue.parse("beta,gated_silu").source_share == 1.0  # read before it
    assert Epilogue.parse("alpha,beta,residual,relu").source_share == 2.0
    assert (gated.sigmoids, Epilogue.parse("silu").sigmoids, gated.tangents) == (0.5, 1.0, 0.0)
    assert (Epilogue.parse("gated_gelu").tangents, Epilogue.parse("relu").tangents) == (0.5, 0.0)
    assert Epilogue.parse("bias_m,bias_n,row_sum").vectors == 2
    assert Epilogue.parse("row_sum,col_sum").reductions == 1
    assert Epilogue.parse("none").words == Epilogue.parse("").words == ()


@pytest.mark.parametrize(*cases(__file__, "test_epilogues_that_are_none"))
def test_epilogues_that_are_none(text, sentence):
    with pytest.raises(InputError, match=sentence):
        Epilogue.parse(text)


def test_a_gate_halves_the_output_and_a_quantized_one_brings_its_scales():
    gated = GemmProblem.of(64, 256, 32, epilogue="gated_silu,bias")
    assert gated.output_bytes == 64 * 128 * 2
    quantized = GemmProblem.of(64, 256, 32, epilogue="quantize_1x128")
    assert quantized.out_dtype.name == "e4m3"
    assert quantized.output_bytes == 64 * 256 + 64 * 2 * 4  # one fp32 for each of two blocks of a row
    with pytest.raises(InputError, match="n is 255 with epilogue gated_silu; expected .* even"):
        GemmProblem.of(64, 255, 32, epilogue="gated_silu")
    with pytest.raises(InputError, match="out_dtype is bf16 with quantize_1x128"):
        GemmProblem.of(64, 256, 32, out_dtype="bf16", epilogue="quantize_1x128")


def test_groups_of_different_n_and_k_keep_outputs_and_products():
    groups = GroupedGemm.parse("100x64x128,300x128x64")
    m, n, k, count = groups.sizes(128, 128)
    assert count == 2
    assert m * n * k * count == pytest.approx(100 * 64 * 128 + 300 * 128 * 64)
    assert (n % 64, k % 64) == (0, 0)  # what all have in common: their rows stay aligned
    assert GemmProblem.of(400, 128, 128, groups=groups).flop == 2 * (100 * 64 * 128 + 300 * 128 * 64)
    assert groups.name == "100x64x128,300x128x64"


@pytest.mark.parametrize("text", ["uniform", "balanced", "zipf:1.2"])
def test_every_routing_gives_each_token_its_experts(text):
    routing = Routing.parse(text, experts=16, tokens=300, top_k=4)
    rows = routing.sample(5, seed=3)
    assert rows.shape == (5, 16)
    assert (rows.sum(axis=1) == 1200).all()
    assert rows.max() <= 300  # the experts of a token are different ones
    assert (rows == routing.sample(5, seed=3)).all()
    assert routing.name == text
    assert [sum(groups.rows) for groups in routing.groups(2)] == [1200, 1200]


def test_routings_follow_their_likelihood():
    balanced = Routing(experts=8, tokens=100, top_k=1, distribution="balanced").sample(1)[0]
    assert sorted(balanced.tolist()) == [12] * 4 + [13] * 4
    # One choice for each token: the first expert's share is 1 / (1 + 1/2 + 1/3 + 1/4) = 0.48.
    shares = Routing.parse("zipf:1", experts=4, tokens=5000).sample(20, seed=1).mean(axis=0) / 5000
    np.testing.assert_allclose(shares, np.array([1, 1 / 2, 1 / 3, 1 / 4]) * 0.48, atol=0.01)
    # Rows of a likely expert vary as a binomial: sqrt(5000 x 0.25 x 0.75) = 30.6.
    spread = Routing(experts=4, tokens=5000).sample(200, seed=2)[:, 0].std()
    assert spread == pytest.approx(30.6, rel=0.15)


@pytest.mark.parametrize(*cases(__file__, "test_routings_that_are_none"))
def test_routings_that_are_none(words, sentence):
    with pytest.raises(InputError, match=sentence):
        Routing.parse("uniform", **words)


@pytest.mark.parametrize("text", ["zipf", "zipf:x", "zipf:-1", "zipf:nan", "even", "uniform:2"])
def test_unknown_distributions(text):
    with pytest.raises(InputError, match="routing is .* expected uniform, balanced or zipf:EXPONENT"):
        Routing.parse(text, experts=4, tokens=8)


def test_block_scales_of_rows_and_of_square_blocks():
    problem = GemmProblem.of(256, 512, 1024, "fp8", block_scaling="1x128,128x128")
    assert problem.a_bytes == 256 * 1024 + 256 * 8 * 4  # an fp32 for 128 of a row
    assert problem.b_bytes == 512 * 1024 + 4 * 8 * 4  # one for each of 4 x 8 blocks
    assert problem.block_scaling.name == "1x128,128x128"
    assert BlockScaling.parse("128x128,1x128") == BlockScaling(a_rows=128, b_rows=1)


@pytest.mark.parametrize("text", ["1x128", "1x64,128x128", "1x128,128x100", "1x128,128x128,1x128", ""])
def test_scales_of_the_wrong_shape(text):
    with pytest.raises(InputError, match=r"block_scaling is .*; expected the scale blocks of A and of B"):
        BlockScaling.parse(text)


def test_the_three_products_of_a_convolution_have_the_same_flop():
    forward = ConvProblem.parse(RESNET)
    assert forward.output_size == (56, 56)
    pixels = 32 * 56 * 56
    assert forward.sizes == (pixels, 128, 64 * 9, 1)
    assert ConvProblem.parse(RESNET.replace("fprop", "dgrad")).sizes == (pixels, 64, 128 * 9, 1)
    assert ConvProblem.parse(RESNET.replace("fprop", "wgrad")).sizes == (128, 64 * 9, pixels, 1)
    flop = {GemmProblem.of_conv(RESNET.replace("fprop", kind)).flop for kind in ("fprop", "dgrad", "wgrad")}
    assert flop == {2 * pixels * 128 * 64 * 9}


def test_a_convolution_reads_its_image_once():
    problem = GemmProblem.of_conv(RESNET)
    assert problem.a_bytes == pytest.approx(32 * 56 * 56 * 64 * 2)
    assert problem.b_bytes == 128 * 64 * 9 * 2
    assert problem.output_bytes == 32 * 56 * 56 * 128 * 2
    weights = GemmProblem.of_conv(RESNET.replace("fprop", "wgrad"))
    assert weights.b_bytes == pytest.approx(32 * 56 * 56 * 64 * 2)
    # A filter of one tap with stride 2 sees every fourth pixel.
    skipping = GemmProblem.of_conv("fprop n=1 c=64 h=56 w=56 k=64 r=1 s=1 stride=2")
    assert skipping.a_bytes == 28 * 28 * 64 * 2


def test_convolutions_in_three_dimensions_and_in_groups():
    conv = ConvProblem.parse("fprop n=2 c=8 d=10 h=12 w=14 k=16 t=3 r=3 s=1 stride=1x2x1 pad=1x1x0 groups=4")
    assert conv.output_size == (10, 6, 14)
    assert conv.sizes == (2 * 10 * 6 * 14, 4, 2 * 9, 4)
    assert GemmProblem.of_conv(conv).b_bytes == 16 * 2 * 9 * 2
    assert ConvProblem.parse(conv.name) == conv


@pytest.mark.parametrize(*cases(__file__, "test_groups_of_few_channels_share_a_tile"))
def test_groups_of_few_channels_share_a_tile(channels, filters, groups, packed):
    conv = f"fprop n=1 c={channels} h=9 w=9 k={filters} r=3 s=3 groups={groups}"
    assert ConvProblem.parse(conv).packed == packed


@pytest.mark.parametrize(*cases(__file__, "test_convolutions_that_are_none"))
def test_convolutions_that_are_none(text, sentence):
    with pytest.raises(InputError, match=sentence):
        ConvProblem.parse(text)


def test_a_batch_may_share_an_operand():
    batch = GemmProblem.of(64, 128, 256, batch=8)
    shared = replace(batch, broadcast="b")
    assert shared.b_bytes == 128 * 256 * 2
    assert shared.a_bytes == 8 * 64 * 256 * 2
    with pytest.raises(InputError, match="broadcast comes without a batch; expected two matrices or more"):
        replace(batch, batch=1, broadcast="b")
    with pytest.raises(InputError, match="broadcast is 'c'; expected a or b"):
        replace(batch, broadcast="c")
    with pytest.raises(InputError, match="broadcast comes with groups or conv"):
        replace(GemmProblem.of(64, 128, 256, groups="60,4"), broadcast="b")


def test_strides_of_a_batch_say_how_its_matrices_lie():
    batch = GemmProblem.of(64, 128, 256, batch=8)
    packed = replace(batch, batch_strides=BatchStrides.parse("16384,32768,8192"))
    assert packed == batch
    assert packed.plain
    shared = replace(batch, batch_strides=BatchStrides.parse("16384,0,8192"))
    assert shared == replace(batch, broadcast="b")
    # Rows of eight matrices in turn: a row of A is 8 x 256 elements behind the one before it.
    turns = replace(batch, batch_strides=BatchStrides.parse("256,32776,8192"))
    a, b, out = turns.layouts
    assert (a.pitch, a.row_step, a.elements) == (2048, 256, 7 * 256 + 63 * 2048 + 256)
    # Matrices of B lie 8 elements further apart than they are long; their rows start at multiples of 8.
    assert (b.pitch, b.row_step, b.elements) == (256, 8, 7 * 32776 + 32768)
    assert (out.pitch, out.stride, out.elements) == (128, 8192, 8 * 64 * 128)
    assert not turns.plain
    assert turns.a_bytes == batch.a_bytes
    with pytest.raises(InputError, match="batch_strides comes without a batch"):
        replace(turns, batch=1)


@pytest.mark.parametrize(*cases(__file__, "test_strides_that_are_none"))
def test_strides_that_are_none(text, sentence):
    with pytest.raises(InputError, match=sentence):
        replace(GemmProblem.of(64, 128, 256, batch=8), batch_strides=BatchStrides.parse(text))


def test_a_broadcast_has_a_stride_of_zero():
    batch = GemmProblem.of(64, 128, 256, batch=8)
    strides = BatchStrides.parse("16384,32776,8192")
    with pytest.raises(InputError, match="broadcast is b with batch_strides 16384,32776,8192"):
        replace(batch, broadcast="b", batch_strides=strides)
    with pytest.raises(InputError, match="batch_strides comes with groups or conv"):
        replace(GemmProblem.of(64, 128, 256, groups="60,4"), batch_strides=strides)


def test_what_is_a_plain_product_after_all_is_held_as_one():
    plain = GemmProblem.of(100, 64, 32)
    assert GemmProblem.of(100, 64, 32, epilogue="none") == plain
    assert GemmProblem.of(100, 64, 32, groups="100") == plain
    pointwise = GemmProblem.of_conv("fprop n=1 c=32 h=10 w=10 k=64 r=1 s=1")
    assert pointwise == plain
    assert pointwise.plain
    assert not GemmProblem.of(100, 64, 32, epilogue="relu").plain


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem.of(512, 256, 128, "e4m3", "fp16", b_dtype="e5m2", batch=3, epilogue="alpha,bias"),
        replace(GemmProblem.of(512, 256, 128, batch=4), broadcast="a", a_major="m", c_major="m"),
        GemmProblem.of(512, 256, 128, "nvfp4", "bf16"),
        GemmProblem.of(512, 256, 128, "fp8", block_scaling="1x128,128x128"),
        GemmProblem.of(512, 256, 128, groups="300,0,212"),
        GemmProblem.of_conv(RESNET, "fp16"),
        replace(GemmProblem.of(512, 256, 128), acc_dtype=GemmProblem.of(1, 1, 1).out_dtype),
    ],
)
def test_the_fields_of_a_problem_tell_the_same_problem(problem):
    assert problem_of_row({**problem_fields(problem), "in_dtype": ""}) == problem


def test_a_row_of_a_convolution_has_its_sizes():
    row = problem_fields(GemmProblem.of_conv(RESNET, "fp16"))
    with pytest.raises(InputError, match="m, n, k are 7, .*; expected the implicit GEMM of conv"):
        problem_of_row({**row, "m": 7})


def test_what_a_batch_shares_and_how_groups_tile():
    problem = replace(GemmProblem.of(512, 256, 128, batch=4), broadcast="b")
    found = kind_columns(problem, 128.0, 64.0)
    assert (found.a_shared, found.b_shared) == (False, True)
    groups = GemmProblem.of(512, 256, 128, groups="300,0,212")
    for rows, along_m in ((128.0, 2.5), (np.array([128.0, 256.0]), [2.5, 1.5])):
        # Of 300 and 212 rows, 3 and 2 tiles of 128, 2 and 1 of 256.
        assert np.asarray(kind_columns(groups, rows, 64.0).clusters_m) == pytest.approx(along_m)
