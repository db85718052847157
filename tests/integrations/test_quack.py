from functools import wraps

import pytest

gemm_configs = pytest.importorskip("quack.gemm_config")

import torch

from gemm_model import GemmProblem, InputError, load_gpu, rank
from gemm_model.core.problem import swapped
from gemm_model.integrations.quack import (
    candidate_of,
    early_config_prune,
    gemm_config,
    problem_of,
    write_tuning_cache,
)
from gemm_model.kernels.emit import quack_arguments
from gemm_model.kernels.feasibility import check

MODEL = "WSPersistentGEMMModel"
PROBLEM = GemmProblem.of(4096, 2048, 1024)


class Choice:
    """What QuACK's autotuner hands to a pruner."""

    def __init__(self, config):
        self.kwargs = {"config": config}


HOPPER = [Choice(c) for c in gemm_configs.get_all_configs() if c.device_capacity == 9]
TENSORS = {
    "A": torch.empty(4096, 1024, dtype=torch.bfloat16, device="meta"),
    "B": torch.empty(1024, 2048, dtype=torch.bfloat16, device="meta"),
}


def test_the_config_is_the_first_of_the_ranking():
    config = gemm_config(PROBLEM, "h200", model=MODEL)
    assert isinstance(config, gemm_configs.GemmConfig)
    assert candidate_of(config) == rank(PROBLEM, "h200", 1, model=MODEL).best.candidate


@pytest.mark.parametrize("capacity", [9, 10])
def test_a_config_survives_the_way_there_and_back(capacity):
    gpu = load_gpu("h200" if capacity == 9 else "b200_1300mhz")
    configs = [c for c in gemm_configs.get_all_configs() if c.device_capacity == capacity]
    assert configs
    for config in configs[::7]:
        arguments = quack_arguments(candidate_of(config), gpu)
        same = ("tile_m", "tile_n", "pingpong", "cluster_m", "cluster_n", "swap_ab", "max_swizzle_size")
        assert {name: arguments[name] for name in same} == {name: getattr(config, name) for name in same}


def test_all_hopper_configs_of_quack_are_legal():
    gpu = load_gpu("h200")
    for each in HOPPER:
        assert check(PROBLEM, candidate_of(each.kwargs["config"]).config, gpu) is None


def test_the_pruner_keeps_the_fastest():
    kept = early_config_prune("h200", top_k=3, model=MODEL)(HOPPER, TENSORS)
    assert len(kept) == 3
    assert all(each in HOPPER for each in kept)
    everything = early_config_prune("h200", top_k=len(HOPPER) - 1, model=MODEL)(HOPPER, TENSORS)
    assert everything[:3] == kept


def test_another_quack_times_as_without_us(caplog):
    others = [Choice(object()), Choice(object())]
    assert early_config_prune("h200", top_k=1, model=MODEL)(others, TENSORS) == others
    assert "2 configurations to QuACK's own timing (we know quack-kernels 0.6): " in caplog.text


def test_another_pruner_may_run_before():
    only = [each for each in HOPPER if not each.kwargs["config"].swap_ab]
    prune = early_config_prune("h200", top_k=3, model=MODEL, after=lambda *_args, **_kwargs: only)
    assert [each.kwargs["config"].swap_ab for each in prune(HOPPER, TENSORS)] == [False] * 3


def test_a_short_list_stays_as_it_is():
    assert early_config_prune("h200", top_k=2, model=MODEL)(HOPPER[:2], {}) == HOPPER[:2]


def test_swapping_twice_changes_nothing():
    assert swapped(swapped(PROBLEM)) == PROBLEM
    assert swapped(PROBLEM).m == PROBLEM.n


def test_tensors_tell_the_problem():
    assert problem_of(TENSORS) == PROBLEM
    with pytest.raises(InputError, match="QuACK call without A"):
        problem_of({})
    with pytest.raises(InputError, match="top_k is 0"):
        early_config_prune("h200", top_k=0)


def test_a_written_cache_answers_quack_in_the_place_of_its_timing(tmp_path, monkeypatch, caplog):
    interface = pytest.importorskip("quack.gemm_interface")
    monkeypatch.setenv("QUACK_CACHE_DIR", str(tmp_path / "cache"))
    assert write_tuning_cache([PROBLEM], "h200", model=MODEL) == 1
    files = [*tmp_path.rglob("*.json")]
    assert len(files) == 2  # a call's and a compiled call's
    files[0].write_text(before := files[0].read_text() + " ")
    assert write_tuning_cache([PROBLEM], "h200", model=MODEL) == 0
    assert files[0].read_text() == before
    taken = []

    @wraps(interface.gemm_tuned.fn)
    def launch(*_tensors, config, **_more):
        taken.append(config)
        return config, 1, False, None

    monkeypatch.setattr(interface.gemm_tuned, "fn", launch)
    monkeypatch.setenv("QUACK_ARCH", "90")
    a, weight = (torch.empty(rows, 1024, dtype=torch.bfloat16) for rows in (4096, 2048))
    interface.gemm(a, weight.mT)
    (fastest,) = early_config_prune("h200", top_k=1, model=MODEL)(HOPPER, TENSORS)
    assert taken == [fastest.kwargs["config"]]
    with monkeypatch.context() as another:
        another.delattr(interface.gemm_tuned, "keys")
        assert write_tuning_cache([PROBLEM], "h200", model=MODEL) == 0
    assert "its cache to QuACK's own timing (we know quack-kernels 0.6): " in caplog.text
    (tmp_path / "file").touch()
    monkeypatch.setenv("QUACK_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(InputError, match="tuning cache cannot be written"):
        write_tuning_cache([PROBLEM], "h200", model=MODEL)
    with pytest.raises(InputError, match="one architecture a process"):
        write_tuning_cache([PROBLEM], "b200_1300mhz", model=MODEL)
    with pytest.raises(InputError, match="quack"):
        write_tuning_cache([PROBLEM], "l40s", model=MODEL)
