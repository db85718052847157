"""`gemm-model list`: what there is, by the names that options take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from gemm_model.commands import common
from gemm_model.config import gpu_names
from gemm_model.config.options import packaged_options
from gemm_model.core.dtypes import ALIASES, BLOCK_SCALED_TYPES, ELEMENT_TYPES, operand_type
from gemm_model.core.gpu import load_gpu
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError
from gemm_model.kernel_model.calibration_file import calibration_names
from gemm_model.kernels.registry import families
from gemm_model.models import DEFAULT_MODEL, models
from gemm_model.report.document import Document


def run(args: argparse.Namespace) -> Document:
    common.no_overrides(args)
    common.check_document(args)
    if args.what is None:
        names = {what: ", ".join(str(row["name"]) for row in of()) for what, of in LISTS.items()}
        rows: list[dict[str, Any]] = [{"list": what, "names": found} for what, found in names.items()]
    else:
        rows = LISTS[args.what]()
    return Document(result={"what": args.what}, rows=rows)


def _gpus() -> list[dict[str, Any]]:
    rows = []
    for gpu in map(load_gpu, gpu_names()):
        types = ", ".join(name for name, found in ELEMENT_TYPES.items() if gpu.multiplies(found))
        numbers = ("name", "architecture", "sm_count", "sm_clk_mhz", "dram_gb_per_s")
        validated = "yes" if gpu.validated else "no"
        rows.append({name: getattr(gpu, name) for name in numbers} | {"types": types, "validated": validated})
    return rows


def _models() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "default": "yes" if name == DEFAULT_MODEL else "no",
            "options": ", ".join(packaged_options(name)),
        }
        for name in models()
    ]


def _families() -> list[dict[str, Any]]:
    by_gpu = {name: families(load_gpu(name)) for name in gpu_names()}
    return [
        {"name": family, "gpus": ", ".join(name for name, known in by_gpu.items() if family in known)}
        for family in families()
    ]


def _types() -> list[dict[str, Any]]:
    also = {name: ", ".join(alias for alias, of in ALIASES.items() if of == name) for name in ELEMENT_TYPES}
    for name, (element, scale, vector) in BLOCK_SCALED_TYPES.items():
        also[name] = f"{element}, one {scale} scale for {vector}"
    return [
        {
            "name": name,
            "bits": operand_type(name)[0].bits,
            "rate_class": _rate_class(name),
            "also": others or None,
        }
        for name, others in also.items()
    ]


def _rate_class(name: str) -> str | None:
    """The rate class of a product of two operands of a type; None where no MMA multiplies such."""
    try:
        return GemmProblem.of(1, 1, 1, name).math_kind
    except InputError:
        return None


LISTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "gpus": _gpus,
    "models": _models,
    "families": _families,
    "types": _types,
    "calibrations": lambda: [{"name": name} for name in calibration_names()],
}
