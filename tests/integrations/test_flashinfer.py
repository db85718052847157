import json

import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, predict
from gemm_model.core.problem import swapped
from gemm_model.integrations.flashinfer import rounded_up, write_tuning_cache
from tests.cases import cases

PROBLEMS = [GemmProblem.of(500, 1160, 4096, kind) for kind in ("nvfp4", "mxfp4", "mxfp8")]
"""FlashInfer tunes for 512 rows; scales come for 128 columns each: 1280."""


def test_keys_and_kernels_of_a_file(tmp_path):
    assert [*map(rounded_up, (33, 256, 257, 2049, 4097))] == [64, 256, 512, 2560, 8192]
    problems = [*PROBLEMS, GemmProblem.of(32, 4096, 4096, "nvfp4")]
    assert write_tuning_cache(tmp_path / "tuned.json", problems, "b200_sxm") == 2 * 3 + 1
    found = json.loads((tmp_path / "tuned.json").read_text())
    assert found["_metadata"]["gpu"] == "NVIDIA B200"
    shapes = "((512, 2048), (2048, 1160), (-1, 256), (256, 1280), (), (0,), (-1, 1160), (0,), (0,), (-1,))"
    assert found[f"('fp4_gemm', 'CuteDSLFp4GemmRunner', {shapes}, ())"][1][3:] == [False, "sm100", None]
    mxfp8 = "((512, 4096), (4096, 1160), (-1,), (163840,), (0,), (-1, 1160), (41943040,)), ('torch.bfloat16', True)"
    assert found[f"('mxfp8_gemm', 'CuteDSLMxfp8GemmRunner', {mxfp8})"][1][3:] == [False, 1]


@pytest.mark.parametrize("m", [33, 512, 8192])
def test_no_other_tile_is_predicted_to_be_faster(tmp_path, m):
    problem = GemmProblem.of(64 if m == 33 else m, 4096, 2048, "mxfp8")
    write_tuning_cache(tmp_path / "tuned.json", [GemmProblem.of(m, 4096, 2048, "mxfp8")], "b200_sxm")
    ((_, tactic),) = list(json.loads((tmp_path / "tuned.json").read_text()).values())[1:]

    def time_us(tile, cluster, swap):
        schedule = "2cta" if tile[0] == 256 else "cooperative"
        kernel = {"cta_m": 128, "mma_m": tile[0], "cta_n": tile[1], "schedule": schedule, "kernel": "quack"}
        config = KernelConfig(**kernel, cluster_m=cluster[0], cluster_n=cluster[1], swizzle=8)
        return predict(swapped(problem) if swap else problem, config, "b200_sxm").runtime_us

    others = [((rows, n), (rows // 128, 1)) for rows in (128, 256) for n in (64, 128, 192, 256)]
    least_us = min(time_us(*other, swap) for other in others for swap in (False, True))
    assert time_us(*tactic[:3]) <= least_us * 1.000001


def test_flashinfer_takes_from_the_file_what_it_would_tune(tmp_path, monkeypatch):
    flashinfer = pytest.importorskip("flashinfer", reason="FlashInfer is not installed")
    import torch
    from flashinfer.fused_moe.utils import map_to_hybrid_bucket_uncapped
    from flashinfer.gemm import gemm_base as theirs

    assert [rounded_up(m) for m in range(1, 9000)] == [*map(map_to_hybrid_bucket_uncapped, range(1, 9000))]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA B200")
    write_tuning_cache(tmp_path / "tuned.json", PROBLEMS, "b200_sxm")
    with flashinfer.autotune(False, cache=str(tmp_path / "tuned.json")):
        pass  # what it has read stays
    tuner = flashinfer.autotuner.AutoTuner.get()

    def meta(*sizes, dtype=torch.uint8):
        return torch.empty(sizes, dtype=dtype, device="meta")

    out, kind = meta(500, 1160, dtype=torch.bfloat16), torch.bfloat16
    operands = (meta(500, 2048), meta(1160, 2048).T)
    for size in (16, 32):
        runner = theirs._cute_dsl_gemm_fp4_runner(10, 0, True, kind, size == 16)
        scales = (meta(512, 4096 // size), meta(1280, 4096 // size).T)
        for alpha in (meta(), meta(1), None):
            rest = (*scales, alpha, kind, out, size, size == 16, meta(1))
            given = ([runner], theirs._MM_FP4_TUNING_CONFIG_128x4, [*operands, *rest])
            assert tuner.choose_one("fp4_gemm", *given)[1] != -1
    runner = theirs._cute_dsl_gemm_mxfp8_runner(10, 0, True, kind)
    scales = (meta(512 * 128), meta(1280 * 128))
    rest = (*scales, kind, out, meta(theirs.DEFAULT_WORKSPACE_SIZE))
    inputs = [meta(500, 4096), meta(1160, 4096).T, *rest]
    given = ([runner], theirs._MM_MXFP8_CUTE_DSL_TUNING_CONFIG, inputs)
    assert tuner.choose_one("mxfp8_gemm", *given)[1] != -1


@pytest.mark.parametrize(*cases(__file__, "test_what_flashinfer_does_not_multiply_is_refused"))
def test_what_flashinfer_does_not_multiply_is_refused(tmp_path, sizes, kind, gpu, words):
    with pytest.raises(InputError, match=words):
        write_tuning_cache(tmp_path / "tuned.json", [GemmProblem.of(*sizes, kind)], gpu)
    assert not (tmp_path / "tuned.json").exists()
