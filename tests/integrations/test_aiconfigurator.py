import pandas as pd
import pytest
import yaml

from gemm_model.choice.selection import Ranker
from gemm_model.cli import main
from gemm_model.core.problem import GemmProblem

SIZES = "m,n,k\n16,4096,4096\n2048,4096,4096\n2048,8192,4096\n"


def emit(tmp_path, *more):
    (tmp_path / "sizes.csv").write_text(SIZES)
    words = ["emit", "aiconfigurator", "--gpu", "h200", "--memory-gib", "141"]
    return main([*words, "--output", str(tmp_path / "out"), "--input", str(tmp_path / "sizes.csv"), *more])


def test_a_system_and_its_table_of_gemms_are_written(tmp_path):
    assert emit(tmp_path) == 0
    system = yaml.safe_load((tmp_path / "out/h200.yaml").read_text())
    assert system["gpu"]["sm_version"] == 90
    assert system["gpu"]["mem_capacity"] == 141 * 2**30
    assert system["gpu"]["fp8_tc_flops"] == 2 * system["gpu"]["bfloat16_tc_flops"]
    table = pd.read_parquet(tmp_path / "out" / system["data_dir"] / "gemm/vllm/0.24.0/gemm_perf.parquet")
    assert sorted(table["gemm_dtype"].unique()) == ["bfloat16", "fp8"]
    row = table[(table["gemm_dtype"] == "bfloat16") & (table["m"] == 16)].iloc[0]
    ranker = Ranker("h200", family="cublas", options={"regime": "graph"})
    best = ranker.rank(GemmProblem.of(16, 4096, 4096), 1).best.prediction
    own_us = ranker.heuristic_choice.time_us(best.runtime_us, best.limiter)
    assert row["latency"] == pytest.approx(own_us / 1e3, rel=1e-6)


def test_aiconfigurator_reads_the_system(tmp_path):
    reason = "aiconfigurator is not installed: pip install 'aiconfigurator>=0.12,<0.13'"
    database = pytest.importorskip("aiconfigurator.sdk.perf_database", reason=reason)
    assert emit(tmp_path) == 0
    database.set_systems_paths(f"default,{tmp_path / 'out'}")
    assert "h200" in database.get_supported_databases()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--gpu", "no_such"), "unknown GPU"),
        (("--memory-gib", "0"), "--memory-gib is 0.0"),
        (("--backend", "../x"), "is no name of a folder"),
    ],
)
def test_bad_input_is_told_in_a_sentence_and_nothing_is_written(tmp_path, capsys, more, told):
    assert emit(tmp_path, *more) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
