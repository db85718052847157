"""Tables of rows whose times some numbers made."""

import numpy as np
import pandas as pd

from gemm_model.calibration.observations import observe
from gemm_model.core.gpu import load_gpu
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernels.registry import family_of

H200 = load_gpu("h200")
QUACK = family_of("quack", H200)
TILES = ((64, 128), (128, 128), (128, 256), (256, 128))


def rows_made_by(numbers, shapes, dtype="bf16", noise=0.0, seed=3):
    """QuACK's rows of shapes up to 9000, each with four tiles with and without clusters of two."""
    random = np.random.default_rng(seed)
    sizes = np.round(np.exp(random.uniform(np.log(64), np.log(9000), (shapes, 3))) / 64) * 64
    rows = [
        {
            "in_dtype": dtype, "out_dtype": "bf16", "m": int(m), "n": int(n), "k": int(k), "kernel": "quack",
            "cta_m": cta_m, "cta_n": cta_n, "cluster_m": cluster, "cluster_n": 1, "schedule": "cooperative",
            "runtime_us": 1.0,
        }
        for m, n, k in np.maximum(sizes, 64)
        for cta_m, cta_n in TILES
        for cluster in (1, 2)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    truth = kernel_time(observe(frame, H200, QUACK).shape, H200, numbers)
    frame["runtime_us"] = truth.runtime_us * np.exp(random.normal(0, noise, len(frame)))
    return frame
