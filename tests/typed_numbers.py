"""Empirical numbers typed by hand: round ones, so that what a test expects can be worked out beside them."""

from pathlib import Path

import numpy as np
import yaml

from gemm_model.kernel_model.calibration_file import Calibration, as_mapping
from gemm_model.kernel_model.forest import Forest
from gemm_model.kernel_model.residual import FEATURES, Residual, write_residual
from gemm_model.kernels.mechanisms import KernelNumbers, kernel_numbers, within_phases

VALUES = {
    "launch.kernel_us": 3.0,
    "launch.full_grid_us": 0.4,
    "launch.events_us": 1.5,
    "launch.clusters_us": 0.25,
    "device_descriptors.start_us": 2.5,
    "first_loads.ramp_us": 1.0,
    "first_loads.ramp_k_tiles": 8.0,
    "tensor.efficiency": 0.8,
    "tensor.issue_clk": 16.0,
    "narrow_mma.bound_columns": 72.0,
    "promotion.adds_per_clk": 64.0,
    "promotion.pingpong_adds_per_clk": 32.0,
    "promotion.drain_clk": 80.0,
    "round_trip.single_clk": 150.0,
    "spilling.register_clk": 10.0,
    "spilling.wait_clk": 100.0,
    "spilling.l2_bytes_per_byte": 2.0,
    "spilling.sharing": 0.5,
    "port.efficiency": 2.0,
    "line_crossing.line_cost": 0.25,
    "k_tail.row_clk": 3.0,
    "latency.load_clk": 400.0,
    "epilogue.store_bytes_per_clk": 16.0,
    "epilogue.store_clk": 48.0,
    "epilogue.tile_clk": 400.0,
    "epilogue.apart": 0.25,
    "l2.efficiency": 0.8,
    "l2.gpc_efficiency": 1.3,
    "coalescing.share": 0.8,
    "coalescing.loss_per_ms": 2.0,
    "overlap.port_l2_order": 2.0,
    "overlap.loads_dram_order": 8.0,
    "overlap.l2_dram_loss": 0.1,
    "misalignment.write_cost": 0.5,
    "edge_tiles.row_clk": 6.0,
    "edge_tiles.further_sm": 0.2,
    "edge_tiles.further_sm_in_step": 0.8,
    "edge_tiles.further_sm_of_pairs": 0.4,
    "edge_tiles.crowd_ctas": 1.0,
    "edge_tiles.whole_box_cost": 1.2,
    "edge_tiles.shared_cost": 0.6,
    "edge_tiles.two_way_cost": 1.5,
    "edge_tiles.gpc_share": 0.5,
    "edge_tiles.two_way_hidden": 0.6,
    "edge_tiles.fixed_rows": 8.0,
    "edge_tiles.out_of_step_rows": 80.0,
    "l2_capacity.share": 0.75,
    "whole_waves.quantized": 1.0,
    "dram.efficiency": 0.9,
    "clock.light_share": 0.92,
    "clock.droop_mma": 2.0,
    "clock.droop_memory": 1.0,
    "clock.droop_us": 40.0,
    "chain.boundary_us": 1.5,
    "chain.cold_us": 0.25,
    "chain.cooperative_us": 0.5,
    "chain.gap_us": 0.8,
    "power.pj_per_flop": 1.0,
    "power.pj_per_l2_byte": 30.0,
    "power.pj_per_dram_byte": 80.0,
    "power.voltage_floor": 0.6,
    "split_k.second_kernel_us": 1.5,
    "split_k.turn_clk": 800.0,
    "split_k.bytes_per_clk": 16.0,
    "scale_factors.row_bytes": 64.0,
    "fused_epilogue.tangent_clk": 50.0,
    "fused_epilogue.sigmoid_clk": 80.0,
    "fused_epilogue.gate_clk": 10.0,
    "fused_epilogue.reduction_clk": 20.0,
    "fused_epilogue.alone": 1.25,
    "fused_epilogue.source_bytes_per_clk": 64.0,
    "fused_epilogue.source_clk": 500.0,
    "fused_epilogue.ring_share": 0.5,
    "fused_epilogue.vector_clk": 100.0,
    "scaled_outputs.scale_clk": 10.0,
    "slow_division.warp_clk": 200.0,
    "grouped.start_us": 0.5,
    "grouped.tile_clk": 200.0,
    "pointer_stores.output_clk": 100.0,
    "pointer_stores.spill_clk": 50.0,
    "pointer_stores.spilled_registers": 120.0,
    "software_scales.latency_clk": 400.0,
    "software_scales.miss_clk": 300.0,
    "software_scales.sums_clk": 4.0,
    "software_scales.columns_clk": 16.0,
}


def numbers(changes: dict[str, float] | None = None) -> KernelNumbers:
    """The typed numbers, some of them changed."""
    return kernel_numbers({**VALUES, **(changes or {})})


def calibration(**changes: object) -> Calibration:
    """A calibration of h200:quack with the typed numbers, alike for 16-bit and fp8 operands."""
    kinds = ("fp16", "fp8")
    arguments = {
        "gpu": "h200",
        "family": "quack",
        "architecture": "sm90",
        "numbers": {kind: numbers() for kind in kinds},
        "intervals": {kind: {"launch.kernel_us": 0.05} for kind in kinds},
        "sources": {},
        "error_band": {
            kind: {"tiny": 0.05, "memory_bound": 0.09, "few_waves": 0.06, "many_waves": 0.07, "split_k": 0.2}
            for kind in kinds
        },
        "fitted_to": {"tables": ["typed.csv"]},
        "within_phases": within_phases({"prologue_us": 0.5}),
    }
    return Calibration(**{**arguments, **changes})  # type: ignore[arg-type]


def calibration_file(path: Path, **changes: object) -> Path:
    """The same as a file of `gemm-model calibrate`."""
    path.write_text(yaml.safe_dump(as_mapping(calibration(**changes)), sort_keys=False))
    return path


def residual(of: Calibration | None = None, log_error: float = -0.05) -> Residual:
    """One tree that says of kernels with 256 columns that they are predicted too fast, or what is asked."""
    forest = Forest(
        features=len(FEATURES),
        split_feature=np.array([FEATURES.index("cta_n")], dtype=np.uint8),
        split_border=np.array([200.0], dtype=np.float32),
        tree_splits=np.array([[0]], dtype=np.uint16),
        leaves=np.array([[0, round(log_error * 1e5)]], dtype=np.int16),
    )
    known = of or calibration()
    return Residual(
        gpu="h200",
        fingerprint=known.fingerprint(),
        forests=dict.fromkeys(known.numbers, forest),
        error_band={kind: dict.fromkeys(bands, 0.0123) for kind, bands in known.error_band.items()},
    )


def calibration_with_residual(folder: Path) -> Path:
    """A calibration file with its residual beside it."""
    path = calibration_file(folder / "typed.yaml")
    write_residual(residual(), folder / "typed.residual.npz")
    return path
