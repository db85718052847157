"""The script that runs several plans: order, resume, limits, and the archive that is always there."""

import sys
import tarfile
import time

import pytest

from scripts import measure_on_gpu as script


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
