import csv
import json

import pytest

from gemm_model import InputError, Ranker, predict_table
from gemm_model.integrations.cutlass_profiler import read_problems, read_results, write_test_list

MODEL = "WSPersistentGEMMModel"
RANKER = Ranker("h200", model=MODEL, family="cutlass")
ENTRY = {
    "m": 4096, "n": 2048, "k": 1024, "batch_count": 2, "layout": "tnn", "dtype_a": "f16", "dtype_b": "f16",
    "dtype_c": "f16", "dtype_acc": "f32", "dtype_d": "f16", "beta": 0.0, "use_fast_acc": False,
}  # fmt: skip


def problems_file(tmp_path, *entries):
    path = tmp_path / "problems.json"
    path.write_text(json.dumps(list(entries)))
    return path


def test_a_problem_list_is_read(tmp_path):
    types = {"dtype_a": "e4m3", "dtype_b": "e5m2", "dtype_d": "bf16"}
    fp8 = {"m": 64, "n": 32, "k": 16, "layout": "tnt", **types}
    half, eight = (each.problem for each in read_problems(problems_file(tmp_path, ENTRY, fp8)))
    assert (half.m, half.n, half.k, half.batch) == (4096, 2048, 1024, 2)
    assert (half.a_dtype.name, half.a_major, half.b_major, half.c_major) == ("fp16", "k", "k", "m")
    assert (eight.a_dtype.name, eight.b_dtype.name, eight.out_dtype.name) == ("e4m3", "e5m2", "bf16")
    assert (eight.c_major, eight.batch) == ("n", 1)


def test_a_test_list_names_kernels_and_arguments(tmp_path):
    problems = read_problems(problems_file(tmp_path, ENTRY))
    assert write_test_list(tmp_path / "tests.csv", problems, RANKER, 3) == 3
    rows = list(csv.DictReader((tmp_path / "tests.csv").open()))
    names = [row["operation_name"] for row in rows]
    assert len(set(names)) == 3
    best = RANKER.rank(problems[0].problem, 1).best.candidate.config
    assert names[0] == (
        f"cutlass3x_sm90_tensorop_gemm_f16_f16_f32_void_f16_{best.cta_m}x{best.cta_n}x64_"
        f"{best.cluster_m}x{best.cluster_n}x1_0_tnn_align8_warpspecialized_{best.schedule}_epi_tma"
    )
    assert (rows[0]["m"], rows[0]["batch_count"], rows[0]["swizzle_size"]) == ("4096", "2", str(best.swizzle))


def test_fast_accumulation_is_in_the_name(tmp_path):
    fp8 = {**ENTRY, "dtype_a": "e4m3", "dtype_b": "e4m3", "use_fast_acc": True, "beta": 1.0}
    write_test_list(tmp_path / "tests.csv", read_problems(problems_file(tmp_path, fp8)), RANKER, 1)
    name = next(csv.DictReader((tmp_path / "tests.csv").open()))["operation_name"]
    assert "_e4m3_e4m3_f32_f16_f16_" in name
    assert name.endswith("_fp8_fastaccum_epi_tma")


def test_test_lists_are_for_hopper_kernels_of_cutlass(tmp_path):
    with pytest.raises(InputError, match="family cutlass on an sm90 GPU"):
        write_test_list(tmp_path / "x.csv", [], Ranker("h200", model=MODEL), 1)


HEADER = (
    "Problem,Provider,OperationKind,Operation,Disposition,Status,gemm_kind,m,n,k,A,B,C,D,alpha,beta,split_k_mode,"
    "split_k_slices,batch_count,raster_order,use_pdl,swizzle_size,op_class,accum,cta_m,cta_n,cta_k,cluster_m,"
    "cluster_n,cluster_k,stages,Bytes,Flops,Runtime,GB/s,GFLOPs"
)
NAME = "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x256x64_1x2x1_0_tnn_align8"


def result(operation=NAME, disposition="passed", runtime="0.235348", a="bf16:row", cluster=",,"):
    return (
        f"1,CUTLASS,gemm,{operation},{disposition},success,universal,4352,4096,2048,{a},bf16:column,bf16:column,"
        f"bf16:column,1,0,serial,1,1,heuristic,false,2,tensorop,f32,128,256,64,{cluster},7,1,2,{runtime},4,6"
    )


def results_file(tmp_path, *rows):
    path = tmp_path / "results.gemm.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_results_become_measurements_in_microseconds(tmp_path):
    rows = [
        result(NAME + "_warpspecialized_pingpong_epi_tma"),
        result(disposition="incorrect"),
        result(NAME + "_warpspecialized_cooperative_fp8_fastaccum_epi_tma", "not_verified", "1.5"),
    ]
    frame, notes = read_results(results_file(tmp_path, *rows), "h200")
    assert notes == ["rows left out: 1 incorrect"]
    assert frame["runtime_us"].tolist() == [pytest.approx(235.348), pytest.approx(1500)]
    assert frame["schedule"].tolist() == ["pingpong", "cooperative"]
    assert frame["fast_accum"].tolist() == [0, 1]
    first = frame.iloc[0]
    # The cluster's columns are empty in some versions of the profiler; the kernel's name has it.
    assert (first.cta_m, first.cta_n, first.cta_k, first.cluster_m, first.cluster_n) == (128, 256, 64, 1, 2)
    assert (first.m, first.n, first.k, first.swizzle, first.stages) == (4352, 4096, 2048, 2, 7)
    assert (first.a_major, first.b_major, first.c_major) == ("k", "k", "m")
    predicted = predict_table(frame, "h200", MODEL)
    assert (predicted["predicted_us"] > 0).all()


def test_a_pair_of_ctas_halves_the_tile(tmp_path):
    name = "cutlass3x_sm100_tensorop_gemm_f16_f16_f32_void_f16_256x128x64_2x1x1_0_tnn_align8_2sm"
    frame, _ = read_results(results_file(tmp_path, result(name)), "b200_1300mhz")
    assert (frame["mma_m"][0], frame["cta_m"][0], frame["schedule"][0]) == (256, 128, "2cta")


def test_older_names_leave_the_tile_to_the_columns(tmp_path):
    name = "cutlass_tensorop_f16_s16816gemm_f16_256x128_32x3_nt_align8"
    frame, _ = read_results(results_file(tmp_path, result(name, cluster="1,1,1")), "a100_sxm_80gb")
    assert (frame["cta_m"][0], frame["cta_n"][0], frame["cluster_n"][0]) == (128, 256, 1)


def test_the_verb_reads_and_writes(gemm_model, tmp_path):
    tests = tmp_path / "tests.csv"
    words = ("--problems", problems_file(tmp_path, ENTRY), "--output", tests, "--model", MODEL)
    outcome = gemm_model("cutlass-profiler", *words)
    assert (outcome.code, "wrote 4 tests" in outcome.out) == (0, True)
    table = tmp_path / "table.csv"
    outcome = gemm_model("cutlass-profiler", "--results", results_file(tmp_path, result()), "--output", table)
    assert (outcome.code, "wrote 1 measurements" in outcome.out) == (0, True)
    assert gemm_model("predict", "--input", table, "--model", MODEL).code == 0
