"""From microbenchmarks to a GPU description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemm_model.core.errors import InputError

L2_FOOTPRINT_MIB = 24
"""A footprint that every L2 of interest holds even twice, as a split L2 does for shared lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number: what it is of, at which parameters, and its unit."""

    name: str
    value: float
    unit: str
    parameters: Mapping[str, Any]


def measurement_rows(measurements: Sequence[Measurement]) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of a table: name, parameters, value, unit."""
    parameters = sorted({name for each in measurements for name in each.parameters})
    rows = [
        {"name": each.name, **each.parameters, "value": float(f"{each.value:.6g}"), "unit": each.unit}
        for each in measurements
    ]
    return ["name", *parameters, "value", "unit"], rows


def base_gpu(card_name: str, known: Sequence[str]) -> str:
    """The packaged GPU whose name stands in the card's; InputError where there is none."""
    words = card_name.lower().replace("-", " ").split()
    fitting = [
        name
        for name in known
        if all(part in words for part in name.split("_") if any(letter.isdigit() for letter in part))
    ]
    if len(fitting) != 1:
        raise InputError(
            f"no packaged description fits {card_name!r}; give --base, one of {', '.join(known)}"
        )
    return fitting[0]


def gpu_description(
    base: Mapping[str, Any], card: Mapping[str, Any], measurements: Sequence[Measurement]
) -> dict[str, Any]:
    """The base description with every number that was measured in place of the base's.

    What a microbenchmark cannot see (bus width, register file, rates of types that were not run) stays the
    base's, with the base's origin.
    """
    described = dict(base)
    sources = dict(base.get("sources") or {})

    def put(field: str, value: Any, how: str) -> None:
        described[field] = value
        sources[field] = f"measured ({how})"

    put("sm_count", int(card["sm_count"]), "driver query")
    put("l2_bytes", int(card["l2_bytes"]), "driver query")
    put("power_cap_w", float(card["power_cap_w"]), "driver query")
    put("sm_clk_mhz", int(card["max_sm_mhz"]), "driver query: highest clock")
    put("dram_clk_mhz", int(card["mem_mhz"]), "driver query")
    clusters = _by(measurements, "resident_clusters", "cluster_size")
    if clusters:
        counts = {size: int(count) for size, count in sorted(clusters.items()) if count}
        put("resident_clusters", counts, "occupancy query, all shared memory taken")
    rates = dict(described["flop_per_clk_per_sm"])
    tensor = [each for each in measurements if each.name == "tensor_throughput"]
    for dtype, kind in (("bf16", "fp16"), ("e4m3", "fp8")):
        values = [each.value for each in tensor if each.parameters["dtype"] == dtype]
        if values:
            rates[kind] = round(max(values))
    if tensor:
        put("flop_per_clk_per_sm", rates, "warpgroup MMAs from shared memory: fp16 and fp8; others datasheet")
    for name, field, how in (
        ("smem_read_bandwidth", "smem_bytes_per_clk_per_sm", "16-byte reads"),
        ("l2_port_bandwidth", "l2_bytes_per_clk_per_sm", "bulk reads of one SM"),
    ):
        values = [each.value for each in measurements if each.name == name]
        if values:
            put(field, round(max(values), 1), how)
    resident = [
        each.value
        for each in measurements
        if each.name == "l2_read_bandwidth" and each.parameters["footprint_mib"] == L2_FOOTPRINT_MIB
    ]
    if resident:
        put("l2_gb_per_s", round(max(resident)), f"bulk reads of {L2_FOOTPRINT_MIB} MiB by all SMs")
    idle = [each.value for each in measurements if each.name == "power" and each.parameters["sms"] == 0]
    if idle:
        put("idle_power_w", round(idle[0], 1), "clocks up, nothing running")
    described["sources"] = sources
    return described


def _by(measurements: Sequence[Measurement], name: str, parameter: str) -> dict[int, float]:
    return {each.parameters[parameter]: each.value for each in measurements if each.name == name}
