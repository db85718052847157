import os
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_model import InputError, KernelConfig
from gemm_model.bench import absent
from gemm_model.bench.device import TimingSettings
from gemm_model.bench.provider import PROVIDERS, load_provider
from gemm_model.bench.row_log import RowLog, command_line, header, line_of
from gemm_model.bench.rows import COLUMNS, Row, padded, row_from_columns
from gemm_model.bench.sweep import (
    ConfigFilter,
    arranged,
    configs_of_table,
    estimated_row_ms,
    kernel_key,
    rows_of_problems,
    rows_of_table,
    shape_key,
)
from gemm_model.core.problem import GemmProblem, swapped
from tests.bench.fakes import FakeProvider

SIZES = st.integers(min_value=1, max_value=20000)
DTYPES = st.sampled_from(["bf16", "fp16", "fp8", "e5m2", "fp32", "mxfp8", "nvfp4"])


def texts(row):
    """The row's cells as a CSV file gives them back."""
    return {name: str(row.columns().get(name, "")) for name in COLUMNS}


@given(
    m=SIZES,
    n=SIZES,
    k=SIZES,
    dtype=DTYPES,
    schedule=st.sampled_from(["cooperative", "pingpong", "2cta"]),
    swizzle=st.sampled_from([1, 8]),
    split_k=st.integers(1, 4),
    fast=st.booleans(),
    stages=st.integers(0, 9),
)
def test_a_row_comes_back_from_its_columns(m, n, k, dtype, schedule, swizzle, split_k, fast, stages):
    given = {
        "schedule": schedule,
        "swizzle": swizzle,
        "split_k": split_k,
        "fast_accum": fast,
        "stages": stages,
    }
    config = KernelConfig(cta_m=128, cta_n=192, cluster_m=2, kernel="quack", **given)
    row = Row(kernel="quack", problem=padded(GemmProblem.of(m, n, k, dtype)), config=config, asked=(m, n, k))
    assert row_from_columns(texts(row)) == row


def test_a_row_without_a_tile_comes_back_too():
    row = Row(kernel="cublas", problem=GemmProblem.of(64, 64, 64), config=None, regime="sustained")
    assert row_from_columns(texts(row)) == row


@given(m=SIZES, n=SIZES, k=SIZES, dtype=DTYPES)
def test_padding_aligns_rows_in_memory_and_adds_less_than_one_unit(m, n, k, dtype):
    asked = GemmProblem.of(m, n, k, dtype)
    fitting = padded(asked)
    assert fitting.m == m
    assert fitting.k * asked.a_dtype.bits % 128 == 0
    assert fitting.n * asked.out_dtype.bits % 128 == 0
    assert 0 <= fitting.n - n < 128 // asked.out_dtype.bits
    assert 0 <= fitting.k - k < 32


def sample_rows():
    problems = [GemmProblem.of(m, n, 512) for m in (16, 128, 4096) for n in (256, 4096)]
    return rows_of_problems(problems, FakeProvider(), (9, 0), ConfigFilter(), regime="burst", l2="cold")


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_shards_split_the_sweep_and_keep_shapes_together(count):
    rows = sample_rows()
    shards = [arranged(rows, seed=1, shard=(index, count)) for index in range(count)]
    assert sorted(map(id, rows)) == sorted(id(row) for shard in shards for row in shard)
    owners = [{shape_key(row) for row in shard} for shard in shards]
    assert sum(map(len, owners)) == len(set().union(*owners))
    assert all(shards)


def test_the_order_depends_on_the_seed_alone():
    rows = sample_rows()
    assert arranged(rows, seed=1) == arranged(rows, seed=1)
    assert arranged(rows, seed=1) != arranged(rows, seed=2)
    assert sorted(map(id, arranged(rows, seed=2))) == sorted(map(id, rows))


def test_rows_in_order_stay_as_they_come():
    rows = sample_rows()
    assert list(map(id, arranged(rows, seed=1, in_order=True))) == list(map(id, rows))
    places = [rows.index(row) for row in arranged(rows, seed=1, sample=4, in_order=True)]
    assert len(places) == 4
    assert places == sorted(places)


def test_sampling_shapes_takes_all_their_rows():
    rows = sample_rows()
    chosen = arranged(rows, seed=3, sample_shapes=2)
    keys = {shape_key(row) for row in chosen}
    assert len(keys) == 2
    assert len(chosen) == sum(shape_key(row) in keys for row in rows)
    assert len(arranged(rows, seed=3, sample=5)) == 5


def test_the_filter_selects_and_multiplies():
    problem = GemmProblem.of(128, 128, 128)
    configs = FakeProvider().configs(problem, (9, 0))
    assert len(ConfigFilter().apply(configs)) == 4
    narrow = ConfigFilter(tiles=((128, 64),), swizzles=(8,), split_k=(1, 2)).apply([*configs, None])
    assert [config.split_k if config else None for config in narrow] == [1, 2, None]
    assert ConfigFilter(schedules=("pingpong",)).apply(configs) == []


def test_what_the_provider_cannot_run_is_left_out_and_a_list_takes_the_place_of_its_choice():
    problems = [GemmProblem.of(64, 64, 64, "fp32"), GemmProblem.of(64, 64, 64)]
    listed = [KernelConfig(cta_m=256, cta_n=32)]
    chosen = ConfigFilter(listed=listed)
    rows = rows_of_problems(problems, FakeProvider(), (9, 0), chosen, regime="burst", l2="cold")
    assert [(row.problem.a_dtype.name, row.config) for row in rows] == [("bf16", listed[0])]


def test_no_row_has_more_splits_than_k_tiles_which_predictions_refuse():
    splits = ConfigFilter(split_k=(1, 2, 4))
    for dtype, k, expected in (("bf16", 128, {1, 2}), ("fp8", 128, {1}), ("fp8", 400, {1, 2, 4})):
        rows = rows_of_problems(
            [GemmProblem.of(128, 128, k, dtype)], FakeProvider(), (9, 0), splits, regime="burst", l2="cold"
        )
        assert {row.config.split_k for row in rows} == expected


def test_longer_kernels_take_longer_rows():
    small, large = (Row(kernel="x", problem=GemmProblem.of(n, n, n), config=None) for n in (256, 16384))
    settings = TimingSettings()
    assert estimated_row_ms(large, settings) > 10 * estimated_row_ms(small, settings)
    sustained = replace(small, regime="sustained", l2="warm")
    assert estimated_row_ms(sustained, settings) > settings.settle_ms + settings.sustained_ms


def test_tables_are_read_with_older_names_and_swapped_rows(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("kernel,in_dtype,out_dtype,m,n,k,cta_m,cta_n\nquack,bf16,bf16,64,64,64,128,64\n" * 1)
    rows = rows_of_table(path, regime="burst", l2="cold")
    assert [(row.problem.m, row.config and row.config.cta_n) for row in rows] == [(64, 64)]
    path.write_text("kernel,dtype,M,n,k,cta_m,cta_n,swap_ab\nquack,fp8,16,64,32,64,32,1\n")
    (row,) = rows_of_table(path, regime="burst", l2="cold")
    assert (row.problem, row.asked) == (swapped(GemmProblem.of(16, 64, 32, "fp8")), (64, 16, 32))


def test_whole_numbers_with_a_decimal_point_are_read(tmp_path):
    header = "kernel,in_dtype,out_dtype,m,n,k,cta_m,cta_n,fast_accum\n"
    path = tmp_path / "gaps.csv"
    path.write_text(header + "quack,bf16,bf16,256.0,256,256,128.0,64.0,0.0\n")
    (row,) = rows_of_table(path, regime="burst", l2="cold")
    assert (row.problem.m, row.config.cta_m, row.config.fast_accum) == (256, 128, False)
    path.write_text("cta_m,cta_n,cluster_m,schedule\n128,64,2,pingpong\n")
    (config,) = configs_of_table(path, "quack")
    assert config == KernelConfig(cta_m=128, cta_n=64, cluster_m=2, schedule="pingpong", kernel="quack")


def test_a_row_whose_library_has_no_such_kernel_shares_its_kernel_with_none():
    pytest.importorskip("torch", reason="its provider needs torch")
    provider = load_provider("simt")
    problem = GemmProblem.of(512, 512, 512, "fp32")
    own = provider.configs(problem, (9, 0))[0]
    strange = KernelConfig(cta_m=128, cta_n=256)
    keys = [
        kernel_key(
            Row(kernel="simt", problem=problem, config=config, asked=(512, 512, size)), {"simt": provider}
        )
        for config, size in ((own, 512), (own, 500), (strange, 512), (strange, 500))
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4 - 1


def test_one_table_has_one_writer(tmp_path):
    log = RowLog.create(tmp_path / "t.csv", ("m",))
    log.extend(["64\n"])
    with pytest.raises(InputError, match="another run is writing into"):
        RowLog.resumed(tmp_path / "t.csv", ("m",), []).__enter__()
    log.close()
    assert (tmp_path / "t.csv").read_text() == "m\n64\n"


def test_a_table_goes_on_where_its_rows_are_those_of_the_sweep(tmp_path):
    config, path = KernelConfig(cta_m=128, cta_n=128), tmp_path / "t.csv"
    rows = [Row(kernel="quack", problem=GemmProblem.of(m, 64, 64), config=config) for m in (64, 128)]
    columns = ("order", *rows[0].columns())
    first, other = (line_of(columns, {**row.columns(), "order": place}) for place, row in enumerate(rows))
    path.write_text(header(columns) + other + first[:9])
    with RowLog.resumed(path, columns, rows) as (_, done):
        assert (done, path.read_text()) == ({1}, header(columns) + other)
    path.write_text("")
    with RowLog.resumed(path, columns, rows):
        assert path.read_text() == header(columns)
    for line, said in ((f"2{other[1:]}", "row 2 is not that"), (f"0{other[1:]}", "row 0 is not that")):
        path.write_text(header(columns) + line)
        with pytest.raises(InputError, match=said), RowLog.resumed(path, columns, rows):
            pass
    with pytest.raises(InputError, match="its columns"), RowLog.resumed(path, columns[:-1], rows):
        pass


def test_a_new_table_has_the_umask_s_permissions(tmp_path):
    before = os.umask(0o002)
    try:
        RowLog.create(tmp_path / "t.csv", ("m",)).close()
    finally:
        os.umask(before)
    assert (tmp_path / "t.csv").stat().st_mode & 0o777 == 0o664


def test_an_unknown_provider_is_refused():
    with pytest.raises(InputError, match="quack"):
        load_provider("cutless")
    assert load_provider("tests.bench.fakes:FakeProvider").name == FakeProvider.name
    assert {"quack", "cublas"} <= set(PROVIDERS)


def test_a_dry_run_needs_no_library(gemm_model, tmp_path):
    (tmp_path / "sizes.csv").write_text("m,n,k,in_dtype\n64,4096,4096,fp8\n")
    before = dict(sys.modules)
    libraries = "quack,cublas,cublaslt,cutlass,triton"
    found = gemm_model("benchmark", "--dry-run", "--kernels", libraries, "--input", tmp_path / "sizes.csv")
    assert found.code == 0, found.err
    assert "library's choice" in found.out
    left = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in absent.PACKAGES}
    assert left.items() <= before.items()
    assert all(
        before.get(f"gemm_model.bench.{name}") is sys.modules.get(f"gemm_model.bench.{name}")
        for name in PROVIDERS
    )


def test_the_command_keeps_no_directory_of_the_machine(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/a/bin/gemm-model", "benchmark", "--output", "/b/c/t.csv", "x/y.csv"])
    assert command_line() == "gemm-model benchmark --output t.csv x/y.csv"
