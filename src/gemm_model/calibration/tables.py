"""Read measured tables for a calibration, and refuse unusable ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.classic_models.sol import SOLModel
from gemm_model.config.mechanisms import IMPLICIT_GEMM, PROBLEM_KINDS
from gemm_model.config.numbers import room_numbers
from gemm_model.core.dtypes import operand_type
from gemm_model.core.fields import counted
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import AUTO_KERNEL, STREAM_K
from gemm_model.core.regimes import regime_name
from gemm_model.errors import InputError
from gemm_model.kernel_model.launch_context import REGIMES
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.registry import families, family_of, names_in_tables
from gemm_model.tables.accuracy import shape_columns
from gemm_model.tables.schema import require_card, understood
from gemm_model.tables.table import batch_from_frame, read_table, runtimes_us, usable_rows


@dataclass(frozen=True, slots=True)
class CalibrationData:
    """Rows of one rate class by regime; `notes` explains what was left out."""

    by_kind: dict[str, dict[str, pd.DataFrame]]
    notes: list[str]
    cards: tuple[str, ...]


def load_tables(
    paths: Sequence[Path], gpu: GpuSpec, family: KernelFamily, *, l2: str = "cold", plain_shapes: bool = True
) -> CalibrationData:
    """The usable rows of a family's kernels in some tables of measurements on one kind of GPU.

    Raises InputError for rows of several kinds of GPU, unknown regimes, or, with `plain_shapes`, too few
    shapes of plain products.
    """
    notes: list[str] = []
    frames = [_rows_of(path, gpu, family, l2, notes) for path in paths]
    table = pd.concat(frames, ignore_index=True)
    table.attrs["path"] = ", ".join(map(str, paths))
    if table.empty:
        raise InputError(f"{table.attrs['path']}: no row is left; {notes[-1]}")
    _require_one_gpu(table)
    cards = tuple(sorted(set(table["gpu_uuid"]))) if "gpu_uuid" in table else ()
    by_kind: dict[str, dict[str, pd.DataFrame]] = {}
    kinds = table["in_dtype"].map(lambda name: operand_type(str(name))[0].math_kind)
    for kind, rows in table.groupby(kinds, sort=True):
        by_kind[str(kind)] = {str(name): part.reset_index(drop=True) for name, part in rows.groupby("regime")}
    if plain_shapes:
        _require_shapes(by_kind, str(table.attrs["path"]), family)
    return CalibrationData(by_kind, notes, cards)


def _rows_of(path: Path, gpu: GpuSpec, family: KernelFamily, l2: str, notes: list[str]) -> pd.DataFrame:
    """The usable rows of one table, with their regime. Errors name the line."""
    frame, left_out = usable_rows(understood(read_table(path)), needs_tile=True)
    require_card(frame, gpu)
    notes += [f"{path}: {sentence}" for sentence in left_out]
    table = _rows_to_fit(_own_rows(frame, path, family, notes), notes)
    regimes = _regimes(table)
    unknown = regimes[~regimes.isin(REGIMES)]
    if len(unknown):
        raise InputError(
            f"{path}: line {unknown.index[0]}, column regime: {unknown.iloc[0]!r}; "
            f"expected one of {', '.join(REGIMES)}"
        )
    kept = table.assign(table=table_name(path), regime=regimes)
    if "programmatic_edges" in kept and "pdl" in kept:
        # For libraries that choose themselves, the captured graph shows how they launched.
        edges = pd.to_numeric(kept["programmatic_edges"], errors="coerce")
        unknown_way = pd.to_numeric(kept["pdl"], errors="coerce").isna()
        kept.loc[unknown_way & edges.notna(), "pdl"] = (edges > 0).astype(int).astype(str)
    if "l2" in kept:
        other = (kept["regime"] == "burst") & ~kept["l2"].isin((l2, ""))
        kept = _without(kept, other, f"in the burst regime with an L2 that was not {l2}", notes)
    return kept if kept.empty else _possible_rows(kept, gpu, notes)


def _rows_to_fit(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """The rows with the role of a fit; all rows of a table without the column `role`."""
    if "role" not in frame:
        return frame
    other = ~frame["role"].isin(("fit", ""))
    return _without(frame, other, "whose role is not fit", notes)


def _regimes(table: pd.DataFrame) -> pd.Series:
    """The regime of each row, 'burst' by default."""
    if "regime" not in table:
        return pd.Series("burst", index=table.index)
    regimes = table["regime"].replace("", np.nan).fillna("burst")
    if "settled" in table:
        # Chains at a settled clock are sustained, with operands of their own.
        settled = (regimes == "graph") & (table["settled"].astype(str) == "1")
        regimes = regimes.mask(settled, "sustained")
    return regimes.map(regime_name)


def measured_family(name: str, paths: Sequence[Path], gpu: GpuSpec) -> KernelFamily:
    """The family called `name` on a GPU; for 'auto' the one that the tables name.

    If the tables name several, it is the GPU's default family; rows of unknown names are left out. Raises
    InputError like `family_of`, and if several families are named without the default one.
    """
    if name == AUTO_KERNEL:
        called = names_in_tables()
        named: set[str] = set()
        for path in paths:
            table = read_table(path)
            if "kernel" in table:
                named |= {called.get(str(value), "") for value in table["kernel"].unique()}
        known = [family for family in families(gpu) if family in named]
        if len(known) > 1 and known[0] != families(gpu)[0]:
            raise InputError(
                f"{', '.join(map(str, paths))}: rows of {' and '.join(known)} kernels; "
                "expected one family, or --family"
            )
        name = known[0] if known else name
    return family_of(name, gpu)


def table_name(path: Path) -> str:
    """A table's file name without its endings."""
    return path.name.split(".")[0]


def _own_rows(frame: pd.DataFrame, path: Path, family: KernelFamily, notes: list[str]) -> pd.DataFrame:
    """Rows of the kernel family (a table without the column is taken to be that)."""
    if "kernel" not in frame:
        return frame
    foreign = ~frame["kernel"].isin((family.name, *family.providers, ""))
    kept = _without(frame, foreign, f"of kernels other than {family.name}", notes)
    if len(kept) == 0:
        others = ", ".join(sorted(set(frame["kernel"].astype(str))))
        raise InputError(
            f"{path}: no row of kernel {family.name}, but of {others}; expected measurements of that family"
        )
    return kept.assign(kernel=family.name)


def splits_k(frame: pd.DataFrame) -> pd.Series:
    """Mask of the rows whose clusters share the K of a tile."""
    parts = pd.to_numeric(frame["split_k"], errors="coerce") if "split_k" in frame else 1.0
    splits = pd.Series(parts, index=frame.index).fillna(1.0) > 1.0
    return splits | (frame["scheduler"] == STREAM_K) if "scheduler" in frame else splits


def problem_kind(frame: pd.DataFrame) -> pd.Series:
    """The entry of PROBLEM_KINDS that each row informs about; '' for plain GEMMs.

    If there are several, the last one, as in `KindColumns.kind`.
    """
    kinds = batch_from_frame(frame, needs_tile=False).kinds
    names = np.array(["", *PROBLEM_KINDS])
    codes = np.broadcast_to(kinds.kind + 1.0, (len(frame),))
    return pd.Series(names[codes.astype(np.int64)], index=frame.index)


def _without(frame: pd.DataFrame, drop: pd.Series, what: str, notes: list[str]) -> pd.DataFrame:
    if not drop.any():
        return frame
    lines = ", ".join(str(line) for line in frame.index[drop][:5])
    note = f"{frame.attrs['path']}: left out {counted(int(drop.sum()), 'row')} {what}"
    notes.append(f"{note} (first at line {lines})" if frame.index.name == "line" else note)
    return frame[~drop]


def _require_one_gpu(table: pd.DataFrame) -> None:
    if "gpu" in table and table["gpu"].nunique() > 1:
        found = ", ".join(sorted(map(str, table["gpu"].unique())))
        raise InputError(f"{table.attrs['path']}: rows of several GPUs ({found}); expected one kind")


def _possible_rows(table: pd.DataFrame, gpu: GpuSpec, notes: list[str]) -> pd.DataFrame:
    """The table without rows faster than the speed of light."""
    batch = batch_from_frame(table, needs_tile=True)
    measured = runtimes_us(table, blanks=True)
    if measured is None:
        raise InputError(
            f"{table.attrs['path']}: column 'runtime_us' is missing or empty; expected measurements"
        )
    blank = pd.Series(np.isnan(measured), index=table.index)
    floor_us = SOLModel(gpu).predict_batch(batch).runtime_us
    impossible = pd.Series(
        measured < room_numbers("calibration").fastest_over_sol * floor_us, index=table.index
    )
    timed = _without(table, blank, "without a measured time", notes)
    return _without(timed, impossible[~blank], "faster than the speed of light", notes)


def main_situation(frame: pd.DataFrame, family: KernelFamily) -> pd.Series:
    """`problem_kind`, with '' for convolutions too in a family for convolutions."""
    found = problem_kind(frame)
    return found if family.plain_products else found.replace(IMPLICIT_GEMM, "")


def _require_shapes(by_kind: dict[str, dict[str, pd.DataFrame]], path: str, family: KernelFamily) -> None:
    for kind, regimes in by_kind.items():
        main = regimes.get("burst", regimes.get("counters"))
        whole = main if main is None else main[~splits_k(main) & (main_situation(main, family) == "")]
        shapes = 0 if whole is None else whole.groupby(shape_columns(whole)).ngroups
        if shapes < (fewest := room_numbers("calibration").fewest_shapes):
            raise InputError(
                f"{path}: {shapes} shapes of {kind} operands in the burst regime; expected {fewest}"
            )
