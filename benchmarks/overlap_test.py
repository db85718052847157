"""Predict the test shapes before they are measured, and compare the predictions with the measurement.

    python benchmarks/overlap_test.py predicted.csv.gz
    python benchmarks/overlap_test.py predicted.csv.gz --measured overlap_surfaces.csv.gz [another_run.csv.gz]

Without --measured it writes the predicted time of each setting of `TEST_PROJECTIONS` and the tuner's pick; no
GPU is needed. With it nothing is predicted again, and several runs count by their mean.
`overlap_surfaces.py --shapes test` measures.
"""

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
from overlap_projections import TEST_PROJECTIONS, TWO_EXTRA_CLOCKS, describe

from gemm_model.config import load_config
from gemm_model.core.errors import InputError
from gemm_model.core.files import atomic_path
from gemm_model.core.gpu import load_gpu
from gemm_model.models import model_for
from gemm_model.overlap.config import OverlapSetting
from gemm_model.overlap.model import LayerCase
from gemm_model.overlap.plan import plan_build
from gemm_model.overlap.surfaces import read_surfaces
from gemm_model.overlap.tuner import OVERLAP_RATIOS, PREFETCH_RATIOS, tune

SURFACE = ["name", "m", "n", "k", "a_type", "b_type", "split_k", "stages", "clusters", "extra_clocks"]
SETTING = ["serialized", "overlap_ratio", "prefetch_ratio"]


def predicted_rows(model, projection, extra):
    p = projection
    build = plan_build(p.m, p.n, p.k, p.a_type, p.b_type, model.gpu)
    never = OverlapSetting(overlap_ratio=-1, prefetch_ratio=0)
    serial = LayerCase(
        m=p.m,
        n=p.n,
        k=p.k,
        build=replace(build, dependent_launch=False),
        setting=never,
        extra_us=extra / model.gpu.sm_clk_mhz,
        serialized=True,
    )
    overlapped = replace(serial, build=build, serialized=False)
    settings = [
        OverlapSetting(overlap_ratio=overlap, prefetch_ratio=prefetch)
        for overlap, prefetch in product(OVERLAP_RATIOS, PREFETCH_RATIOS)
    ]
    cases = [serial, *(replace(overlapped, setting=setting) for setting in settings)]
    pick = tune(model, overlapped).setting
    for case, time in zip(cases, model.layer_us(cases), strict=True):
        yield {
            **describe(p, build, extra),
            "serialized": int(case.serialized),
            "overlap_ratio": case.setting.overlap_ratio,
            "prefetch_ratio": case.setting.prefetch_ratio,
            "predicted_us": time,
            "pick": int(not case.serialized and case.setting == pick),
        }


def compare(predicted, measured):
    """Per surface: mean error, and how much slower than the fastest setting the pick is."""
    both = predicted.merge(
        measured[[*SURFACE, *SETTING, "layer_us"]], on=[*SURFACE, *SETTING], validate="1:1"
    )
    if len(both) != len(predicted):
        raise InputError(f"{len(both)} of {len(predicted)} predicted settings were measured; expected all")
    both["error"] = (both["predicted_us"] / both["layer_us"] - 1).abs()
    rows = []
    for surface, part in both.groupby(SURFACE, sort=False):
        grid, pick = part[part["serialized"] == 0], part[part["pick"] == 1].iloc[0]
        best = grid.loc[grid["layer_us"].idxmin()]
        rows.append(
            {
                "name": surface[0],
                "extra_clocks": surface[-1],
                "mean_error": part["error"].mean(),
                "best": (best["overlap_ratio"], best["prefetch_ratio"]),
                "pick": (pick["overlap_ratio"], pick["prefetch_ratio"]),
                "slower_than_best": pick["layer_us"] / best["layer_us"] - 1,
                "over_no_overlap": pick["layer_us"] / part.loc[part["serialized"] == 1, "layer_us"].iloc[0],
            }
        )
    return pd.DataFrame(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("predicted", type=Path)
    parser.add_argument("--measured", type=Path, nargs="+")
    args = parser.parse_args()
    try:
        run(args.predicted, args.measured)
    except InputError as error:
        parser.error(str(error))


def run(path, measured):
    if measured is None:
        options = load_config([], {"gpu": "h200", "model": "OverlapModel"})["model_opts"]
        model = model_for("OverlapModel", load_gpu("h200"), options)
        rows = [
            row
            for projection, extra in product(TEST_PROJECTIONS, TWO_EXTRA_CLOCKS)
            for row in predicted_rows(model, projection, extra)
        ]
        with atomic_path(path) as temporary:
            pd.DataFrame(rows).to_csv(temporary, index=False, float_format="%.4f")
        return
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected predictions written by this script")
    rows = compare(pd.read_csv(path), read_surfaces(*measured))
    print(rows.round(4).to_string(index=False))
    print(
        f"mean error {rows['mean_error'].mean():.2%}, worst surface {rows['mean_error'].max():.2%}; pick "
        f"within 3 % of the best on {(rows['slower_than_best'] <= 0.03).sum()} of {len(rows)}, worst "
        f"{rows['slower_than_best'].max():.2%}; slower than no overlap: {(rows['over_no_overlap'] > 1).sum()}"
    )


if __name__ == "__main__":
    main()
