"""What a Triton kernel takes to start and for each k tile, apart from any matrix product of a table.

    python benchmarks/triton_start.py --output triton_start.csv

Needs a Hopper GPU, torch and Triton. The kernel multiplies the same two pairs of boxes again and again, which
stay in L2, and stores one tile. Its tensor descriptors come from the host, or it makes them itself, as
persistent Triton kernels do: the difference is what making them takes. The time of a further pair of boxes on
one SM, whose clock is the boost clock, is the time of a k tile that waits for nothing but its own signals and
the latency of L2. Single launches on a rested card, timed by events; medians.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from gemm_model.bench.device import TimingSettings
from gemm_model.bench.torch_device import TorchDevice
from gemm_model.bench.triton import allocate_workspace

BOXES = 2
"""Boxes of K that take turns."""
SETTINGS = TimingSettings(repeats=40, row_budget_ms=40.0)
ROW_BYTES = 128
TYPES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}


@triton.jit
def _multiplied(
    a, b, d, steps, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(steps):
        a_tile = a.load([row, (step % 2) * BLOCK_K])
        b_tile = b.load([0, (step % 2) * BLOCK_K])
        accumulator = tl.dot(a_tile, b_tile.T, accumulator)
    d.store([row, 0], accumulator.to(tl.bfloat16))


@triton.jit
def from_host(
    a, b, d, steps, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    _multiplied(a, b, d, steps, BLOCK_M, BLOCK_N, BLOCK_K)


@triton.jit
def made_here(
    a_ptr, b_ptr, d_ptr, rows, depth, steps,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    a = tl.make_tensor_descriptor(
        a_ptr, shape=[rows, depth], strides=[depth, 1], block_shape=[BLOCK_M, BLOCK_K]
    )
    b = tl.make_tensor_descriptor(
        b_ptr, shape=[BLOCK_N, depth], strides=[depth, 1], block_shape=[BLOCK_N, BLOCK_K]
    )
    d = tl.make_tensor_descriptor(
        d_ptr, shape=[rows, BLOCK_N], strides=[BLOCK_N, 1], block_shape=[BLOCK_M, BLOCK_N]
    )
    _multiplied(a, b, d, steps, BLOCK_M, BLOCK_N, BLOCK_K)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel that is timed."""

    in_dtype: str
    cta_m: int
    cta_n: int
    warps: int
    stages: int
    descriptors: str
    """'host', or 'device' where the kernel makes them."""

    def launch(self, programs: int, steps: int) -> Callable[[], Any]:
        cta_k = ROW_BYTES // TYPES[self.in_dtype].itemsize
        depth = BOXES * cta_k
        a = torch.randn(programs * self.cta_m, depth, device="cuda").to(TYPES[self.in_dtype])
        b = torch.randn(self.cta_n, depth, device="cuda").to(TYPES[self.in_dtype])
        d = torch.empty(programs * self.cta_m, self.cta_n, device="cuda", dtype=torch.bfloat16)
        tile = {"BLOCK_M": self.cta_m, "BLOCK_N": self.cta_n, "BLOCK_K": cta_k}
        options = {"num_warps": self.warps, "num_stages": self.stages}
        if self.descriptors == "device":
            return lambda: made_here[(programs,)](a, b, d, a.shape[0], depth, steps, **tile, **options)
        boxes = ([self.cta_m, cta_k], [self.cta_n, cta_k], [self.cta_m, self.cta_n])
        told = [TensorDescriptor.from_tensor(x, box) for x, box in zip((a, b, d), boxes, strict=True)]
        return lambda: from_host[(programs,)](*told, steps, **tile, **options)


START = [
    Kernel("bf16", cta_m, cta_n, warps, 3, descriptors)
    for cta_m, cta_n, warps in ((64, 32, 4), (128, 128, 8))
    for descriptors in ("host", "device")
]
STEPS = [
    Kernel(in_dtype, *tile, stages, "host")
    for in_dtype in TYPES
    for tile, stages in (
        ((64, 32, 4), 2), ((64, 32, 4), 3), ((64, 32, 4), 5), ((64, 64, 4), 3), ((64, 128, 4), 3),
        ((128, 64, 4), 3), ((128, 128, 4), 3), ((128, 128, 8), 3), ((64, 256, 8), 3), ((128, 256, 8), 3),
    )
]  # fmt: skip


def rows(device: TorchDevice) -> Iterator[dict[str, Any]]:
    """A row for each kernel, number of programs, number of steps and state of L2."""
    plans = [(kernel, programs, steps) for kernel in START for programs in (1, 132) for steps in (1, 2, 4)]
    plans += [(kernel, 1, steps) for kernel in STEPS for steps in (64, 512)]
    empty_kernel_us = device.describe()["empty_kernel_us"]
    for kernel, programs, steps in plans:
        try:
            launch = kernel.launch(programs, steps)
            launch()
        except Exception as error:  # Triton's passes fail with exceptions of many kinds
            print(f"{kernel}: {error}")
            continue
        for cold in (True, False) if steps < 64 else (False,):
            timing = device.time_burst([launch], SETTINGS, cold_l2=cold)
            yield {
                **{name: getattr(kernel, name) for name in Kernel.__slots__},
                "programs": programs,
                "steps": steps,
                "l2": "cold" if cold else "warm",
                "runtime_us": round(statistics.median(timing.samples_us), 4),
                "empty_kernel_us": empty_kernel_us,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="CSV of the times")
    args = parser.parse_args()
    triton.set_allocator(allocate_workspace)
    found = list(rows(TorchDevice()))
    with args.output.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    print(args.output.read_text())


if __name__ == "__main__":
    main()
