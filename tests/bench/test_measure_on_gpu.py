"""Scripts: several plans in turn, wheels in parts, and the test lists that are shipped."""

import subprocess
import sys
import tarfile
import time
import zipfile

import pytest

from gemm_model.tables.table import read_table
from scripts import make_testlists, pack_wheels
from scripts import measure_on_gpu as script
from tests.conftest import ROOT


def test_the_command_measures_the_plan_and_goes_on_with_a_table(tmp_path):
    plan = tmp_path / "cutlass.csv"
    plan.touch()
    job = script.parse_job(f"{plan}:counters")
    assert job.name == "cutlass-counters"
    table = tmp_path / "table.csv"
    words = script.command_of(job, table, 12.4, ["timing.repeats=24"])
    assert words[3:] == [
        *("benchmark", "--rows", str(plan), "--regime", "counters", "--output", str(table)),
        *("--time-budget", "12", "timing.repeats=24"),
    ]
    table.touch()
    assert script.command_of(job, table, 12.4, [])[-1] == "--resume"
    assert script.split_words(["a", "--x", "--", "b", "c"]) == (["a", "--x"], ["b", "c"])


def test_a_plan_that_fails_or_hangs_leaves_the_others_alone(tmp_path, monkeypatch, capsys):
    programs = {
        "fails": "print('no package'); raise SystemExit(3)",
        "works": "from pathlib import Path; Path(__import__('sys').argv[1]).write_text('rows')",
    }

    def command(job, table, _budget, _words):
        return [sys.executable, "-c", programs[table.stem], str(table)]

    monkeypatch.setattr(script, "command_of", command)
    monkeypatch.setattr(script, "BUNDLE_EVERY_S", 0.05)
    for name in programs:
        (tmp_path / f"{name}.csv").touch()
    plans = [str(tmp_path / f"{name}.csv") for name in programs]
    where = ["--tables", str(tmp_path / "tables"), "--bundle", str(tmp_path / "bundle.tar.gz")]
    monkeypatch.setattr(sys, "argv", ["measure_on_gpu", *plans, *where, "--limit-s", "300"])
    assert script.main() == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("fails: exit code 3")
    assert said[0].endswith("no package")
    assert said[1].startswith("works: exit code 0")
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        assert sorted(archive.getnames()) == ["fails.log", "works.csv", "works.log"]


def test_without_time_nothing_is_begun(tmp_path):
    plan = tmp_path / "good.csv"
    plan.touch()
    said = script.run_job(script.parse_job(str(plan)), tmp_path, time.monotonic() + 5, [])
    assert said == "not begun: no time left"
    assert not (tmp_path / "good.log").exists()


def test_a_missing_plan_and_an_unknown_regime_are_named(tmp_path):
    with pytest.raises(SystemExit, match="none.csv: no such plan"):
        script.parse_job(str(tmp_path / "none.csv"))
    (tmp_path / "good.csv").touch()
    with pytest.raises(SystemExit, match="unknown regime 'hot'"):
        script.parse_job(f"{tmp_path}/good.csv:hot")


def small_wheel(folder):
    """A wheel called gemm-model that holds one module and no dependencies."""
    path = folder / "gemm_model-9.9-py3-none-any.whl"
    info = "gemm_model-9.9.dist-info"
    files = {
        "packed_module.py": "ANSWER = 42\n" + "# filling\n" * 500,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: gemm-model\nVersion: 9.9\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in files) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


def install(folder, target):
    command = [sys.executable, str(folder / "install.py"), "--target", str(target)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_parts_are_joined_and_installed(tmp_path):
    wheel = small_wheel(tmp_path)
    parts = pack_wheels.split_into_parts([wheel], tmp_path / "packed", 4000)
    assert len(parts) > 1
    assert all(part.stat().st_size <= 4000 for part in parts)
    done = install(tmp_path / "packed", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert "ANSWER = 42" in (tmp_path / "site" / "packed_module.py").read_text()


def test_missing_and_damaged_parts_are_named(tmp_path):
    parts = pack_wheels.split_into_parts([small_wheel(tmp_path)], tmp_path / "packed", 4000)
    parts[0].write_bytes(b"x")
    damaged = install(tmp_path / "packed", tmp_path / "site")
    assert damaged.returncode == 2
    assert "part-000: damaged" in damaged.stderr
    parts[0].unlink()
    missing = install(tmp_path / "packed", tmp_path / "site")
    assert missing.returncode == 2
    assert "part-000: missing" in missing.stderr


@pytest.mark.parametrize("name", make_testlists.LISTS)
def test_the_shipped_list_is_what_the_script_writes(name):
    assert (ROOT / "testlists" / f"{name}.csv").read_text() == make_testlists.list_text(name)


def shapes(name):
    frame = read_table(ROOT / "testlists" / f"{name}.csv").astype(int)
    return set(map(tuple, frame.to_numpy().tolist()))


def test_deepseek_v3_shapes_by_hand():
    found = shapes("dsv3")
    # q_b_proj: 128 heads of 128 + 64 from rank 1536; forward, input gradient, weight gradient at 4096 tokens.
    assert {(4096, 24576, 1536), (4096, 1536, 24576), (24576, 1536, 4096)} <= found
    # kv_a_proj: rank 512 + 64 from hidden 7168; lm_head: vocabulary 129280.
    assert {(4096, 576, 7168), (4096, 129280, 7168)} <= found


def test_llama_3_8b_shapes_by_hand():
    # qkv: (32 + 2 x 8) heads of 128 = 6144; gate and up: 2 x 14336.
    assert {(1, 6144, 4096), (256, 28672, 4096), (8, 4096, 14336)} <= shapes("llama3_decode")


def test_each_list_says_its_source():
    for name in make_testlists.LISTS:
        first, second = (ROOT / "testlists" / f"{name}.csv").read_text().splitlines()[:2]
        assert first.startswith("# ")
        assert second.startswith("# source: ")
