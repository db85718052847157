"""The Python interface takes what programs have: numpy integers, paths, torch's types, any table."""

import doctest
import pickle
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gemm_model as gm
from gemm_model import GemmProblem, InputError, KernelConfig, predict, predict_table

MODEL = "WSPersistentGEMMModel"
CONFIG = KernelConfig(cta_m=128, cta_n=256, cluster_m=2)
H200_YAML = Path(gm.__file__).parent / "config" / "gpu" / "h200.yaml"
ROWS = {
    **{"in_dtype": "bf16", "m": [512, 1024, 2048], "n": 512, "k": 512},
    **{"cta_m": 128, "cta_n": 128, "cluster_m": 1, "cluster_n": 1},
}


class TorchType:
    """What torch.bfloat16 and the like look like from outside."""

    def __str__(self):
        return "torch.bfloat16"


def test_sizes_may_be_numpy_s_integers():
    problem = GemmProblem.of(np.int32(512), np.int64(512), np.uint16(512))
    assert problem == GemmProblem.of(512, 512, 512)
    assert type(problem.m) is int
    assert KernelConfig(cta_m=np.int64(128), cta_n=np.int32(256), cluster_m=np.int8(2)) == CONFIG
    for bad in (True, 1.0, np.float64(4), "4", None, np.array([1, 2]), 10**400, -1):
        with pytest.raises(InputError, match="expected a positive whole number"):
            GemmProblem.of(bad, 1, 1)


@pytest.mark.parametrize(
    "name",
    [
        *("Prediction", "GemmProblem", "KernelConfig", "Epilogue", "Ranker"),
        *("predict", "predict_table", "rank", "explain", "load_gpu", "predict_model"),
    ],
)
def test_help_tells_fields_and_errors_and_its_example_runs(name):
    found = getattr(gm, name)
    text = found.__doc__
    for spec in fields(found) if is_dataclass(found) else ():
        # a_dtype and the like may stand for a pattern.
        assert re.search(rf"\b{spec.name}\b|{spec.name.split('_')[0]}_\*", text), spec.name
    assert "InputError" in text or name in ("Prediction", "Ranker")
    example = doctest.DocTestFinder(recurse=False).find(found, name)[0]
    assert len(example.examples) >= 2
    assert doctest.DocTestRunner().run(example).failed == 0


def test_types_and_names_in_any_case_torch_s_types_and_paths():
    problem = GemmProblem.of(512, 512, 512)
    assert GemmProblem.of(512, 512, 512, "BF16") == problem
    assert GemmProblem.of(512, 512, 512, TorchType(), TorchType()) == problem
    assert GemmProblem.of(512, 512, 512, problem.a_dtype) == problem
    assert GemmProblem.of(512, 512, 512, "NVFP4").a_scale == GemmProblem.of(512, 512, 512, "nvfp4").a_scale
    known = predict(problem, CONFIG, "h200", MODEL)
    for gpu in ("H200", H200_YAML, str(H200_YAML)):
        assert predict(problem, CONFIG, gpu, MODEL.lower()) == known
    assert gm.rank(problem, H200_YAML, 1, model=MODEL).best.rank == 1


@pytest.mark.parametrize(
    ("column", "flags"),
    [
        ([True, False, True], [1, 0, 1]),
        ([1.0, 0.0, np.nan], [1, 0, 0]),
        (pd.array([True, None, False], dtype="boolean"), [1, 0, 0]),
        (pd.array([1, None, 0], dtype="Int64"), [1, 0, 0]),
        (["1", "", "0.0"], [1, 0, 0]),
        (["TRUE", "False", None], [1, 0, 0]),
    ],
)
def test_fast_accumulation_may_be_a_flag_a_number_or_missing(column, flags):
    found = predict_table(pd.DataFrame({**ROWS, "in_dtype": "fp8", "fast_accum": column}), "h200")
    known = predict_table(pd.DataFrame({**ROWS, "in_dtype": "fp8", "fast_accum": flags}), "h200")
    assert found["predicted_us"].tolist() == known["predicted_us"].tolist()


def test_a_flag_that_is_none_is_named():
    with pytest.raises(InputError, match="row 1, column fast_accum: 'maybe'; expected 0 or 1"):
        predict_table(pd.DataFrame({**ROWS, "fast_accum": ["1", "maybe", "0"]}), "h200", MODEL)


def test_rows_of_failed_runs_and_of_libraries_are_left_out_and_told():
    frame = pd.DataFrame(
        {**ROWS, "kernel": ["quack", "cublas", "quack"], "disposition": ["ok", "ok", "failed"]}
    )
    frame["cta_m"] = [128, None, 128]
    found = predict_table(frame, "h200", MODEL)
    assert found["m"].tolist() == ROWS["m"]
    assert found["disposition"].tolist() == ["ok", "no_tile", "failed"]
    assert found["predicted_us"].notna().tolist() == [True, False, False]
    assert found.attrs["notes"] == [
        "1 row without a measurement (column disposition): no prediction",
        "1 row of kernel cublas without a tile: no prediction",
    ]


def test_rows_of_two_kernels_in_turn_are_left_out_and_rows_of_other_regimes_are_told():
    chains = pd.DataFrame({**ROWS, "runtime_us": 20.0, "regime": ["graph", "burst", "graph"]})
    chains = chains.assign(settled=["1", "", ""], partner=["", "", "rmsnorm"])
    found = predict_table(chains, "h200", options={"regime": "graph", "residual": "off"})
    assert found["disposition"].tolist() == ["ok", "ok", "in_turn"]
    assert found.attrs["notes"][:3] == [
        "1 row of two kernels in turn (column partner): no prediction",
        "1 row measured in the regime burst: predicted in graph",
        "1 row measured at a settled clock: predicted at a rested one; regime sustained predicts such",
    ]
    alone = chains[["m", "n", "k", "in_dtype", "cta_m", "cta_n", "cluster_m", "cluster_n", "regime"]]
    note = "1 row of the regime burst: predicted in graph"
    elsewhere = predict_table(alone.assign(gpu="b200"), "h200", options={"regime": "graph"})
    assert elsewhere.attrs["notes"] == [note, "rows of b200: answered for h200, as asked"]
    of_one_regime = predict_table(chains.drop(columns="partner"), "h200", "SOLModel")
    assert of_one_regime.attrs["notes"] == []


def test_another_name_of_the_regime_is_the_same_one():
    rows = pd.DataFrame({**ROWS, "runtime_us": 20.0, "regime": "kernel-only"})
    assert predict_table(rows, "h200", options={"regime": "counters"}).attrs["notes"] == []


def test_other_ways_of_calling_a_library_are_its_family_and_untold_splits_are_left_out():
    frame = pd.DataFrame({**ROWS, "kernel": ["cublas", "cublaslt", "cublaslt"], "split_k": ["1", "1", ""]})
    frame["kernel_name"] = ["nvjet", "nvjet", "nvjet_splitK"]
    frame["m"] = 512
    found = predict_table(frame, "h200")
    assert found["predicted_us"].iloc[0] == found["predicted_us"].iloc[1]
    assert found.attrs["notes"][0] == "1 row with an unknown split of K: no prediction"
    assert found["disposition"].tolist() == ["ok", "ok", "split_untold"]


def test_a_grid_of_a_cta_for_each_part_tells_the_splits():
    frame = pd.DataFrame({**ROWS, "kernel": "cublas", "kernel_name": "nvjet_splitK", "split_k": ""})
    frame = frame.assign(m=500, n=1000, cta_m=128, cta_n=128, cluster_m=1, cluster_n=2)
    # 4 x 8 tiles: three times as many CTAs, a persistent grid, and no grid.
    frame["grid"] = ["(8, 12, 1)", "(2, 66, 1)", None]
    found = predict_table(frame, "h200")
    assert found["split_k"].tolist() == ["3", "", ""]
    assert found["predicted_us"].notna().tolist() == [True, False, False]
    assert found.attrs["notes"][0] == "2 rows with an unknown split of K: no prediction"


def test_every_function_takes_a_gpu_by_name_path_and_description():
    problem = GemmProblem.of(512, 512, 512)
    known = gm.explain(problem, CONFIG, gm.load_gpu("h200"))
    for gpu in ("H200", H200_YAML):
        assert gm.explain(problem, CONFIG, gpu) == known
        assert gm.Ranker(gpu).gpu == gm.load_gpu("h200")
        assert gm.triton_perf_model(gpu).gpu == gm.load_gpu("h200")
    for wrong in (None, 3, ["h200"]):
        for call in (lambda gpu: predict(problem, CONFIG, gpu), lambda gpu: gm.rank(problem, gpu)):
            with pytest.raises(InputError, match="expected a GpuSpec, a name or a YAML file"):
                call(wrong)


@pytest.mark.parametrize("count", ["x", 0, -1, 1.5, None])
def test_a_count_that_is_none_is_refused(count):
    with pytest.raises(InputError, match="top_k is"):
        gm.rank(GemmProblem.of(512, 512, 512), "h200", count)


def test_a_column_that_stands_twice_is_named():
    frame = pd.DataFrame(ROWS)
    with pytest.raises(InputError, match="column 'm' appears twice"):
        predict_table(pd.concat([frame, frame[["m"]]], axis=1), "h200", MODEL)


def test_public_names_hold_whatever_was_imported_first():
    code = (
        "import gemm_model.models, gemm_model.kernels.family, gemm_model.config\n"
        "import gemm_model\n"
        "assert 'SOLModel' in gemm_model.models() and 'h200' in gemm_model.gpus()\n"
        "assert 'quack' in gemm_model.families()\n"
        "names = [name for name in gemm_model.__all__ if 'Timer' not in name]\n"
        "assert all(getattr(gemm_model, name) is not None for name in names)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_gpu_is_a_name_a_file_or_a_description(tmp_path):
    text = (Path(gm.__file__).parent / "config" / "gpu" / "a100_sxm_80gb.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    problem, config = GemmProblem.of(512, 512, 512), KernelConfig(cta_m=128, cta_n=128)
    routing = gm.Routing(experts=2, tokens=512)
    for call in (
        gm.families,
        lambda gpu: predict(problem, config, gpu).runtime_us,
        lambda gpu: gm.rank(problem, gpu).best.candidate,
        lambda gpu: gm.Ranker(gpu).names,
        lambda gpu: gm.explain(problem, config, gpu).prediction.runtime_us,
        lambda gpu: gm.expected_time(problem, routing, config, gpu, model="SOLModel").mean_us,
    ):
        alike = [call(gpu) for gpu in ("A100_SXM_80GB", path, str(path), gm.load_gpu("a100_sxm_80gb"))]
        assert alike == [alike[0]] * 4
    assert gm.families("a100_sxm_80gb") == ("cublas", "cutlass", "triton", "cudnn")


PROBLEM = GemmProblem.of(512, 512, 512)
ROUTING = gm.Routing(experts=4, tokens=512)
RANKER = gm.Ranker("h200")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: GemmProblem(m=1, n=1, k=1, a_dtype="bf16"), "a_dtype is of type str; expected a DataType"),
        (
            lambda: GemmProblem(m=1, n=1, k=1, a_scale=3),
            "a_scale is of type int; expected a BlockScale or None",
        ),
        (
            lambda: GemmProblem.of(64, 64, 64, epilogue=5),
            "epilogue is of type int; expected an Epilogue or None",
        ),
        (
            lambda: GemmProblem.of(64, 64, 64, groups=5),
            "groups is of type int; expected a GroupedGemm or None",
        ),
        (lambda: gm.Epilogue(words=5), "words is of type int; expected a tuple"),
        (lambda: gm.GroupedGemm(rows=5), "rows is of type int; expected a tuple"),
        (lambda: KernelConfig(cta_m=64, cta_n=64, kernel=5), "kernel is of type int; expected a str"),
        (lambda: KernelConfig(cta_m=64, cta_n=64, fast_accum="x"), "fast_accum is 'x'; expected one of"),
        (lambda: KernelConfig(cta_m=64, cta_n=64, pdl="x"), "pdl is 'x'; expected one of"),
        (lambda: predict(None, CONFIG, "h200"), "problem is of type NoneType; expected a GemmProblem"),
        (lambda: predict(PROBLEM, None, "h200"), "config is of type NoneType; expected a KernelConfig"),
        (lambda: predict(PROBLEM, CONFIG, "h200", options=[1]), r"options are \[1\]; expected a mapping"),
        (lambda: predict_table(None, "h200"), "frame is of type NoneType; expected a DataFrame"),
        (lambda: gm.rank(None), "problem is of type NoneType; expected a GemmProblem"),
        (lambda: gm.Ranker("h200").rank(None), "problem is of type NoneType"),
        (lambda: gm.explain(None, CONFIG, "h200"), "problem is of type NoneType"),
        (lambda: gm.load_gpu(5), "gpu is 5; expected a name or a YAML file"),
        (lambda: predict(PROBLEM, CONFIG, "h200", model=[]), "model is of type list; expected a str"),
        (lambda: gm.rank([], "h200"), "problem is of type list; expected a GemmProblem"),
        (lambda: gm.rank(PROBLEM, "h200", top_k=[]), r"top_k is \[\]; expected a positive"),
        (lambda: gm.rank(PROBLEM, "h200", family=[]), "family is of type list; expected a str"),
        (lambda: gm.Ranker("h200", options=5), "options are 5; expected a mapping"),
        (lambda: gm.Ranker("h200").why_not(PROBLEM, None), "configuration is of type NoneType"),
        (lambda: gm.rank_routing(None, PROBLEM, ROUTING), "ranker is of type NoneType"),
        (lambda: gm.rank_routing(RANKER, PROBLEM, None), "routing is of type NoneType; expected a R"),
        (lambda: gm.rank_routing(RANKER, PROBLEM, ROUTING, "x"), "top_k is 'x'; expected a positive"),
        (
            lambda: gm.rank_routing(RANKER, PROBLEM, ROUTING, count=1.5),
            "count of routings is 1.5; expected a positive whole number",
        ),
        (
            lambda: gm.rank_routing(RANKER, PROBLEM, ROUTING, seed=-1),
            "seed is -1; expected a whole number, 0 or more",
        ),
        (
            lambda: gm.expected_time(None, ROUTING, CONFIG, "h200"),
            "problem is of type NoneType; expected a GemmProblem",
        ),
        (lambda: gm.Routing(experts=4, tokens=4, exponent="x"), "routing has exponent 'x'"),
        (lambda: gm.Routing.parse(5, experts=4, tokens=4), "routing is of type int; expected a str"),
        (lambda: gm.ConvProblem.parse(5), "conv is of type int; expected a str"),
        (lambda: GemmProblem.of_conv(5), "conv is of type int; expected a ConvProblem"),
        (lambda: gm.Epilogue.parse(5), "epilogue is of type int; expected a str"),
        (lambda: gm.GroupedGemm.parse(5), "groups is of type int; expected a str"),
        (lambda: gm.families("h2000"), "unknown GPU 'h2000'; did you mean h20"),
        (lambda: gm.families(5), "gpu is 5; expected a GpuSpec, a name or a YAML file"),
    ],
)
def test_values_of_another_kind_are_refused_in_a_sentence(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


def test_what_a_call_returned_changes_no_later_call():
    gm.gpus().clear()
    assert "h200" in gm.gpus()
    problem = GemmProblem.of(1024, 1024, 1024)
    ranking = gm.rank(problem, "h200", 2)
    assert pickle.loads(pickle.dumps(ranking)) == ranking
    best = ranking.best.prediction
    for numbers in (best.phases_us, best.details, best.bytes_by_level, ranking.place):
        before = dict(numbers)
        with pytest.raises(TypeError, match="read-only"):
            numbers["waves"] = 0.0
        with pytest.raises(TypeError, match="read-only"):
            numbers.clear()
        assert pickle.loads(pickle.dumps(numbers)) == numbers == before
    assert gm.rank(problem, "h200", 2).best.prediction == best
    row = {"m": 1024, "n": 1024, "k": 1024, "in_dtype": "bf16", "cta_m": 128, "cta_n": 128}
    tables = [gm.predict_table(pd.DataFrame([row]).assign(cluster_m=1, cluster_n=1), "h200") for _ in "ab"]
    tables[0].loc[0, "predicted_us"] = 0.0
    assert tables[1]["predicted_us"][0] > 0.0


def test_all_names_are_there_without_their_extras():
    code = """
import sys
sys.modules["torch"] = None
from gemm_model import *
import gemm_model
assert hasattr(gemm_model, "GemmTimer")
try:
    gemm_model.GemmTimer("h200")
except gemm_model.errors.MissingExtraError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" in found.stdout
