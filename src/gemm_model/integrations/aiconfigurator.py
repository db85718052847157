"""A system for aiconfigurator: what it plans deployments with on a card that nobody measured.

Written for aiconfigurator 0.12, whose `--systems-paths` takes a folder with `NAME.yaml` and, under
`data/NAME/FAMILY/BACKEND/VERSION/`, tables of a family of operators (latency [ms]) with `collection_meta.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from gemm_model.choice.selection import Ranker
from gemm_model.choice.table_ranking import rank_table
from gemm_model.config import CONFIG_DIR, read_yaml_mapping
from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import FloatArray
from gemm_model.core.dtypes import element_type
from gemm_model.core.files import atomic_path, atomic_write
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.regimes import GRAPH, SUSTAINED
from gemm_model.errors import InputError, MissingExtraError, extra_needed
from gemm_model.kernels.registry import TORCH_FAMILY
from gemm_model.tables.table import predict_frame

Tables = Mapping[str, pd.DataFrame]
SYSTEM = read_yaml_mapping(CONFIG_DIR / "aiconfigurator.yaml", "a system")
GEMM_TYPES: Mapping[str, str] = SYSTEM["gemm_types"]
"""aiconfigurator's names of operand types, and ours."""
CALLS, TIMED = 72, 36
LAYERS = 6
"""Calls of a product that its collectors run without a rest, the last of them, which they time, and layers that take
turns [1]: 12 and 6 rounds; collector/vllm/collect_gemm.py and collector/helper.py of ai-dynamo/aiconfigurator."""


def system_of(gpu: GpuSpec, memory_gib: float, gpus_of_node: int, link_gb_per_s: float) -> dict[str, Any]:
    """The card as aiconfigurator's `systems/NAME.yaml` describes it; rates in FLOP/s and bytes/s."""
    rates = {name: kind for name, kind in SYSTEM["tensor_rates"].items() if kind in gpu.flop_per_clk_per_sm}
    return {
        "data_dir": f"data/{gpu.name}",
        "gpu": {
            "mem_bw": round(gpu.dram_gb_per_s * 1e9),
            "mem_bw_empirical_scaling_factor": round(gpu.dram_read_gb_per_s / gpu.dram_gb_per_s, 3),
            "mem_empirical_constant_latency": 3e-6,
            "mem_capacity": round(memory_gib * 2**30),
            **{name: round(gpu.flop_per_us(kind) * 1e6) for name, kind in rates.items()},
            **({} if gpu.power_cap_w is None else {"power": gpu.power_cap_w}),
            "sm_version": int(gpu.architecture.removeprefix("sm")),
        },
        "node": {"num_gpus_per_node": gpus_of_node, "intra_node_bw": round(link_gb_per_s * 1e9)}
        | SYSTEM["node"],
        "misc": SYSTEM["misc"],
    }


def gemm_table(spec: GpuSpec, sizes: pd.DataFrame, advance: Callable[[int], None]) -> pd.DataFrame:
    """`gemm_perf.parquet`: latency [ms] of the library's call for each type and size (columns m, n, k)."""
    parts = []
    for name, dtype in GEMM_TYPES.items():
        asked = sizes.assign(in_dtype=dtype, out_dtype="bf16")
        try:
            own_us = _calls_us(spec, asked, GRAPH, advance)
        except InputError:  # a card without tensor cores of this type
            continue
        share = fallen_share(own_us)
        late = share > 0.0
        if late.any():
            late_us = _calls_us(spec, asked[late], SUSTAINED, lambda _: None)
            own_us[late] += share[late] * (late_us - own_us[late])
        columns = {size: sizes[size].to_numpy(np.int64) for size in ("m", "n", "k")}
        if dtype != "bf16":  # a kernel quantizes the activations first: it reads 16 bits of each, writes 8
            quantized_us = 3.0 * columns["m"] * columns["k"] / spec.dram_read_bytes_per_us
            own_us += room_numbers("serving").graph_kernel_us + quantized_us
        parts.append(pd.DataFrame({"gemm_dtype": name, **columns, "latency": own_us / 1e3}))
    if not parts:
        raise InputError(f"{spec.name}: no kernel of {TORCH_FAMILY} for {', '.join(GEMM_TYPES)}")
    return pd.concat(parts, ignore_index=True)


def fallen_share(rested_us: FloatArray, calls: Any = CALLS, timed: Any = TIMED) -> FloatArray:
    """Share of a collector's calls that it times after the clock fell under the power cap [1], by their time [us]."""
    late_calls = calls - room_numbers("serving").rested_us / rested_us
    return np.asarray(np.clip(late_calls / timed, 0.0, 1.0))


def _calls_us(gpu: GpuSpec, sizes: pd.DataFrame, regime: str, advance: Callable[[int], None]) -> FloatArray:
    """The library's call of each size [us]: layers share A and take turns, so that L2 keeps what it can of weights."""
    ranker = Ranker(gpu, family=TORCH_FAMILY, options={"regime": regime, "l2": "written"})
    ranked = rank_table(sizes, ranker, advance, own=True)
    m, n, k = (sizes[size].to_numpy(np.int64) for size in "mnk")
    element_bytes = sizes["in_dtype"].map(lambda name: element_type(name).bits / 8.0)
    between_bytes = LAYERS * (element_bytes * n * k + 2.0 * m * n) + element_bytes * m * k
    found = predict_frame(ranked.assign(footprint_bytes=between_bytes), ranker.model)
    limiter = np.array(found.limiter_names)[found.limiter]
    return np.array(ranker.heuristic_choice.time_us(found.runtime_us, limiter), np.float64)


def grid(products: Iterable[tuple[int, int]] = ()) -> pd.DataFrame:
    """Every m with every n and k whose weights have at most 2^30 elements, and with n and k of `products`."""
    edges, widths = SYSTEM["edges"], SYSTEM["widths"]
    every_m = sorted({*SYSTEM["rows"], *edges, *(m + 1 for m in edges)})
    pairs = [(n, k) for n in widths for k in widths if n * k <= 2**30]
    rows = [(m, n, k) for n, k in dict.fromkeys([*pairs, *products]) for m in every_m]
    return pd.DataFrame(rows, columns=["m", "n", "k"])


def require_pyarrow() -> None:
    """Raises MissingExtraError where no table of aiconfigurator can be written."""
    if find_spec("pyarrow") is None:
        raise MissingExtraError(extra_needed("a table of aiconfigurator", "pyarrow", "fleet"))


def family_of_table(name: str) -> str:
    """The folder of a table: `attention` of `context_attention_perf`."""
    return name.removesuffix("_perf").rpartition("_")[2]


def write_system(
    folder: Path, gpu: GpuSpec, system: dict[str, Any], tables: Tables, backend: tuple[str, str]
) -> list[Path]:
    """Write a system and a serving engine's tables by name below `folder`, for `--systems-paths default,FOLDER`.

    `backend` is the engine's name and version. Returns the files.
    """
    engine, version = backend
    description = folder / f"{Path(system['data_dir']).name}.yaml"
    runtime = {"framework": engine, "version": version}
    meta = {"schema_version": 1, "provenance": "gemm-model, predicted", "runtime": runtime}
    device = (gpu.device_names or (gpu.name,))[0]
    labels = {"framework": engine.upper(), "version": version, "device": device}
    files = []
    for family in dict.fromkeys(family_of_table(name) for name in tables):
        place = folder / system["data_dir"] / family / engine / version
        names = [name for name in tables if family_of_table(name) == family]
        for name in names:
            files.append(place / f"{name}.parquet")
            columns = {**labels, "op_name": name.removesuffix("_perf"), "kernel_source": "gemm-model"}
            with atomic_path(files[-1]) as temporary:
                pd.DataFrame({**columns, **tables[name]}).to_parquet(temporary, index=False)
        files.append(place / "collection_meta.yaml")
        status = {"tables": {name: {"status": "complete"} for name in names}}
        atomic_write(files[-1], yaml.safe_dump({**meta, **status}, sort_keys=False))
    atomic_write(description, yaml.safe_dump(system, sort_keys=False))
    return [*files, description]
