"""The codes of the rows that calibrations are fitted to, by which `predict` says 'in the fit'."""

import numpy as np
import pandas as pd

from benchmarks.measured import MEASUREMENTS
from gemm_model import load_gpu
from gemm_model.calibration.tables import load_tables
from gemm_model.kernel_model.calibration_file import calibration_names, load_calibration
from gemm_model.kernels.registry import family_of
from gemm_model.report.table_job import FITTED_ROWS, row_codes


def fitted_rows():
    """Of each calibration what `FITTED_ROWS` keeps; of attention, all rows of the fit."""
    attention = pd.read_csv(MEASUREMENTS / "h200" / "attention.csv.gz", low_memory=False)
    codes = {"h200:attention": row_codes(attention[attention["role"] == "fit"])}
    for name in calibration_names():
        calibration = load_calibration(name)
        gpu = load_gpu(calibration.gpu)
        paths = [MEASUREMENTS / gpu.name / table for table in calibration.fitted_to["tables"]]
        kinds = load_tables(paths, gpu, family_of(calibration.family, gpu), plain_shapes=False).by_kind
        parts = [row_codes(rows) for regimes in kinds.values() for rows in regimes.values()]
        codes[name] = np.concatenate(parts)
    return {name: np.diff(np.unique(each), prepend=0).astype(np.uint32) for name, each in codes.items()}


def write_fitted_rows():
    np.savez_compressed(FITTED_ROWS, **fitted_rows())
