"""Train the trees of cuDNN's heuristic choices anew: `config/calibration/h200/cudnn.picks.npz`.

python scripts/fit_picks.py

After a fit of `h200:cudnn` or a change of `heuristic_choices.yaml`, from whose times they start. Prints how
near calls come with and without them, of layers that the trees have not seen.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from gemm_model.calibration.pick_residual_fit import FAMILY, calls_of, errors, held_out, pick_residual
from gemm_model.core.gpu import load_gpu
from gemm_model.kernel_model.calibration_file import tables_of_picks
from gemm_model.kernel_model.pick_residual import picks_of, write_pick_residual

GPU = "h200"
MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements" / GPU


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    gpu = load_gpu(GPU)
    calls = calls_of([MEASUREMENTS / f"{name}.csv.gz" for name in tables_of_picks(FAMILY)], gpu)
    residual = pick_residual(calls, gpu, expected := held_out(calls))
    without, found = errors(calls, np.zeros(len(expected))), errors(calls, expected, residual.shift)
    print(f"{len(found)} calls: {without.mean():.2%} without trees, {found.mean():.2%} with them")
    write_pick_residual(residual, picks_of(GPU, FAMILY))


if __name__ == "__main__":
    main()
