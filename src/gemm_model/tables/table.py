"""Tables of kernels: reading files, checking values, and turning them into batches.

Columns are those of `tables.schema` (sizes in elements, times in microseconds). Only m, n, k and in_dtype are
required, and the tile and cluster for a model that needs them. Further columns travel along untouched.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gemm_model.config import read_toml
from gemm_model.core import dtypes, kernel_config
from gemm_model.core.batch import (
    EMPTY_KERNEL_UNKNOWN,
    NO_SECOND_USE,
    BoolArray,
    FloatArray,
    GemmBatch,
    IntArray,
)
from gemm_model.core.fields import ATTENTION, KIND_COLUMNS, OK, SERVED, counted
from gemm_model.core.files import read_json
from gemm_model.core.prediction import BatchPrediction, predict_in_chunks
from gemm_model.core.problem import scale_bits
from gemm_model.core.regimes import GRAPH, regime_name
from gemm_model.core.sizes import MAX_SIZE
from gemm_model.dataset.schema import as_texts, pyarrow
from gemm_model.dataset.storage import DataSet, is_dataset
from gemm_model.errors import InputError, RefusedKernelError
from gemm_model.kernels.feasibility import refuse_in_any_family
from gemm_model.kernels.registry import names_in_tables, sums_stay
from gemm_model.models import Model, require_known
from gemm_model.tables.kind_columns import asks_for_more, is_asked, with_kind_columns
from gemm_model.tables.schema import place_of, table_name

SHAPE_COLUMNS = ("in_dtype", "out_dtype", "m", "n", "k", *KIND_COLUMNS)
"""Columns that identify a GEMM, as far as a table has them."""

CONFIG_COLUMNS = tuple(read_toml("columns")["configuration"])
"""Columns that identify a kernel configuration, as far as a table has them."""

_SIZES = ("m", "n", "k")
_TILE = ("cta_m", "cta_n", "cluster_m", "cluster_n")
_AUTO_SIZES = ("cta_k", "stages")
_FLAGS = {"": -1, "0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}
"""Of the texts of a flag, 1 or 0, and -1 of an empty cell."""
_FIRST_LINE = 1
MAX_FOOTPRINT_BYTES = 1e13
"""Most bytes between two uses of operands [B]; tables; chosen: far more than any card holds."""
MAX_COLUMNS = 1000
"""Columns of a table [1]; all tables; chosen: those of a benchmark have 65."""
MAX_EMPTY_KERNEL_US = 100.0
FAILED, IN_TURN, NO_TILE, SPLIT_UNKNOWN = "failed", "in_turn", "no_tile", "split_untold"
CANNOT_RUN = "cannot_run"
"""Disposition of a kernel that the card cannot run."""
OTHER_KINDS = {
    "tokens": "served layers, for predict and rank",
    **dict.fromkeys(("heads", "head_dim"), "attention, for predict, rank and benchmark"),
}
"""Kinds of tables without m, by a column."""
OTHER_WORK = {ATTENTION: "{} of attention", SERVED: "{} of kernels that servers tune"}
LEFT_OUT = {
    **OTHER_WORK,
    FAILED: "{} without a measurement (column disposition)",
    IN_TURN: "{} of two kernels in turn (column partner)",
    NO_TILE: "{} of kernel {} without a tile",
    SPLIT_UNKNOWN: "{} with an unknown split of K",
}
"""What notes say of rows by their disposition."""


def read_table(path: Path | str) -> pd.DataFrame:
    """A CSV file (also .gz), the JSON or JSON lines of a verb, a Parquet file or a data set as a frame of texts.

    It is checked for shape, not for values. Raises InputError, naming the file, for what is not a table with
    named columns and at least one row.
    """
    path = Path(path)
    if is_dataset(path):
        frame = as_texts(DataSet(path).read())
        frame.attrs["path"] = str(path)
        return frame
    if path.is_dir():
        raise InputError(f"{path}: is a directory; expected a CSV file")
    if not path.exists():
        raise InputError(f"{path}: no such file; expected a CSV file")
    if path.suffix.lower() in READERS:
        frame = as_texts(READERS[path.suffix.lower()](path))
        frame.index = pd.RangeIndex(1, len(frame) + 1, name="row")
        frame.attrs["path"] = str(path)
        if frame.empty:
            raise InputError(f"{path}: no rows; expected at least one")
        return frame
    try:
        text = _read_text(path)
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError(f"{path}: not a text file; expected a CSV file (plain or .gz)") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a CSV file") from None
    if "\0" in text:
        raise InputError(f"{path}: not a text file; expected a CSV file (plain or .gz)")
    return _parse_rows(path, text)


def _read_text(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    return data.decode("utf-8-sig")


def _json_rows(path: Path) -> pd.DataFrame:
    document = read_json(path, "a document of a verb, or a list of rows")
    return _of_mappings(path, document.get("rows", [document]) if isinstance(document, dict) else document)


def _json_lines(path: Path) -> pd.DataFrame:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return _of_mappings(path, [json.loads(line) for line in lines if line.strip()])
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not readable as JSON lines ({error})") from None


def _of_mappings(path: Path, rows: Any) -> pd.DataFrame:
    """Rows of names and values; those of what `--emit json` prints stand in its `problem` and `config`."""
    flat = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    for name in ("problem", "config") if flat else ():
        rows = [row | row.pop(name) if isinstance(row.get(name), dict) else row for row in rows]
    if not flat or any(isinstance(cell, list | dict) for row in rows for cell in row.values()):
        raise InputError(f"{path}: no table; expected rows of names and values")
    return pd.DataFrame(rows, dtype=object)


def _parquet_rows(path: Path) -> pd.DataFrame:
    package = pyarrow()
    try:
        found: pd.DataFrame = package.parquet.ParquetFile(path).read().to_pandas()
    except (package.ArrowException, OSError) as error:
        raise InputError(f"{path}: not readable as Parquet ({str(error).splitlines()[0]})") from None
    return found


READERS = {".json": _json_rows, ".jsonl": _json_lines, ".parquet": _parquet_rows}


def _parse_rows(path: Path, text: str) -> pd.DataFrame:
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=_FIRST_LINE)]
    lines = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
    if not lines:
        raise InputError(f"{path}: empty; expected a header line and at least one row")
    try:
        rows = list(csv.reader([line for _, line in lines], strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: not readable as CSV ({error})") from None
    header = [name.strip() for name in rows[0]]
    if len(header) == 1 and (apart := re.search(r"[;\t|]", header[0])):
        raise InputError(f"{path}: columns apart by {apart[0]!r}; expected commas between them")
    if len(header) > MAX_COLUMNS:
        raise InputError(f"{path}: {len(header)} columns; expected at most {MAX_COLUMNS}")
    for name, count in Counter(header).items():
        if count > 1:
            raise InputError(f"{path}: column {name!r} appears twice in the header; expected each name once")
    if len(rows) == 1:
        raise InputError(f"{path}: no rows below the header; expected at least one")
    if set(map(len, rows)) != {len(header)}:
        number, row = next(
            (number, row) for (number, _), row in zip(lines, rows, strict=False) if len(row) != len(header)
        )
        raise InputError(
            f"{path}: line {number} has {len(row)} fields; expected {len(header)} as in the header"
        )
    columns = {
        name: list(map(str.strip, texts))
        for name, texts in zip(header, zip(*rows[1:], strict=True), strict=True)
    }
    frame = pd.DataFrame(columns, index=pd.Index([number for number, _ in lines[1 : len(rows)]], name="line"))
    frame.attrs["path"] = str(path)
    return frame


def batch_from_frame(frame: pd.DataFrame, *, needs_tile: bool) -> GemmBatch:
    """The columns that models take; raises InputError naming the table, row and column of a bad value.

    Without `needs_tile` the kernel's columns are neither read nor checked, and keep their defaults.
    """
    require_columns(frame, [*_SIZES, *(_TILE if needs_tile else ())])
    if len(frame) == 0:
        raise InputError(f"{table_name(frame)}: no rows; expected at least one")
    columns: dict[str, Any] = {name: sizes(frame, name) for name in _SIZES}
    columns["batch"] = sizes(frame, "batch", default=1.0)
    columns |= _operand_columns(frame)
    columns |= _kernel_columns(frame if needs_tile else frame[[]])
    columns["empty_kernel_us"] = _given(
        frame, "empty_kernel_us", EMPTY_KERNEL_UNKNOWN, MAX_EMPTY_KERNEL_US, "a number of microseconds"
    )
    columns["warps"] = _given(frame, "warps", 0.0, 64.0, "a number of warps")
    columns["pdl"] = _given(frame, "pdl", -1.0, 1.0, "whether launches are dependent,")
    columns["footprint_bytes"] = _given(
        frame, "footprint_bytes", NO_SECOND_USE, MAX_FOOTPRINT_BYTES, "a number of bytes"
    )
    columns = with_kind_columns(frame, columns)
    swapped = _flag(frame if needs_tile else frame[[]], "swap_ab")
    return GemmBatch(**(_exchanged(frame, columns, swapped) if swapped.any() else columns))


def _exchanged(frame: pd.DataFrame, columns: Mapping[str, Any], swapped: BoolArray) -> dict[str, Any]:
    """Columns of a batch whose `swapped` rows compute D^T = B A^T: their tile and cluster lie in that."""
    further = asks_for_more(frame) & swapped
    for name in ("groups", "conv", "block_scaling", "broadcast", "batch_strides"):
        if name in frame:
            _reject(frame, "swap_ab", further & is_asked(frame[name]), f"0 beside {name}")
    result = dict(columns)
    pairs = (("m", "n"), *((f"a_{name}", f"b_{name}") for name in ("bits", "scale_bits", "k_major")))
    for one, other in pairs:
        result[one] = np.where(swapped, columns[other], columns[one])
        result[other] = np.where(swapped, columns[one], columns[other])
    result["c_n_major"] = columns["c_n_major"] != swapped
    return result


def predict_frame(
    frame: pd.DataFrame, model: Model, advance: Callable[[int], None] = lambda _: None
) -> BatchPrediction:
    """A model's predictions of all rows; calls `advance(rows)` as rows are done.

    Raises InputError for a bad value or a kernel that cannot exist.
    """
    batch = batch_from_frame(frame, needs_tile=model.needs_tile)
    require_known(model, beyond_plain=not batch.plain)
    try:
        if model.needs_tile:
            refuse_in_any_family(batch, model.gpu)
        return predict_in_chunks(model.predict_batch, batch, advance)
    except RefusedKernelError as refused:
        raise refused_rows(frame, refused) from None


def refused_rows(frame: pd.DataFrame, refused: RefusedKernelError) -> RefusedKernelError:
    """The error with the table and place of its first row."""
    where = f"{table_name(frame)}: {place_of(frame, refused.rows[0])}"
    return RefusedKernelError(refused.rows, f"{where}: {refused.reason}")


def predict_usable(
    frame: pd.DataFrame, disposition: pd.Series, predict: Callable[[pd.DataFrame], BatchPrediction]
) -> tuple[BatchPrediction, pd.Series, list[str]]:
    """The predictions of the rows that are 'ok', and the disposition of all, CANNOT_RUN where none can.

    A note says why the first of those cannot. Raises InputError where all of them cannot.
    """
    disposition = disposition.copy()
    notes: list[str] = []
    while True:
        places = np.flatnonzero((disposition == OK).to_numpy())
        try:
            return predict(frame.iloc[places]), disposition, notes
        except RefusedKernelError as refused:
            if len(refused.rows) == len(places):
                raise
            disposition.iloc[places[list(refused.rows)]] = CANNOT_RUN
            notes.append(f"{counted(len(refused.rows), 'row')} cannot run, no prediction: {refused.reason}")


def _kernel_columns(frame: pd.DataFrame) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, default in read_toml("columns")["kernel_defaults"].items():
        # A tile is never guessed: if a table has the column, each row must fill it.
        required = name in _TILE and name in frame
        columns[name] = sizes(frame, name, default=None if required else default)
    for name in _AUTO_SIZES:
        columns[name] = sizes(frame, name, default=0.0, low=0)
    columns["a_k_major"] = _choice(frame, "a_major", ("k", "m"), default=0) == 0
    columns["b_k_major"] = _choice(frame, "b_major", ("k", "n"), default=0) == 0
    columns["c_n_major"] = _choice(frame, "c_major", ("n", "m"), default=0) == 0
    columns["kernel"] = _choice(frame, "kernel", kernel_config.KERNELS, default=0, names=names_in_tables())
    columns["raster"] = _choice(frame, "raster", kernel_config.RASTERS, default=0)
    columns["fast_accum"] = _flag(frame, "fast_accum", _sums_stay(frame))
    scheduler = _choice(frame, "scheduler", kernel_config.SCHEDULERS, default=0)
    columns["stream_k"] = scheduler == kernel_config.SCHEDULERS.index(kernel_config.STREAM_K)
    columns["schedule"] = _choice(frame, "schedule", kernel_config.SCHEDULES, default=0)
    ctas_per_mma = np.where(columns["schedule"] == kernel_config.TWO_CTA, 2.0, 1.0)
    columns["mma_m"] = sizes(frame, "mma_m", default=ctas_per_mma * columns["cta_m"])
    columns["mma_n"] = sizes(frame, "mma_n", default=columns["cta_n"])
    if "schedule" not in frame:
        doubled = columns["mma_m"] == 2 * columns["cta_m"]
        columns["schedule"] = np.where(doubled, kernel_config.TWO_CTA, kernel_config.COOPERATIVE)
    return columns


def _sums_stay(frame: pd.DataFrame) -> BoolArray:
    """Mask of the rows of families whose fp8 sums always stay in the accumulators."""
    if "kernel" not in frame:
        return np.zeros(len(frame), dtype=bool)
    stay = {name for name, family in names_in_tables().items() if family in sums_stay()}
    found: BoolArray = frame["kernel"].isin(stay).to_numpy(dtype=bool)
    return found


def _given(frame: pd.DataFrame, name: str, default: float, high: float, what: str) -> FloatArray:
    """Numbers from 0 to `high` of a column that tables may lack, with `default` for empty cells."""
    if name not in frame:
        return np.broadcast_to(np.asarray(default), (len(frame),))
    expected = f"{what} from 0 to {high:g}"
    return checked(frame, name, lambda values: (values >= 0) & (values <= high), expected, default)


def usable_rows(frame: pd.DataFrame, *, needs_tile: bool) -> tuple[pd.DataFrame, list[str]]:
    """The rows that a model can be compared with, and a sentence on each group of rows that is left out.

    Left out are those of which `dispositions` says something else than 'ok'. The notes begin with those of
    `schema.understood`, which gave the columns their names.
    """
    judged, disposition = dispositions(frame, needs_tile=needs_tile)
    usable = (disposition == OK).to_numpy()
    kept, others, reasons = judged[usable], frame[~usable], disposition[~usable]
    notes = list(frame.attrs.get("notes", ()))
    kernels = others["kernel"].astype(str) if "kernel" in frame else pd.Series("", index=others.index)
    reasons = reasons.where(reasons.isin(list(LEFT_OUT)), FAILED)
    for reason in LEFT_OUT:
        rows = kernels[(reasons == reason).to_numpy()]
        groups = rows.value_counts(sort=False) if reason == NO_TILE else {"": len(rows)} if len(rows) else {}
        words = (LEFT_OUT[reason].format(counted(count, "row"), name) for name, count in groups.items())
        notes += [f"{each}: no prediction" for each in words]
    if len(kept) == 0:
        reason = f"{table_name(frame)}: no row with a tile and a measurement; expected at least one"
        raise RefusedKernelError(range(len(frame)), reason)
    notes += _sums_notes(kept) if needs_tile else []
    kept.attrs = dict(frame.attrs)
    return kept, notes


def _sums_notes(frame: pd.DataFrame) -> list[str]:
    """On the rows whose fp8 sums nothing tells and whose family has one kind, and those with sums but no fp8."""
    unknown, fast = _sums_stay(frame), _flag(frame, "fast_accum")
    if "fast_accum" in frame:
        unknown = unknown & ~is_asked(frame["fast_accum"])
    name = "a_dtype" if "a_dtype" in frame else "in_dtype"
    if name in frame and (unknown | fast).any():
        codes, types, _ = _types(frame, name)
        bits = _looked_up([each.bits for each in types], codes)
        unknown, fast = unknown & (bits == 8), fast & (bits > 8)
    names = ", ".join(sorted(sums_stay()))
    summed = f"{counted(unknown.sum(), 'row')} of {names}: fast_accum is 1, as of all its kernels"
    idle = f"{counted(fast.sum(), 'row')}: fast_accum has no effect on operands of more than 8 bits"
    return [sentence for sentence, rows in ((summed, unknown), (idle, fast)) if rows.any()]


def dispositions(frame: pd.DataFrame, *, needs_tile: bool) -> tuple[pd.DataFrame, pd.Series]:
    """The table with the splits that grids tell, and of every row 'ok' or why no model is compared with it.

    That is what a failed run left in its column `disposition`; two kernels in turn (`partner`); and, where
    the model needs a tile, of library kernels that they do not tell theirs or, neither by a column nor by
    their grid, in how many parts they split K.
    """
    disposition = pd.Series(OK, index=frame.index, name="disposition", dtype=object)
    if "disposition" in frame:
        given = frame["disposition"].fillna("").astype(str)
        # What could not run there may run here.
        disposition = given.mask(given == "", FAILED).replace(CANNOT_RUN, OK).astype(object)
    if "partner" in frame:
        disposition[(disposition == OK) & (frame["partner"].fillna("").astype(str) != "")] = IN_TURN
    if needs_tile and "kernel" in frame and "cta_m" in frame:
        untiled = frame["cta_m"].isna() | (frame["cta_m"] == "")
        frame = _with_splits_of_grids(frame)
        named = frame["kernel"].astype(str) != ""
        for rows, reason in ((untiled & named, NO_TILE), (_splits_unknown(frame), SPLIT_UNKNOWN)):
            if rows.any():
                disposition[(disposition == OK) & rows] = reason
    return frame, disposition


def measured_otherwise(frame: pd.DataFrame, regime: str | None) -> list[str]:
    """A sentence on each group of rows that are of another regime than `regime`.

    None is the regime of a model with a single one. An empty cell of the column `regime` is ignored.
    """
    if regime is None:
        return []
    notes, of = [], "measured in" if "runtime_us" in frame else "of"
    if "regime" in frame:
        codes, names = text_codes(frame["regime"])
        for name, rows in zip(names, np.bincount(codes, minlength=len(names)), strict=True):
            if rows and name and regime_name(name) != regime:
                notes.append(f"{counted(rows, 'row')} {of} the regime {name}: predicted in {regime}")
    if "settled" in frame and regime == GRAPH:
        settled = int((pd.to_numeric(frame["settled"], errors="coerce") > 0).sum())
        if settled:
            notes.append(
                f"{counted(settled, 'row')} measured at a settled clock: predicted at a rested one; "
                "regime sustained predicts such"
            )
    return notes


def _splits_unknown(frame: pd.DataFrame) -> pd.Series:
    """Mask of library kernels that split K by their name, without a column for the number of parts."""
    if "kernel_name" not in frame or "split_k" not in frame:
        return pd.Series(False, index=frame.index)
    parts = pd.to_numeric(frame["split_k"], errors="coerce")
    return parts.isna() & frame["kernel_name"].astype(str).str.contains("splitK")


def _with_splits_of_grids(frame: pd.DataFrame) -> pd.DataFrame:
    """Fill `split_k` of library kernels from their grid, which has a CTA for each tile and part of K.

    A persistent grid, as large as the card, is no whole multiple of the tiles.
    """
    unknown = _splits_unknown(frame)
    if "grid" not in frame or not unknown.any():
        return frame
    rows = frame[unknown]
    tiles = pd.Series(1.0, index=rows.index)
    for size, cta, cluster in (("m", "cta_m", "cluster_m"), ("n", "cta_n", "cluster_n")):
        extent, tile, ctas = (pd.to_numeric(rows[name], errors="coerce") for name in (size, cta, cluster))
        tiles *= np.ceil(extent / (tile * ctas)) * ctas
    parts = rows["grid"].map(_grid_ctas) / tiles
    splits = parts[(parts > 1.0) & (parts % 1.0 == 0.0)]
    result = frame.assign(split_k=frame["split_k"].astype(object))
    result.loc[splits.index, "split_k"] = splits.astype(int).astype(str)
    result.attrs = dict(frame.attrs)
    return result


def _grid_ctas(grid: object) -> float:
    """CTAs of a grid such as '(2, 65, 1)'; NaN of anything else."""
    extents = re.fullmatch(r"\((\d+), (\d+), (\d+)\)", str(grid))
    return math.prod(map(float, extents.groups())) if extents else math.nan


def gemms_of(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of GEMMs, without those of OTHER_WORK, which a note counts."""
    kinds = frame.get("disposition", pd.Series(OK, index=frame.index))
    counts = kinds[kinds.isin(OTHER_WORK)].value_counts(sort=False)
    rest = [
        f"{OTHER_WORK[str(kind)].format(counted(count, 'row'))}: left out" for kind, count in counts.items()
    ]
    found = frame[~kinds.isin(OTHER_WORK)]
    found.attrs["notes"] = [*frame.attrs.get("notes", ()), *rest]
    return found


def runtimes_us(frame: pd.DataFrame, *, blanks: bool = False) -> FloatArray | None:
    """The measured runtimes, or None where there are none; raises InputError for one that is not above 0.

    With `blanks` an empty cell is NaN.
    """
    if "runtime_us" not in frame:
        return None
    expected, blank = "a positive number of microseconds", np.nan if blanks else None
    values = checked(frame, "runtime_us", lambda us: np.isfinite(us) & (us > 0), expected, blank)
    return None if len(values) and np.isnan(values).all() else values


OF_ANOTHER_PREDICTION = ("ratio", "error_band", "limiters", "tflops")
"""Columns of an earlier answer that do not go with a new time."""


def with_prediction(
    frame: pd.DataFrame, prediction: BatchPrediction, disposition: pd.Series | None = None
) -> pd.DataFrame:
    """The table with the prediction's columns behind its own, and the ratio predicted / measured.

    `disposition`, where given, is of each row; the prediction is of those that are 'ok', and of the others
    nothing is known.
    """
    columns: dict[str, Any] = {}
    usable = frame if disposition is None else frame[(disposition == OK).to_numpy()]
    measured_us = runtimes_us(usable, blanks=True)
    if measured_us is not None:
        columns["runtime_us"] = measured_us
    columns["predicted_us"] = np.require(prediction.runtime_us, requirements="W")
    if measured_us is not None:
        columns["ratio"] = prediction.runtime_us / measured_us
    columns["limiter"] = pd.Categorical.from_codes(prediction.limiter, pd.Index(prediction.limiter_names))
    columns |= {f"phase_{name}_us": values for name, values in prediction.phases_us.items()}
    columns |= prediction.details
    columns |= {f"{level}_bytes": values for level, values in prediction.bytes_by_level.items()}
    if prediction.error_band is not None:
        columns["error_band"] = prediction.error_band
    added = pd.DataFrame(columns, copy=False)
    if disposition is not None:
        ok = (disposition == OK).to_numpy()
        added = added.reindex(np.where(ok, ok.cumsum() - 1, -1))
    added.index = frame.index
    if disposition is not None:
        added["disposition"] = disposition
    kept = frame.drop(columns=[name for name in (*added, *OF_ANOTHER_PREDICTION) if name in frame])
    result = pd.concat([kept, added], axis=1)
    result.attrs = dict(frame.attrs)
    return result


def require_columns(frame: pd.DataFrame, names: Sequence[str]) -> None:
    """Raise InputError naming the columns that the table lacks."""
    if missing := [name for name in names if name not in frame]:
        meant = [f" (its {word} are of {kind})" for word, kind in OTHER_KINDS.items() if word in frame]
        lacks = f"column{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}"
        raise InputError(
            f"{table_name(frame)}: {lacks} {'are' if len(missing) > 1 else 'is'} missing; expected "
            f"{', '.join(names)}" + "".join(meant[:1] if "m" in missing else [])
        )


def sizes(
    frame: pd.DataFrame, name: str, *, default: float | FloatArray | None = None, low: int = 1
) -> FloatArray:
    """A column of whole numbers from `low` on; `default` fills an absent column and empty cells."""
    if name not in frame:
        if default is None:
            raise InputError(f"{table_name(frame)}: column {name!r} is missing")
        return np.broadcast_to(np.asarray(default, dtype=np.float64), (len(frame),))
    whole = np.issubdtype(frame[name].to_numpy().dtype, np.integer)

    def good(values: FloatArray) -> BoolArray:
        inside: BoolArray = (values >= low) & (values <= MAX_SIZE)
        return inside if whole else inside & (values == np.floor(values))

    return checked(frame, name, good, f"a whole number of at least {low}", default)


def checked(
    frame: pd.DataFrame,
    name: str,
    good: Callable[[FloatArray], BoolArray],
    expected: str,
    default: float | FloatArray | None,
) -> FloatArray:
    """The numbers of a column; raises InputError for one that is not `good`. `default` fills empty cells."""
    values = _numbers(frame, name)
    bad = ~good(values)
    if default is not None and (empty := _empty_cells(frame[name])) is not None:
        values, bad = np.where(empty, default, values), bad & ~empty
    _reject(frame, name, bad, expected)
    return values


def _numbers(frame: pd.DataFrame, name: str) -> FloatArray:
    column = frame[name]
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _empty_cells(column: pd.Series) -> BoolArray | None:
    if pd.api.types.is_numeric_dtype(column.dtype):
        missing = column.isna().to_numpy()
    else:
        missing = (column.isna() | (column == "")).to_numpy(dtype=bool)
    return missing if missing.any() else None


def _operand_columns(frame: pd.DataFrame) -> dict[str, Any]:
    """Widths, scale bytes and rate class from the type columns, looked up once per distinct name."""
    names = [f"{operand}_dtype" if f"{operand}_dtype" in frame else "in_dtype" for operand in ("a", "b")]
    require_columns(frame, list(dict.fromkeys(names)))
    by_column = {name: _types(frame, name) for name in dict.fromkeys(names)}
    scale_codes, scales = _scales(frame)
    named_bits = _looked_up([scale_bits(scale) for scale in scales], scale_codes)
    columns: dict[str, Any] = {}
    for operand, name in zip(("a", "b"), names, strict=True):
        codes, types, own_scales = by_column[name]
        columns[f"{operand}_bits"] = _looked_up([float(each.bits) for each in types], codes)
        own_bits = _looked_up([scale_bits(scale) for scale in own_scales], codes)
        if any(scales):
            own_bits = np.where(named_bits > 0, named_bits, own_bits)
        columns[f"{operand}_scale_bits"] = own_bits
    (a_codes, a_types, _), (b_codes, b_types, _) = (by_column[name] for name in names)
    pair_codes, pairs = _pairs(a_codes, a_types, b_codes, b_types)
    _accepted(frame, names[1], pair_codes, pairs, lambda pair: dtypes.require_product(*pair))
    scaled = (columns["a_scale_bits"] > 0) & (columns["b_scale_bits"] > 0)
    kinds = [
        [dtypes.MATH_KINDS.index(dtypes.math_kind(*pair, scaled=flag)) for pair in pairs]
        for flag in (False, True)
    ]
    plain, with_scales = (_looked_up(each, pair_codes) for each in kinds)
    columns["math_kind"] = np.where(scaled, with_scales, plain) if scaled.any() else plain
    columns["multiplier_share"] = _looked_up([dtypes.multiplier_share(*pair) for pair in pairs], pair_codes)
    columns["acc_bits"] = _element_bits(frame, "acc_dtype", 32.0)
    columns["out_bits"] = _element_bits(frame, "out_dtype", np.maximum(columns["a_bits"], 16.0))
    return columns


def _looked_up(values: Sequence[Any], codes: IntArray) -> NDArray[Any]:
    """The value of each row's code; a single value for all rows is broadcast without copies."""
    known = np.array(values)
    return np.broadcast_to(known[0], codes.shape) if len(known) == 1 else known.take(codes)


def text_codes(column: pd.Series) -> tuple[IntArray, list[str]]:
    """Positions into the distinct texts of a column; an empty cell is the text ''."""
    if column.dtype == object:
        values = column.to_numpy()
        if isinstance(values[0], str) and bool((values == values[0]).all()):
            # One comparison per row detects a single text in a column faster than hashing.
            return np.zeros(len(column), dtype=np.int64), [values[0]]
    codes, names = pd.factorize(column, use_na_sentinel=False)
    return codes.astype(np.int64, copy=False), ["" if pd.isna(name) else str(name) for name in names]


def _accepted(
    frame: pd.DataFrame, name: str, codes: IntArray, given: Sequence[Any], parse: Callable[[Any], Any]
) -> list[Any]:
    """What `parse` makes of each of `given`, whose positions are the rows' codes; refuses as it does."""
    values = []
    for code, one in enumerate(given):
        try:
            values.append(parse(one))
        except InputError as error:
            raise _bad_value(frame, name, int(np.argmax(codes == code)), str(error)) from None
    return values


def _parsed(frame: pd.DataFrame, name: str, parse: Callable[[str], Any]) -> tuple[IntArray, list[Any]]:
    """Codes of a column's distinct texts, and what `parse` makes of each."""
    codes, texts = text_codes(frame[name])
    return codes, _accepted(frame, name, codes, texts, parse)


def _pairs(
    codes: IntArray, values: Sequence[Any], other_codes: IntArray, others: Sequence[Any] | FloatArray
) -> tuple[IntArray, list[tuple[Any, Any]]]:
    """Codes and values of two columns together: the pairs that a row has."""
    both, found = pd.factorize(codes * len(others) + other_codes)
    return both, [(values[at // len(others)], others[at % len(others)]) for at in found.tolist()]


def _types(
    frame: pd.DataFrame, name: str
) -> tuple[IntArray, list[dtypes.DataType], list[dtypes.BlockScale | None]]:
    codes, found = _parsed(frame, name, dtypes.operand_type)
    return codes, [element for element, _ in found], [scale for _, scale in found]


def _scales(frame: pd.DataFrame) -> tuple[IntArray, list[dtypes.BlockScale | None]]:
    """Codes and values of the scale-factor columns; no scale if the type or the vector size is empty."""
    vec_sizes = sizes(frame, "sf_vec_size", default=0.0, low=0)
    typed = is_asked(frame["sf_dtype"]) if "sf_dtype" in frame else np.zeros(len(frame), dtype=bool)
    _reject(frame, "sf_vec_size", (vec_sizes > 0) & ~typed, "0, or a type in sf_dtype beside it")
    if not typed.any():
        return np.zeros(len(frame), dtype=np.int64), [None]
    codes, asked = _pairs(*text_codes(frame["sf_dtype"]), *pd.factorize(vec_sizes))
    return codes, _accepted(frame, "sf_dtype", codes, asked, lambda scale: _scale(*scale))


def _scale(name: str, vec_size: float) -> dtypes.BlockScale | None:
    known = name not in ("", "none", "None")
    return dtypes.BlockScale(dtype=dtypes.element_type(name), vec_size=int(vec_size)) if known else None


def _element_bits(frame: pd.DataFrame, name: str, default: float | FloatArray) -> FloatArray:
    if name not in frame:
        return np.broadcast_to(np.asarray(default, dtype=np.float64), (len(frame),))
    codes, bits = _parsed(
        frame,
        name,
        lambda text: float(dtypes.require_number(dtypes.element_type(text)).bits) if text else np.nan,
    )
    values: FloatArray = _looked_up(bits, codes)
    return np.where(np.isnan(values), default, values) if np.isnan(bits).any() else values


def _choice(
    frame: pd.DataFrame,
    name: str,
    allowed: tuple[str, ...],
    default: int,
    names: Mapping[str, str] | None = None,
) -> IntArray:
    """Positions of a column's texts in `allowed`; an absent column or empty cell is `default`.

    `names` maps texts of the column to entries of `allowed`.
    """
    if name not in frame:
        return np.broadcast_to(np.int64(default), (len(frame),))
    known = names or {text: text for text in allowed}

    def position(text: str) -> int:
        if text and text not in known:
            raise InputError(f"{text!r}; expected one of {', '.join(known)}")
        return allowed.index(known[text]) if text else default

    codes, positions = _parsed(frame, name, position)
    return _looked_up(positions, codes)


def _flag(frame: pd.DataFrame, name: str, default: BoolArray | np.bool_ = np.False_) -> BoolArray:
    """A column of 0 and 1, or of false and true, as texts, numbers or flags; `default` where it is empty."""
    if name not in frame:
        return np.broadcast_to(default, (len(frame),))
    codes, flags = _parsed(frame, name, _flag_of)
    values = _looked_up(flags, codes)
    return np.where(values < 0, default, values > 0)


def _flag_of(text: str) -> int:
    if text.lower() not in _FLAGS:
        raise InputError(f"{text!r}; expected 0 or 1")
    return _FLAGS[text.lower()]


def _reject(frame: pd.DataFrame, name: str, bad: BoolArray, expected: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise _bad_value(frame, name, row, f"{frame[name].tolist()[row]!r}; expected {expected}")


def _bad_value(frame: pd.DataFrame, name: str, row: int, what: str) -> InputError:
    return InputError(f"{table_name(frame)}: {place_of(frame, row)}, column {name}: {what}")
