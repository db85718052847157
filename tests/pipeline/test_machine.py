import numpy as np
import pytest

from gemm_model.core.errors import InputError
from gemm_model.pipeline.machine import (
    PipelineKernel,
    PipelineMachine,
    TileSpace,
    load_machine,
    machine_names,
    with_parameters,
    workload,
)

MACHINE = PipelineMachine(
    sm_count=84, mac_per_us=1e6, math_startup_us=0.1, load_bytes_per_us=1e5, load_startup_us=0.5,
    epilogue_us=1.5, init_us=2.0,
)  # fmt: skip
SHAPE = {"m": 1024, "n": 1024, "k": 1000, "tile_m": 128, "tile_n": 64, "tile_k": 64, "stages": 3}


def test_step_times_are_linear_in_the_tile():
    work = workload(MACHINE, PipelineKernel(**SHAPE))
    assert (work.waves, work.steps) == (2, 16)
    assert work.full.load_a == round((128 * 64 * 2 / 1e5 + 0.5) * 1e6)
    assert work.full.load_b == round((64 * 64 * 2 / 1e5 + 0.5) * 1e6)
    assert work.full.math == round((128 * 64 * 64 / 1e6 + 0.1) * 1e6)
    assert work.epilogue == 1.5e6
    assert work.init == 2e6


def test_ragged_k_shortens_the_last_step_unless_padded():
    # 1000 = 15 * 64 + 40
    ragged = workload(MACHINE, PipelineKernel(**SHAPE))
    assert ragged.full_last.math == round((128 * 64 * 40 / 1e6 + 0.1) * 1e6)
    padded = workload(with_parameters(MACHINE, {"pads_k": True}), PipelineKernel(**SHAPE))
    assert padded.full_last == padded.full


def test_a_partial_last_wave_shares_the_device_rate_among_fewer_sms():
    machine = with_parameters(MACHINE, {"device_load_bytes_per_us": 84 * 2e4, "load_startup_us": 0.0})
    work = workload(machine, PipelineKernel(**SHAPE))
    # 128 tiles on 84 SMs: 84 share the rate in the first wave, 44 in the last.
    assert work.full.load_a == pytest.approx(128 * 64 * 2 / 2e4 * 1e6, abs=1)
    assert work.tail.load_a == pytest.approx(128 * 64 * 2 / (84 * 2e4 / 44) * 1e6, abs=1)


def test_multicast_bytes_count_once_for_the_device():
    machine = with_parameters(MACHINE, {"device_load_bytes_per_us": 1e5, "load_startup_us": 0.0})
    alone = workload(machine, PipelineKernel(**SHAPE))
    shared = workload(machine, PipelineKernel(**SHAPE, cluster_m=2, cluster_n=1))
    # B (64 rows) is shared by the two CTAs along m: 128 + 32 of 192 rows are read.
    assert shared.full.load_a / alone.full.load_a == pytest.approx(160 / 192, rel=1e-6)


def test_bytes_that_no_sm_loaded_before_come_at_their_own_rate():
    machine = with_parameters(MACHINE, {"device_fresh_bytes_per_us": 2e4, "load_startup_us": 0.0})
    work = workload(machine, PipelineKernel(**SHAPE))
    # 128 tiles load 192 rows each, 2048 rows are in the matrices: 1 / 12 is fresh. 84 SMs share the rate.
    assert work.full.load_a == pytest.approx(128 * 64 * 2 * 84 / 12 / 2e4 * 1e6, abs=1)


def test_arrays_give_what_scalars_give():
    tiles = np.array([32.0, 64.0, 128.0])
    batch = workload(MACHINE, PipelineKernel(**{**SHAPE, "tile_m": tiles}))
    for row, tile in enumerate(tiles):
        one = workload(MACHINE, PipelineKernel(**{**SHAPE, "tile_m": float(tile)}))
        assert batch.waves[row] == one.waves
        assert batch.full.math[row] == one.full.math
        assert batch.tail_last.load_a[row] == one.tail_last.load_a


def test_packaged_machines_load():
    assert "paper_a6000" in machine_names()
    for name in machine_names():
        assert load_machine(name).name == name


@pytest.mark.parametrize("name", ["m", "n", "k", "stages", "tile_k"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(InputError, match=f"{name} is 0; expected at least 1"):
        workload(MACHINE, PipelineKernel(**{**SHAPE, name: 0}))


def test_unknown_machine_is_refused():
    with pytest.raises(InputError, match="unknown machine 'nope'"):
        load_machine("nope")


def test_tile_space_sorts_its_sizes():
    assert TileSpace(tile_m=(128, 32)).tile_m == (32, 128)
