"""The machine model: the levels of memory that operands pass, and the datapath that consumes them.

All rates are a single SM's, in bytes or FMAs per SM clock; what all SMs share is divided among them.
Source of the picture: Yifan Yang, 'Throughput matching' (a GEMM on CUDA cores from first principles).
"""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.core.dtypes import math_kind, operand_type, require_product
from gemm_model.core.gpu import GpuSpec
from gemm_model.errors import InputError, require_one_of

LEVELS = ("dram", "l2", "smem", "registers")
"""From the outermost to the level that feeds the datapath."""

DATAPATHS = ("cuda_cores", "tensor_cores")
REGISTER_BYTES = 4
SLICE_BYTES = 128
FLOP_PER_FMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Datapath:
    """The math units: their rate and the widths of their operands."""

    name: str
    dtype: str
    fma_per_clk: float
    a_bytes: float
    """Bytes of one element of A with its share of the scale factors; B likewise."""
    b_bytes: float
    element_bytes: float
    """Bytes of the wider operand's element alone."""
    acc_bytes: float = 4.0

    @property
    def slice_depth(self) -> int:
        """Elements of k in the 128 bytes that one row of a tile takes in shared memory (one swizzle atom)."""
        return int(SLICE_BYTES / self.element_bytes)

    @property
    def demand_bytes_per_clk(self) -> float:
        """Operand bytes that keep the units busy: one element of A and one of B for each FMA."""
        return self.fma_per_clk * (self.a_bytes + self.b_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One memory level as one SM sees it."""

    name: str
    capacity_bytes: float | None
    """Capacity for tiles [bytes]: of all SMs for L2, of one SM below it; None if it bounds nothing."""
    bytes_per_clk: float | None
    """One SM's share of the level's bandwidth while all SMs read; None if unknown."""
    port_bytes_per_clk: float | None = None
    """Ingress bandwidth of one SM, even if the others are silent; multicast does not raise it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A GPU's slice for one SM."""

    gpu: GpuSpec
    datapath: Datapath
    levels: tuple[Level, ...]

    def level(self, name: str) -> Level:
        """The level of that name; raises InputError for an unknown one."""
        for level in self.levels:
            if level.name == name:
                return level
        raise InputError(f"unknown level {name!r}; expected one of {', '.join(LEVELS)}")

    @property
    def dram_read_bytes_per_clk(self) -> float:
        """What DRAM delivers to one SM while all read, below its peak."""
        return self.gpu.dram_read_bytes_per_us / (self.gpu.sm_count * self.gpu.sm_clk_mhz)

    @property
    def peak_tflops(self) -> float:
        return FLOP_PER_FMA * self.datapath.fma_per_clk * self.gpu.sm_count * self.gpu.sm_clk_mhz / 1e6


def datapath_of(gpu: GpuSpec, name: str, dtype: str) -> Datapath:
    """The GPU's datapath for an operand type; raises InputError where it has none."""
    require_one_of(f"unknown datapath {name!r}", name, DATAPATHS)
    element, scale = operand_type(dtype)
    require_product(element, element)
    width = element.bytes_per_element + (scale.bytes_per_element if scale else 0.0)
    if name == "cuda_cores":
        if element.name != "fp32":
            raise InputError(f"the CUDA cores multiply fp32 here, not {dtype}; expected --dtype fp32")
        rate = gpu.cuda_core_fma_per_clk_per_sm
    else:
        kind = math_kind(element, element, scaled=scale is not None)
        # The tensor cores take fp32 data as tf32.
        kind = "tf32" if kind == "fp32" else kind
        flop = gpu.flop_per_clk_per_sm.get(kind)
        if flop is None or not gpu.multiplies(element):
            known = ", ".join(known for known in gpu.flop_per_clk_per_sm if known != "fp32")
            raise InputError(f"GPU {gpu.name} has no {dtype} tensor cores; expected one of {known}")
        rate = flop / FLOP_PER_FMA
    return Datapath(
        name=name,
        dtype=dtype,
        fma_per_clk=rate,
        a_bytes=width,
        b_bytes=width,
        element_bytes=element.bytes_per_element,
    )


def machine_of(gpu: GpuSpec, datapath: Datapath) -> Machine:
    """The per-SM picture of a GPU.

    The registers' rate equals the datapath's demand, because the register file is built to feed it.
    """
    per_sm_us = gpu.sm_count * gpu.sm_clk_mhz
    levels = (
        Level(name="dram", capacity_bytes=None, bytes_per_clk=gpu.dram_bytes_per_us / per_sm_us),
        Level(
            name="l2",
            capacity_bytes=gpu.l2_bytes,
            bytes_per_clk=gpu.l2_read_gb_per_s * 1e3 / per_sm_us,
            port_bytes_per_clk=gpu.l2_read_bytes_per_clk_per_sm,
        ),
        Level(
            name="smem",
            capacity_bytes=float(gpu.smem_bytes_per_cta),
            bytes_per_clk=gpu.smem_bytes_per_clk_per_sm,
        ),
        Level(
            name="registers",
            capacity_bytes=float(REGISTER_BYTES * gpu.registers_per_sm),
            bytes_per_clk=datapath.demand_bytes_per_clk,
        ),
    )
    return Machine(gpu=gpu, datapath=datapath, levels=levels)
