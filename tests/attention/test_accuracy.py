"""Held-out timings of flash-attn-4 (models that no number was fitted to): errors by kind, and the choice."""

from io import StringIO

import numpy as np
import pandas as pd
import pytest

from benchmarks.measured import MEASUREMENTS, rows_of
from gemm_model import load_gpu, predict_table
from gemm_model.attention.model import AttentionModel
from gemm_model.cli import main
from gemm_model.config.numbers import room_numbers
from gemm_model.tables.attention import predict_attention_frame
from tests.cases import cases

pytestmark = pytest.mark.xdist_group("attention")  # one process reads and predicts the table


@pytest.fixture(scope="module")
def unseen():
    parts = [rows_of(name) for name in ("attention_unseen", "attention_second_unseen")]
    frame = pd.concat(parts, ignore_index=True).fillna("")
    found = predict_table(frame[frame["kernel"] == "flash_attention"], "h200")
    sizes = ("seq_q", "seq_kv", "num_splits", "causal", "window", "tile_m", "tile_n")
    found = found.assign(**{name: pd.to_numeric(found[name]) for name in sizes})
    return found.assign(error=np.abs(found["ratio"] - 1.0), one_length=found["lengths"] == "")


def _prefill(rows):
    return rows["one_length"] & (rows["seq_q"] > 256)


def test_prefill(unseen):
    errors = unseen.loc[_prefill(unseen), "error"]
    assert len(errors) > 1400
    assert errors.mean() < 0.04
    assert errors.quantile(0.95) < 0.12
    assert errors.max() < 0.25


@pytest.mark.parametrize(*cases(__file__, "test_each_kind_of_prefill"))
def test_each_kind_of_prefill(unseen, kind):
    errors = unseen[_prefill(unseen)].query(kind)["error"]
    assert len(errors) >= 90
    assert errors.mean() < 0.06


def test_decode_with_and_without_splits(unseen):
    decode = unseen["one_length"] & (unseen["seq_q"] <= 256)
    for rows in (decode, decode & (unseen["num_splits"] > 1)):
        assert rows.sum() > 100
        assert unseen.loc[rows, "error"].mean() < 0.06


def test_without_a_number_fitted_to_attention(unseen):
    # Stores of QuACK's GEMMs; units that hide all but the longest; a GEMM's current.
    others = {"store_bytes_per_clk": 22.3, "overlap_order": 20.0, "mma_current": 1.0}
    model = AttentionModel(load_gpu("h200"), room_numbers("attention").having(**others, length_clk=0.0))
    for rows, worst in ((unseen[_prefill(unseen)], 0.065), (unseen[~_prefill(unseen)], 0.07)):
        error = np.abs(predict_attention_frame(rows, model).runtime_us / rows["runtime_us"] - 1.0)
        assert error.mean() < worst


def test_choice_over_all_tiles_of_models_that_nobody_had_seen(tmp_path, capsys):
    rows_of("attention_second_unseen").to_csv(tmp_path / "measured.csv", index=False)
    assert main(["rank", "--input", str(tmp_path / "measured.csv"), "--format", "csv"]) == 0
    found = pd.read_csv(StringIO(capsys.readouterr().out))
    assert len(found) > 100
    assert found["of_best"].mean() > 0.99
    assert found["of_best"].quantile(0.05) > 0.96
    reported = pd.read_csv(MEASUREMENTS.parents[1] / "docs/evidence/attention-choices.csv")
    assert found["over_library"].tolist() == pytest.approx(reported["over_library"].tolist(), abs=1e-3)


@pytest.fixture(scope="module")
def torch_rows():
    frame = pd.concat([rows_of("attention"), rows_of("attention_unseen")], ignore_index=True).fillna("")
    found = predict_table(frame[frame["kernel"] != "flash_attention"], "h200")
    return found.assign(error=np.abs(found["ratio"] - 1.0), seq_q=pd.to_numeric(found["seq_q"]))


@pytest.mark.parametrize("kernel", ["cudnn_attention", "flash_attention_2"])
def test_what_torch_runs_by_kernel_name(torch_rows, kernel):
    rows = torch_rows[torch_rows["kernel"] == kernel]
    assert rows["error"].mean() < 0.055
    assert rows.loc[rows["seq_q"] > 256, "error"].mean() < 0.04
    assert rows.loc[rows["seq_q"] == 1, "error"].mean() < 0.07


def test_softcaps_that_no_number_was_fitted_to():
    rows = pd.concat([rows_of("attention_softcap"), rows_of("attention_softcap_second")], ignore_index=True)
    found = predict_table(rows[rows["softcap"] != ""], "h200")
    error, prefill = np.abs(found["ratio"] - 1.0), pd.to_numeric(found["seq_q"]) > 256
    assert (prefill.sum(), (~prefill).sum()) == (18, 8)
    assert error[prefill].mean() < 0.08
    assert error[~prefill].mean() < 0.065
    assert error.max() < 0.15


def test_a_card_that_no_number_has_seen():
    rows = rows_of("attention_other_card")
    found = predict_table(rows, "h100_sxm")
    error, own = np.abs(found["ratio"] - 1.0), found["kernel"] == "flash_attention"
    prefill = own & (pd.to_numeric(found["seq_q"]) > 256)
    assert error[prefill].mean() < 0.042
    assert error[own & ~prefill].mean() < 0.06
    assert error[~own].mean() < 0.065


def test_pages_cost_what_copying_their_rows_does():
    rows = rows_of("attention_pages")
    found = predict_table(rows, "h200")
    paged = rows["page_size"].to_numpy() != ""
    error, prefill = np.abs(found["ratio"] - 1.0), (pd.to_numeric(found["seq_q"]) > 256).to_numpy()
    assert error[paged & prefill].mean() < 0.035
    assert error[paged & ~prefill].mean() < 0.07
