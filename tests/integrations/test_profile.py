"""Profiles of programs: GEMM kernels are known by name, measured beside predicted; other files are refused."""

import gzip
import json

import pytest

from gemm_model import GemmProblem, InputError, load_gpu, predict
from gemm_model.integrations.profile import Launches, config_of, lay_beside, library_of, read_profile

NVJET = "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
SPLIT = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT"
SCALED = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, cutlass::gemm::"
    "collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecializedFP8<5, cute::tuple<cute::C<2>, cute::"
    "C<1>, cute::C<1> >, cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum>, cute::tuple<cute::C<64>, cute::"
    "C<128>, cute::C<256> >, x>"
)
ADD = "void at::native::vectorized_elementwise_kernel<4>"
SUMS = "Time (%),Total Time (ns),Instances,Avg (ns),Name\n"
TRACE = "Start (ns),Duration (us),CorrId,Name\n"


def operator(number, name, *inputs):
    """An operator whose inputs are (sizes, type, strides)."""
    columns = dict(zip(("Input Dims", "Input type", "Input Strides"), zip(*inputs, strict=True), strict=True))
    return {"cat": "cpu_op", "name": name, "args": {**columns, "External id": number}}


def kernel(number, name, time_us, *, by_call=False):
    """A launch; `by_call` leaves the operator's number to the call that launched it."""
    launch = {"correlation": f"{number}{name}"}
    call = {"cat": "cuda_runtime", "args": {**launch, "External id": number}}
    own = launch if by_call else {**launch, "External id": number}
    return [call, {"ph": "X", "cat": "kernel", "name": name, "dur": time_us, "args": own}]


def trace(path, *events, **further):
    path.write_text(json.dumps({"traceEvents": [*events], **further}))
    return path


def program(path, card):
    bf16 = "c10::BFloat16"
    square = ([4096, 4096], bf16, [4096, 1]), ([4096, 4096], bf16, [1, 4096])
    small = ([8192], bf16, [1]), ([16, 7168], bf16, [7168, 1]), ([7168, 8192], bf16, [1, 7168])
    return trace(
        path,
        *(operator(number, "aten::mm", *square) for number in (1, 2)),
        operator(3, "aten::addmm", *small),
        *(kernel(1, NVJET, 300.0) + kernel(2, NVJET, 250.0, by_call=True)),
        *(kernel(3, "void cublasLt::splitKreduce_kernel<32>", 3.0) + kernel(3, SPLIT, 41.0)),
        *(operator(4, "aten::add", *square), *kernel(4, ADD, 2.5), "no event"),
        deviceProperties=[{"name": card}],
    )


def test_operators_tell_sizes_and_kernels_their_tiles(tmp_path):
    launches, card = read_profile(program(tmp_path / "a.json", "NVIDIA H200"))
    assert card == "NVIDIA H200"
    square = GemmProblem.of(4096, 4096, 4096)
    assert [(each.name, each.problem, each.calls, each.total_us) for each in launches] == [
        (NVJET, square, 2, 550.0),
        (SPLIT, GemmProblem.of(16, 8192, 7168), 1, 44.0),
        (ADD, None, 1, 2.5),
    ]
    large, small = lay_beside(launches, load_gpu("h200"), {"regime": "kernel-only"})
    alone_us = predict(square, config_of(NVJET), "h200", options={"regime": "kernel-only"}).runtime_us
    assert large["predicted_us"] == pytest.approx(2 * alone_us)
    assert large["lost_us"] == pytest.approx(550.0 - 2 * alone_us)
    assert (large["tile"], large["predicted_for"]) == ("256x128", "the named kernel")
    assert (small["tile"], small["predicted_for"], small["n"]) == ("8x64", "the named kernel", 8192)


def test_layouts_and_batches_are_read_and_what_is_no_product_has_no_sizes(tmp_path):
    batch = ([3, 64, 32], "c10::Half", [2048, 1, 64]), ([3, 32, 16], "c10::Half", [512, 16, 1])
    other = ([4, 4], "c10::complex<float>", [4, 1]), ([4, 4], "c10::complex<float>", [4, 1])
    operators = operator(1, "aten::bmm", *batch), operator(2, "aten::mm", *other)
    path = trace(tmp_path / "a.json", *operators, *kernel(1, NVJET, 9.0), *kernel(2, NVJET, 9.0))
    first, second = read_profile(path)[0]
    problem = first.problem
    assert (problem.m, problem.n, problem.k, problem.batch) == (64, 16, 32, 3)
    assert (problem.a_major, problem.b_major, problem.a_dtype.name) == ("m", "n", "fp16")
    assert second.problem is None


def test_reports_of_nsys_are_read_past_their_first_lines_and_in_their_units(tmp_path):
    sums = tmp_path / "sums.csv"
    rows = f'60.0,"410,000",2,205000.0,{NVJET}\n1,2500,1,2500,{ADD}\n'
    sums.write_text(f"Processing [a.sqlite]...\n{SUMS}{rows}")
    launches, card = read_profile(sums)
    assert card == ""
    assert [(each.name, each.calls, each.total_us) for each in launches] == [(NVJET, 2, 410.0), (ADD, 1, 2.5)]
    each = tmp_path / "trace.csv.gz"
    text = f"{TRACE}1,9.5,7,{NVJET}\n2,4,8,[CUDA memset]\n3,0.5,9,{NVJET}\n"
    each.write_bytes(gzip.compress(text.encode()))
    (found,) = read_profile(each)[0]
    assert (found.calls, found.total_us) == (2, 10.0)
    (row,) = lay_beside([found], load_gpu("h200"), {})
    assert (row["kernel"], row["predicted_us"]) == ("cublas", None)


def test_kernels_of_cuda_cores_are_predicted_by_name_with_k_split_as_is_fastest():
    problems = (GemmProblem.of(*sizes, "fp32") for sizes in ((4096, 4096, 4096), (64, 64, 16384)))
    named = {"name": "ampere_sgemm_128x64_tn", "calls": 1, "total_us": 9e3}
    launches = [Launches(problem=problem, **named) for problem in problems]
    deep, large = lay_beside(launches, load_gpu("a100_sxm_80gb"), {})
    assert {(row["kernel"], row["tile"]) for row in (large, deep)} == {("sgemm", "64x128")}
    # 19.5 TFLOP/s at most; one CTA alone takes 16384 x 8192 / 64 clocks of 1410 MHz.
    assert 2 * 4096**3 / 19.5e6 < large["predicted_us"] < 1.15 * 2 * 4096**3 / 19.5e6
    assert deep["predicted_us"] < 16384 * 8192 / 64 / 1410 / 8


def test_names_tell_libraries_and_cutlass_s_tiles():
    names = (NVJET, SCALED, "kernel_cutlass_kernel_quackgemm_sm90GemmSm90_0", "triton_tem_fused_mm_0", ADD)
    assert [library_of(name) for name in names] == ["cublas", "cutlass", "quack", "triton", ""]
    assert config_of(NVJET).kernel == "cublas"
    scaled = config_of(SCALED)
    assert (scaled.cta_m, scaled.cta_n, scaled.cta_k, scaled.stages) == (64, 128, 256, 5)
    assert (scaled.cluster_m, scaled.schedule, scaled.fast_accum) == (2, "pingpong", True)
    own = config_of("cutlass3x_sm90_tensorop_gemm_bf16_bf16_f32_bf16_bf16_128x256x64_2x1x1_0_tnn_align8")
    assert (own.cta_m, own.cta_n, own.cluster_m, own.schedule) == (128, 256, 2, "cooperative")


def test_brackets_without_end_are_refused(tmp_path):
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="recursion"):
        read_profile(tmp_path / "a.json")


def test_the_command_sorts_by_lost_time_and_counts_what_it_cannot_tell(gemm_model, tmp_path):
    path = program(tmp_path / "a.json", "NVIDIA H100 80GB HBM3")
    answer = json.loads(gemm_model("explain", "--profile", path, "--format", "json").out)
    assert (answer["gpu"], answer["result"]) == ("h100_sxm", {"total_us": 596.5, "untold_us": 2.5})
    assert [row["calls"] for row in answer["rows"]] == [2, 1]
    assert answer["notes"] == ["1 launches of 1 other kernels, 2.5 us of 596.5 us: their names tell no GEMM"]
    for file, words, sentence in (
        (tmp_path / "none", (), "No such file"),
        (path, ("--cta", "128x128"), "--cta has no effect with --profile"),
        (program(path, "GTX"), (), "'GTX' is no described GPU"),
    ):
        found = gemm_model("explain", "--profile", file, *words)
        assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
        assert sentence in found.err


def test_kernels_of_older_cards_multiply_by_mma_sync():
    square = GemmProblem.of(4096, 4096, 4096)
    names = (NVJET, "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn")
    of_a_program = [Launches(name=each, problem=square, calls=1, total_us=1.0) for each in names]
    own, older = lay_beside(of_a_program, load_gpu("h200"), {})
    assert (own["kernel_name"], older["kernel_name"]) == names
    assert 1.4 < older["predicted_us"] / own["predicted_us"] < 2.4
