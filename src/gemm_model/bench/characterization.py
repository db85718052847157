"""From microbenchmarks to a GPU description: measured twice, compared, and checked against the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from gemm_model.config import read_toml
from gemm_model.config.numbers import room_numbers
from gemm_model.core.gpu import GpuSpec, gpu_from_mapping
from gemm_model.errors import InputError

Measurement = Mapping[str, Any]
"""One measured number: `name`, its parameters, `value` and `unit`."""


def measured(name: str, value: float, unit: str, **parameters: Any) -> Measurement:
    return {"name": name, **parameters, "value": float(f"{value:.6g}"), "unit": unit}


def columns_of(measurements: Sequence[Measurement]) -> list[str]:
    """Columns of their table: name, parameters, value, unit."""
    parameters = {name for each in measurements for name in each} - {"name", "value", "unit"}
    return ["name", *sorted(parameters), "value", "unit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a quantity is measured, and the largest difference of two readings on an undisturbed card."""

    how: str
    tolerance: float
    digits: int = 4


PROTOCOLS = {field: Protocol(**found) for field, found in read_toml("protocols").items()}
"""The numbers that `characterize` measures, by field of the description; `docs/gpus.md` has the protocols."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Results of one pass over the microbenchmarks."""

    numbers: Mapping[str, float]
    """By field of `PROTOCOLS`; quantities that this card's kernels cannot measure are left out."""
    tensor_flop_per_clk: Mapping[str, float]
    """Tensor FLOP per clock of one SM by kind of math; empty without a kernel for this card."""
    resident_clusters: Mapping[int, int]
    sm_mhz: float
    """The clock that the driver reports at the end of the pass."""
    throttle: str
    """Reasons for a lower clock at the end of the pass, or none."""


def base_gpu(card_name: str, known: Mapping[str, Mapping[str, Any]]) -> str:
    """The description among `known` that lists the card's name. Raises InputError unless exactly one does."""
    listing = [name for name, found in known.items() if card_name in found.get("device_names", ())]
    if len(listing) > 1:
        raise InputError(
            f"config/gpu/{listing[1]}.yaml: device_names holds {card_name!r}; expected a name that "
            f"{listing[0]}.yaml does not list"
        )
    if listing:
        return listing[0]
    raise InputError(f"no packaged description is of {card_name!r}; give --base, one of {', '.join(known)}")


def require_agreement(base: GpuSpec, card: Mapping[str, Any]) -> None:
    """Raise InputError if the driver contradicts the card's description."""
    major, minor = card["compute_capability"]
    driver = {
        "architecture": f"sm{major}{minor}",
        "sm_count": card["sm_count"],
        "dram_bus_bits": card["dram_bus_bits"],
        "smem_bytes_per_cta": card["smem_bytes_per_cta"],
    }
    for field, value in driver.items():
        described = getattr(base, field)
        if value is not None and value != described:
            raise _contradiction(base, card, field, value, described)
    l2_bytes = float(card["l2_bytes"])
    share = room_numbers("bench").known_l2_share
    if not base.l2_bytes / share <= l2_bytes <= base.l2_bytes * share:
        raise _contradiction(base, card, "l2_bytes", round(l2_bytes), round(base.l2_bytes))


def _contradiction(
    base: GpuSpec, card: Mapping[str, Any], field: str, driver: object, described: object
) -> InputError:
    return InputError(
        f"{card['gpu_name']}: the driver says {field} {driver}, description {base.name} says {described}; "
        f"choose another --base or set gpu.{field}={driver}"
    )


def agreed(first: Readings, second: Readings) -> Readings:
    """The mean of two passes. Raises InputError if they differ by more than an undisturbed card's."""
    for name, protocol in PROTOCOLS.items():
        if (name in first.numbers) != (name in second.numbers):
            raise InputError(f"{name} could be measured in one of two passes only; {_AGAIN}")
        if name in first.numbers:
            _require_close(name, first.numbers[name], second.numbers[name], protocol.tolerance, first, second)
    for kind, rate in first.tensor_flop_per_clk.items():
        again = second.tensor_flop_per_clk[kind]
        _require_close(f"flop_per_clk_per_sm.{kind}", rate, again, 0.01, first, second)
    return Readings(
        numbers={name: mean((value, second.numbers[name])) for name, value in first.numbers.items()},
        tensor_flop_per_clk={
            kind: max(rate, second.tensor_flop_per_clk[kind])
            for kind, rate in first.tensor_flop_per_clk.items()
        },
        resident_clusters=first.resident_clusters,
        sm_mhz=second.sm_mhz,
        throttle=second.throttle,
    )


_AGAIN = "let the card rest, end what else runs on it, and run again"


def _require_close(
    name: str, one: float, two: float, tolerance: float, first: Readings, second: Readings
) -> None:
    if abs(one - two) <= tolerance * max(one, two):
        return
    raise InputError(
        f"{name} read {one:.4g}, then {two:.4g} (SM clock {first.sm_mhz:.0f}, then {second.sm_mhz:.0f} MHz; "
        f"throttled by: {second.throttle}); {_AGAIN}"
    )


def gpu_description(base: Mapping[str, Any], card: Mapping[str, Any], found: Readings) -> dict[str, Any]:
    """The base description with the measured numbers in it.

    Numbers that no microbenchmark sees (bus width, register file, rates of other types) stay the base's, with
    the base's source.
    """
    described = dict(base)
    sources = dict(base.get("sources") or {})

    def put(field: str, value: Any, how: str) -> None:
        described[field] = value
        sources[field] = f"measured ({how})"

    put("l2_bytes", int(card["l2_bytes"]), "driver query")
    put("power_cap_w", float(card["power_cap_w"]), "driver query")
    put("dram_clk_mhz", int(card["mem_mhz"]), "driver query")
    for name, value in found.numbers.items():
        put(name, float(f"{value:.{PROTOCOLS[name].digits}g}"), PROTOCOLS[name].how)
    if found.numbers["sm_clk_mhz"] >= room_numbers("bench").granted_clock_share * card["max_sm_mhz"]:
        put("sm_clk_mhz", int(card["max_sm_mhz"]), "driver query, and reached under a light load")
    if found.resident_clusters:
        put("resident_clusters", dict(found.resident_clusters), "occupancy query, all shared memory taken")
    if found.tensor_flop_per_clk:
        rates = dict(described["flop_per_clk_per_sm"])
        rates |= {kind: round(rate) for kind, rate in found.tensor_flop_per_clk.items()}
        kinds = " and ".join(found.tensor_flop_per_clk)
        put("flop_per_clk_per_sm", rates, f"warpgroup MMAs from shared memory: {kinds}; others the base's")
    described["sources"] = sources
    gpu_from_mapping(described)
    return described
