"""Data types, problems, configurations and GPU descriptions validate themselves."""

import re
from dataclasses import replace

import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, load_gpu, predict
from gemm_model.config import gpu_names, load_config, load_gpu_mapping
from gemm_model.core.batch import batch_of, numbers_of
from gemm_model.core.dtypes import MATH_KINDS, element_type, operand_type
from gemm_model.core.gpu import gpu_from_mapping
from gemm_model.core.settings import load_settings
from gemm_model.tables.schema import card_named
from tests.cases import cases


@pytest.mark.parametrize("name", ["fp32", "tf32", "fp16", "bf16", "fp8", "e4m3", "e5m2", "int8", "e2m1"])
def test_plain_types_have_no_scale_and_a_known_rate_class(name):
    element, scale = operand_type(name)
    assert scale is None
    assert element.math_kind in MATH_KINDS


# CUDA C++ Programming Guide, tensor core data types by compute capability; block-scaled ones: PTX ISA.
AMPERE = ("tf32", "bf16", "fp16", "int8")
ADA_AND_HOPPER = (*AMPERE, "e4m3", "e5m2")
BLACKWELL = (*ADA_AND_HOPPER, "e3m2", "e2m3", "e2m1")
MULTIPLIED_ON = {
    name: types
    for names, types in (
        ("p100_pcie p4", ()),
        ("v100_sxm2 v100_pcie", ("fp16",)),
        ("t4", ("fp16", "int8")),
        ("a100_pcie_40gb a100_pcie_80gb a100_sxm_40gb a100_sxm_80gb a10 a30 a40 rtx_3090 rtx_a6000", AMPERE),
        ("l20 l4 l40 l40s rtx_4090 rtx_6000_ada gh200 h100_nvl h100_pcie h100_sxm h20", ADA_AND_HOPPER),
        ("h200 h800_sxm", ADA_AND_HOPPER),
        ("b100_sxm b200_1300mhz b200_sxm b300_sxm gb10 gb200 gb300 rtx_5090", BLACKWELL),
        ("rtx_pro_6000_max_q rtx_pro_6000_server rtx_pro_6000_workstation", BLACKWELL),
    )
    for name in names.split()
}
GPUS = tuple(MULTIPLIED_ON)


@pytest.mark.parametrize("name", GPUS)
def test_the_types_of_each_gpus_tensor_cores(name):
    gpu = load_gpu(name)
    found = tuple(each for each in BLACKWELL if gpu.multiplies(element_type(each)))
    assert found == MULTIPLIED_ON[name]


def test_fp4_has_its_own_rate_with_block_scales_alone():
    # tcgen05.mma: kind::mxf4 and mxf4nvf4 need scales, kind::f8f6f4 runs all its types at the rate of fp8.
    kinds = {name: GemmProblem.of(64, 64, 64, name).math_kind for name in ("e2m1", "e3m2", "nvfp4", "mxfp4")}
    assert kinds == {"e2m1": "fp6", "e3m2": "fp6", "nvfp4": "fp4", "mxfp4": "fp4"}
    assert GemmProblem.of(64, 64, 64, "e2m1", b_dtype="mxfp4").math_kind == "fp6"
    config = KernelConfig(cta_m=128, cta_n=128)
    times_us = [
        predict(GemmProblem.of(8192, 8192, 8192, name), config, "b200_1300mhz", model="SOLModel").runtime_us
        for name in ("e4m3", "e2m1", "nvfp4")
    ]
    assert times_us == pytest.approx([times_us[0], times_us[0], times_us[0] / 2])
    for model in ("SOLModel", "KernelModel"):
        with pytest.raises(InputError, match="GPU h200 has no fp4 math"):
            predict(GemmProblem.of(64, 64, 64, "e2m1"), config, "h200", model=model)


def test_unknown_type_names_the_known_ones():
    with pytest.raises(InputError, match=r"unknown data type 'fp7'; expected one of .*bf16.*nvfp4"):
        operand_type("fp7")


@pytest.mark.parametrize("size", [0, -1, 1.5, "64", True, None, 2**41])
def test_sizes_are_positive_whole_numbers(size):
    with pytest.raises(InputError, match="m is .* expected a positive whole number"):
        GemmProblem.of(size, 1, 1)
    with pytest.raises(InputError, match="cta_m is .* expected a positive whole number"):
        KernelConfig(cta_m=size, cta_n=64)


@pytest.mark.parametrize(("field", "value"), [("schedule", "wavy"), ("raster", "diagonal")])
def test_unknown_choices_are_refused(field, value):
    with pytest.raises(InputError, match=f"{field} is '{value}'; expected one of"):
        KernelConfig(**{"cta_m": 64, "cta_n": 64, field: value})


def test_every_gpu_is_described_and_tells_its_sources():
    assert gpu_names() == sorted(GPUS)
    for name in GPUS:
        gpu = load_gpu(name)
        assert gpu.name == name
        numbers = set(load_gpu_mapping(name)) - {"name", "architecture", "validated", "sources"}
        assert {key for key in numbers if not gpu.sources.get(key)} == set()
        assert gpu.validated or name in gpu.caveats[0]


@pytest.mark.parametrize(*cases(__file__, "test_a_contradiction_in_a_card_is_refused_by_file_and_key"))
def test_a_contradiction_in_a_card_is_refused_by_file_and_key(tmp_path, gemm_model, line, words):
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nlike: h200\n{line}\n")
    with pytest.raises(InputError, match=f"{re.escape(str(path))}: GPU mine: .*{words}"):
        load_gpu(path)
    assert words in gemm_model("rank", "--m", 64, "--n", 64, "--k", 64, "--gpu", path).err


@pytest.mark.parametrize(*cases(__file__, "test_what_a_card_is_like_is_another_card"))
def test_what_a_card_is_like_is_another_card(tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_text(text.format(path=path))
    with pytest.raises(InputError, match=re.escape(f"{path}: {words.format(path=path)}")):
        load_gpu(path)


def test_what_a_users_card_lacks_names_its_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nlike: h200\nsmem_bytes_per_cta: 17000\nflop_per_clk_per_sm: {fp16: 4096}\n")
    config = KernelConfig(cta_m=128, cta_n=256)
    for dtype, words in (
        ("fp16", "smem_bytes_per_cta of GPU mine ({path})"),
        ("fp8", "GPU mine ({path}) has no fp8"),
    ):
        with pytest.raises(InputError, match=re.escape(words.format(path=path))):
            predict(GemmProblem.of(512, 512, 512, dtype), config, path)
    assert not load_gpu(path).validated


def test_each_card_has_a_name_of_its_own():
    by_alias = [(alias, name) for name in GPUS for alias in load_gpu(name).device_names]
    assert len({alias for alias, _ in by_alias}) == len(by_alias)
    assert len({name for _, name in by_alias}) >= len(GPUS) - 2  # A locked card and a V100 have none.


def test_a_card_like_another_says_what_it_has_of_it(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nlike: a40\nsm_count: 40\nl2_bytes: 4000000\npower_cap_w: null\n"
        "sources: {sm_count: counted, l2_bytes: read}\n"
    )
    mine, a40, a10 = load_gpu(path), load_gpu("a40"), load_gpu("a10")
    assert (mine.sm_count, mine.l2_bytes, mine.power_cap_w, mine.device_names) == (40, 4e6, None, ())
    assert (mine.sm_clk_mhz, mine.smem_bytes_per_sm) == (a40.sm_clk_mhz, a10.smem_bytes_per_sm)
    assert mine.sources["sm_count"] == "counted"
    assert mine.sources["sm_clk_mhz"] == f"taken from a40: {a40.sources['sm_clk_mhz']}"
    assert a40.sources["threads_per_sm"] == f"taken from a10: {a10.sources['threads_per_sm']}"
    assert "power_cap_w" not in mine.sources


def test_known_bandwidths():
    # Datasheets [GB/s]; the B200's driver: 7680 bits at 3996 MHz.
    for name, known in (("a100_sxm_80gb", 2039), ("h100_sxm", 3352), ("rtx_4090", 1008), ("b200_sxm", 7672)):
        assert load_gpu(name).dram_gb_per_s == pytest.approx(known, rel=1e-3)


def test_an_override_that_no_card_can_have_names_no_file(gemm_model):
    outcome = gemm_model("rank", "--m", 64, "--n", 64, "--k", 64, "--gpu", "h200", "gpu.sm_clk_mhz=1")
    assert outcome.code == 2
    assert "rank: GPU h200: sm_clk_mhz is 1.0; expected a number" in outcome.err


def test_gpu_from_a_yaml_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nlike: h200\nsm_count: 120\nresident_clusters: null\n")
    assert load_gpu(str(path)).sm_count == 120
    assert load_config([f"gpu={path}", "gpu.sm_count=9"])["gpu"]["sm_count"] == 9


@pytest.mark.parametrize(*cases(__file__, "test_a_bad_gpu_description_is_refused"))
def test_a_bad_gpu_description_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        gpu_from_mapping(load_config()["gpu"] | change)


@pytest.mark.parametrize(*cases(__file__, "test_a_misspelled_override_is_refused"))
def test_a_misspelled_override_is_refused(override):
    with pytest.raises(InputError):
        load_config([override], {"model": "WSPersistentGEMMModel"})


def test_overrides_reach_gpu_and_model_options():
    model = ("model=WSPersistentGEMMModel", "model_opts.l2_hit_rate=0.4")
    config = load_config(["gpu=h200", "gpu.sm_count=100", *model])
    assert config["gpu"]["sm_count"] == 100
    assert config["model_opts"]["l2_hit_rate"] == 0.4


def test_a_card_of_a_locked_clock_says_so():
    locked, free = load_gpu("b200_1300mhz"), load_gpu("b200_sxm")
    assert "GPU b200_1300mhz: a card whose SM clock is locked at 1300 MHz" in locked.caveats
    assert not any("locked" in caveat for caveat in free.caveats)


def test_the_old_name_of_the_locked_card_is_the_free_card_with_a_note():
    free, old = load_gpu("b200_sxm"), load_gpu("B200")
    assert replace(old, note="") == free
    asked = GemmProblem.of(512, 512, 512), KernelConfig(cta_m=128, cta_n=128)
    here, there = (predict(*asked, gpu) for gpu in ("b200", "b200_sxm"))
    assert (here.runtime_us, here.error_band) == (there.runtime_us, there.error_band)
    assert [words for words in here.caveats if "b200_1300mhz" in words] == [old.note]
    assert card_named("b200") == "b200_sxm"


@pytest.mark.parametrize(*cases(__file__, "test_an_unknown_gpu_is_told_what_it_may_be_called"))
def test_an_unknown_gpu_is_told_what_it_may_be_called(name, hint):
    with pytest.raises(InputError, match=f"unknown GPU '{name}'") as refused:
        load_gpu(name)
    assert hint in str(refused.value)


def test_an_option_told_twice_has_one_value():
    given = (["model_opts.without=[clock]"], {"gpu": "h200", "model": "KernelModel"})
    assert load_settings(*given, options={"without": ["clock"]}).options["without"] == ["clock"]
    with pytest.raises(InputError, match=r"--without is \['l2'\] and model_opts.without \['clock'\]"):
        load_settings(*given, options={"without": ["l2"]})


CONFIG = KernelConfig(cta_m=128, cta_n=128)


@pytest.mark.parametrize(*cases(__file__, "test_bytes_hold_batches_and_scale_factors"))
def test_bytes_hold_batches_and_scale_factors(dtype, a_bytes, b_bytes, output_bytes):
    problem = GemmProblem.of(64, 32, 256, dtype, batch=3)
    assert (problem.a_bytes, problem.b_bytes, problem.output_bytes) == (a_bytes, b_bytes, output_bytes)
    for batch in (batch_of([(problem, CONFIG)]), numbers_of(problem, CONFIG)):
        assert batch.operand_bytes == a_bytes + b_bytes
        assert batch.output_bytes == output_bytes


PROBLEM = GemmProblem.of(4096, 4096, 4096, "bf16")
PAIR_OF_CTAS = KernelConfig(cta_m=128, cta_n=256, cluster_m=2)


def time_in(regime):
    return predict(PROBLEM, PAIR_OF_CTAS, "h200", options={"regime": regime}).runtime_us


def test_kernel_only_is_the_counters_regime():
    assert time_in("kernel-only") == time_in("counters") != time_in("burst")


def test_an_unknown_regime_is_refused():
    with pytest.raises(InputError, match="regime is 'kernel'; expected one of burst"):
        time_in("kernel")


def test_the_command_takes_it_too(gemm_model):
    words = ("predict", "--m", 4096, "--n", 4096, "--k", 4096, "--cta", "128x256", "--format", "json")
    found = [gemm_model(*words, "--regime", regime) for regime in ("kernel-only", "counters")]
    assert found[0].out == found[1].out
    assert '"predicted_us"' in found[0].out
