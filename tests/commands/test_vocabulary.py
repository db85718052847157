"""One vocabulary of options: what a verb is given is used or refused; help, lists, versions, completion."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from gemm_model.cli import VERBS, parser_of
from gemm_model.config import CONFIG_DIR
from tests.cases import cases

KERNEL = ("--m", 1024, "--n", 1024, "--k", 1024, "--cta", "128x128")
SIZES = KERNEL[:6]
COMMON = {
    *("--input", "--output", "--gpu", "--dtype", "--regime", "--calibration", "--residual", "--sms"),
    "--format",
}


@pytest.mark.parametrize("verb", list(VERBS))
def test_help_tells_defaults_and_two_examples_that_parse(verb):
    _, child = parser_of(verb)
    assert child is not None
    text = child.format_help()
    examples = [line.strip() for line in text.partition("examples:")[2].splitlines() if line.strip()]
    assert len(examples) >= 2
    for example in examples:
        words = shlex.split(example.partition(" > ")[0])
        assert words[:2] == ["gemm-model", verb]
        child.parse_args(child.apart(words[2:])[1])
    for action in child._actions:
        apart = action.dest in ("help", "overrides") or action.help == "==SUPPRESS=="
        if action.option_strings and not apart and not action.required:
            assert "default" in (action.help or ""), action.option_strings


def test_options_of_the_vocabulary_take_the_same_kind_of_value_everywhere():
    kinds: dict[str, set[str]] = {}
    for verb in VERBS:
        _, child = parser_of(verb)
        assert child is not None
        for action in child._actions:
            for option in COMMON & set(action.option_strings):
                kinds.setdefault(option, set()).add(str(action.type))
    assert set(kinds) == COMMON
    assert {option: len(found) for option, found in kinds.items()} == dict.fromkeys(COMMON, 1)


def test_a_model_without_tiles_says_what_it_does_not_read(gemm_model):
    assert "note: SOLModel does not read --cta" in gemm_model("predict", *KERNEL, "--model", "SOLModel").err


def test_fewer_sms_are_the_same_by_either_way(gemm_model):
    by_option = gemm_model("rank", *SIZES, "--sms", 66, "--format", "csv").out
    assert gemm_model("rank", *SIZES, "gpu.sm_count=66", "--format", "csv").out == by_option
    assert gemm_model("rank", *SIZES, "--format", "csv").out != by_option


def test_options_reach_the_model(gemm_model):
    words = ("predict", *KERNEL, "--format", "csv")
    by_option = gemm_model(*words, "--regime", "counters", "--residual", "off").out
    assert gemm_model(*words, "model_opts.regime=counters", "model_opts.residual=off").out == by_option
    assert gemm_model(*words).out != by_option


def test_the_resolved_configuration_tells_sources(gemm_model):
    words = ("--regime", "burst", "gpu.sm_clk_mhz=1500", "--format", "csv")
    rows = gemm_model("predict", *KERNEL, "--cfg", *words).out.splitlines()
    assert "gpu.sm_clk_mhz,1500.0,command line" in rows
    assert "model_opts.regime,burst,command line" in rows
    assert "model_opts.l2,cold,config/model/KernelModel.yaml" in rows
    assert "gpu.sm_count,132,config/gpu/h200.yaml" in rows


@pytest.mark.parametrize(
    *cases(__file__, "test_every_verb_that_reads_the_configuration_tells_it_without_a_problem")
)
def test_every_verb_that_reads_the_configuration_tells_it_without_a_problem(gemm_model, verb):
    outcome = gemm_model(verb, "--cfg", "--format", "json")
    assert (outcome.code, outcome.err) == (0, "")
    keys = {row["key"] for row in json.loads(outcome.out)["rows"]}
    assert {"gpu.sm_count", "gpu.name"} <= keys


def test_lists(gemm_model):
    names = {"gpus": "h200", "models": "WSPersistentGEMMModel", "families": "quack", "types": "nvfp4"}
    names["calibrations"] = "h200:quack"
    everything = gemm_model("list")
    assert (everything.code, max(map(len, everything.out.splitlines())) <= 110) == (0, True)
    for what, name in names.items():
        assert name in gemm_model("list", what).out
        assert name in everything.out
    assert gemm_model("list", "colours").code == 2


def test_completion_knows_verbs_and_options(gemm_model):
    script = gemm_model("completion", "bash").out
    assert "--why-not" in script
    assert "cutlass-profiler" in script


def test_swapped_twins_are_shown_as_one(gemm_model):
    rows = gemm_model("rank", *SIZES, "--residual", "off", "--top", 8).out.splitlines()
    head = rows[0].split()
    cells = [dict(zip(head, row.split(), strict=True)) for row in rows[1:]]
    assert len(cells) == 8
    kernels = [(row["tile"], row["cluster"], row["schedule"]) for row in cells]
    assert len(set(kernels)) == 8
    assert cells[0]["swap_ab"] == "either"


def test_a_kernel_that_spills_is_said_to_be_limited_by_it(gemm_model):
    words = (*SIZES, "--cta", "128x256", "--cluster", "2x1", "--residual", "off")
    assert "limited by SPILLING" in gemm_model("explain", *words, "--dtype", "fp8").out
    assert "limited by TENSOR" in gemm_model("explain", *words, "--dtype", "bf16").out


@pytest.mark.parametrize(*cases(__file__, "test_stdout_that_is_full_gets_a_sentence"))
def test_stdout_that_is_full_gets_a_sentence(words, name):
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "gemm_model.cli", *words], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert run.returncode == 2
    assert run.stderr.decode() == f"{name}: stdout: cannot be read or written (No space left on device)\n"


@pytest.mark.parametrize(
    "closed", [">&- 2>&-", *(pytest.param(each, marks=pytest.mark.slow) for each in (">&-", "2>&-"))]
)
def test_closed_streams_take_what_is_written(closed):
    command = f"'{sys.executable}' -m gemm_model.cli rank --m 512 --n 512 --k 512 {closed}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert run.returncode == 0
    assert b"Traceback" not in run.stderr
    assert (b"predicted_us" in run.stdout) == (closed == "2>&-")


def test_what_an_encoding_lacks_is_spelled_out(tmp_path):
    described = (CONFIG_DIR / "gpu" / "h200.yaml").read_text().replace("name: h200", "name: h200\u00e9", 1)
    (tmp_path / "mine.yaml").write_text(described, encoding="utf-8")
    words = [*map(str, KERNEL), "--gpu", str(tmp_path / "mine.yaml")]
    run = subprocess.run(
        [sys.executable, "-m", "gemm_model.cli", "predict", *words],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert run.returncode == 0
    assert b"calibration of h200\\xe9:quack borrowed from h200:quack" in run.stdout


def test_kernel_and_family_are_one_word(gemm_model):
    for words in (("rank", *SIZES), ("predict", *KERNEL)):
        one, other = (gemm_model(*words, option, "cutlass") for option in ("--kernel", "--family"))
        assert one == other


def test_emit_implies_its_family(gemm_model):
    found = gemm_model("rank", *SIZES, "--emit", "triton")
    assert found.code == 0, found.err
    assert found.out == gemm_model("rank", *SIZES, "--emit", "triton", "--family", "triton").out


def test_every_missing_key_of_a_card_is_told_at_once(gemm_model, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\narchitecture: sm90\n")
    err = gemm_model("predict", "--m", 64, "--n", 64, "--k", 64, "--cta", "64x64", "--gpu", path).err
    assert "missing keys 'sm_count', 'sm_clk_mhz'" in err


SIZES = ("--m", 4096, "--n", 4096, "--k", 4096)


@pytest.mark.parametrize("words", [("rank",), ("predict", "--cta", "128x256", "--cluster", "2x1")])
def test_several_cards_are_compared_in_one_table(gemm_model, words):
    found = gemm_model(*words, *SIZES, "--gpu", "h200,h100_sxm,b200_sxm", "--format", "json")
    assert found.code == 0, found.err
    rows = json.loads(found.out)["rows"]
    assert [row["gpu"] for row in rows] == ["h200", "h100_sxm", "b200_sxm"]
    for row in rows:
        alone = json.loads(gemm_model(*words, *SIZES, "--gpu", row["gpu"], "--format", "json").out)["rows"][0]
        assert row["predicted_us"] == alone["predicted_us"]
        assert row["ratio"] == pytest.approx(row["predicted_us"] / rows[0]["predicted_us"])
        reach = (1 + row["error_band"]) * (1 + rows[0]["error_band"])
        assert row["inside_bands"] == ("yes" if max(row["ratio"], 1 / row["ratio"]) <= reach else "no")


ATTENTION = ("--attention", "causal heads=32 kv_heads=8 seq_q=4096 head_dim=128")


def rows_of(found):
    assert found.code == 0, found.err
    return json.loads(found.out)["rows"]


def test_ties_of_a_limiter_are_told_alike_by_all_verbs(gemm_model):
    words = ("--m", 4096, "--n", 4096, "--k", 256, "--gpu", "h200", "--format", "json")
    for verb, config in (("rank", ()), ("predict", ("--cta", "128x128"))):
        ties = json.loads(gemm_model("explain", *words, *config).out)["result"]["ties"]
        limiters = rows_of(gemm_model(verb, *words, *config))[0]["limiters"].split(" and ")
        assert set(limiters) == set(ties) > {limiters[0]}


@pytest.mark.parametrize("verb", ["explain", "explore"])
@pytest.mark.parametrize("asked", [SIZES, ATTENTION])
def test_explanations_and_pages_are_compared_too(gemm_model, tmp_path, verb, asked):
    page, config = ("--html", tmp_path / "a.html"), ("--cta", "128x256")
    words = (*asked, *(page if verb == "explore" else config if asked == SIZES else ()), "--format", "json")
    rows = rows_of(gemm_model(verb, *words, "--gpu", "h200,h100_sxm"))
    assert [row["gpu"] for row in rows] == ["h200", "h100_sxm"]
    if verb == "explore":
        assert all((tmp_path / f"a-{row['gpu']}.html").stat().st_size > 1e5 for row in rows)
    for row in rows if verb == "explain" else ():
        alone = json.loads(gemm_model(verb, *words, "--gpu", row["gpu"]).out)["result"]
        assert row["predicted_us"] == alone["prediction"]["predicted_us"]
        assert row["limited_by"].startswith(alone["limiter"])
        assert sum(row[name] for name in row if name.startswith("elasticity_")) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(*cases(__file__, "test_a_sweep_is_the_same_question_for_every_value"))
def test_a_sweep_is_the_same_question_for_every_value(gemm_model, tmp_path, words, text, values):
    plot, name = tmp_path / "a.svg", text.partition("=")[0]
    rows = rows_of(
        gemm_model(*words, "--gpu", "h200,h100_sxm", "--sweep", text, "--plot", plot, "--format", "json")
    )
    assert [(row["gpu"], row[name]) for row in rows] == [
        (gpu, value) for gpu in ("h200", "h100_sxm") for value in values
    ]
    assert plot.read_text().count("<svg") == 1
    last = (f"{name}={values[-1]}",) if "." in name else (f"--{name}", values[-1])
    if words[1] == "--attention":
        words, last = (words[0], words[1], f"{words[2]} {name}={values[-1]}"), ()
    alone = rows_of(gemm_model(*words, *last, "--gpu", "h100_sxm", "--format", "json"))[0]
    assert rows[-1]["predicted_us"] == pytest.approx(alone["predicted_us"], rel=1e-9)


def test_a_sweep_draws_bars_and_tells_what_cannot_run(gemm_model):
    found = gemm_model("predict", *SIZES, "--cta", "128x128", "--sweep", "stages=2..12 by 5")
    assert [line.count("#") > 10 for line in found.out.splitlines()] == [False, True]
    assert "note: left out: stages=12: " in found.err
