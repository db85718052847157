"""The one context that every formula of a kernel's time takes: problem, kernel, card and launch."""

from __future__ import annotations

from gemm_model.config.mechanisms import KernelNumbers
from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Values
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.records import formula_record
from gemm_model.kernel_model.launch_context import COLD, REGIMES, LaunchContext
from gemm_model.kernel_model.tile_schedule import TileSchedule, TileWaves, tile_schedule
from gemm_model.kernels.family import KernelFamily
from gemm_model.kernels.feasibility import Resources, resources_of


@formula_record
class Launched:
    """Problem and kernels; numbers, or arrays of equal length."""

    batch: GemmBatch
    family: KernelFamily
    rate: Values
    """Peak FLOP per clock of one SM."""
    flop: Values
    resources: Resources
    schedule: TileWaves


@formula_record
class Geometry(Launched):
    """What a kernel's time needs of the problem and the kernel alone; a fit computes it once."""

    schedule: TileSchedule


def geometry_of(
    batch: GemmBatch, rate: Values, gpu: GpuSpec, family: KernelFamily, resources: Resources | None = None
) -> Geometry:
    """The geometry of each row of a family's kernels; `resources` are taken where they are known."""
    if resources is None:
        resources = resources_of(batch, gpu, family)
    schedule = tile_schedule(batch, resources, family.tile_order)
    return Geometry(batch, family, rate, batch.flop, resources, schedule)


@formula_record
class KernelWaves(Launched):
    """A kernel on a card as far as the order of its tiles does not matter."""

    gpu: GpuSpec
    numbers: KernelNumbers
    around: LaunchContext
    """What lies before and after the launch."""
    l2: str
    """What L2 holds at the start; one of L2_STATES."""

    @property
    def cluster_size(self) -> Values:
        return self.batch.cluster_m * self.batch.cluster_n

    @property
    def ctas(self) -> Values:
        """CTAs that run at once."""
        return self.schedule.resident * self.cluster_size


@formula_record
class Kernel(KernelWaves):
    """One kernel, or a table of kernels of one family, on a card."""

    schedule: TileSchedule


def kernel_on(
    geometry: Geometry, gpu: GpuSpec, numbers: KernelNumbers, *, regime: str = "burst", l2: str = COLD
) -> Kernel:
    """The context of a geometry in a regime (one of REGIMES), with L2 in a state (one of L2_STATES)."""
    of_problem = geometry.batch, geometry.family, geometry.rate, geometry.flop, geometry.resources
    return Kernel(*of_problem, geometry.schedule, gpu, numbers, REGIMES[regime], l2)
