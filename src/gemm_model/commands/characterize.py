"""`gemm-model characterize`: measure this machine's GPU, twice, and write its description."""

from __future__ import annotations

import argparse
import sys

from gemm_model.bench import characterization
from gemm_model.commands import common
from gemm_model.config import gpu_names, load_config, load_gpu_mapping
from gemm_model.core.files import atomic_write, csv_rows
from gemm_model.core.gpu import gpu_from_mapping
from gemm_model.errors import importing
from gemm_model.report.document import Document


def run(args: argparse.Namespace) -> Document:
    import yaml

    common.check_outputs(args.output, args.table)
    # A misspelled override is refused before anything is measured.
    load_config(args.overrides, {"gpu": args.base} if args.base else {})
    with importing("characterize needs the package {name}: pip install 'gemm-model[bench]'"):
        from gemm_model.bench.microbench import Microbenchmarks
    benchmarks = Microbenchmarks()
    card = benchmarks.describe()
    known = {name: load_gpu_mapping(name) for name in gpu_names()}
    base = load_config(
        args.overrides, {"gpu": args.base or characterization.base_gpu(card["gpu_name"], known)}
    )["gpu"]
    packaged = gpu_from_mapping(base)
    characterization.require_agreement(packaged, card)
    benchmarks.require_alone()
    found = characterization.agreed(benchmarks.readings(), benchmarks.readings())
    described = characterization.gpu_description(base, card, found)
    measurements = list(benchmarks.all()) if args.table is not None else []
    heading = f"# {card['gpu_name']}, {card['gpu_uuid']}, driver {card['driver']}, CUDA {card['cuda']}.\n"
    text = yaml.safe_dump(described, sort_keys=False, width=110, default_flow_style=None)
    atomic_write(args.output, heading + text)
    if args.table is not None:
        atomic_write(args.table, csv_rows(measurements, characterization.columns_of(measurements)))
    for name in characterization.PROTOCOLS:
        before = getattr(packaged, name)
        shown = "not known" if before is None else f"{before:g}"
        print(f"{name} {described[name]:g} (base {shown})", file=sys.stderr)
    return Document(
        gpu=described["name"],
        result={
            "file": args.output,
            "numbers": {name: described[name] for name in characterization.PROTOCOLS},
        },
        text=lambda: f"{args.output}: {len(characterization.PROTOCOLS)} numbers, measured twice",
        apart=True,
    )
