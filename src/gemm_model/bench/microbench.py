"""Microbenchmarks that measure the quantities of a GPU description.

Every CUDA kernel writes what it measured, so that none is left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from string import Template
from typing import Any

import torch

from gemm_model.bench.captured_graph import captured
from gemm_model.bench.characterization import Measurement, Readings, measured
from gemm_model.bench.cuda_program import CudaKernel, compile_to_cubin
from gemm_model.bench.torch_device import TorchDevice
from gemm_model.errors import InputError, MissingExtraError

FOLDER = Path(__file__).with_name("microbenchmarks")
MIB = 2**20
FIRST_WITH_BULK_COPIES = (9, 0)
CHUNK_BYTES = 16384
"""A bulk copy [B]; bandwidths; chosen."""
RING_BYTES = 8 * CHUNK_BYTES
"""Copies in flight on an SM [B]; bandwidths; chosen."""
FOOTPRINTS_MIB = (4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 100, 150, 200)
SHARERS = (1, 2, 4, 12, 33, 132)
STORED_MIB = 16
"""Buffer that all SMs store to [MiB]; L2's write bandwidth; chosen to fit L2."""
LATENCY_BYTES = (128, 1024, 4096, 16384, 32768)
CLUSTER_SIZES = (1, 2, 4, 8, 16)
MMA_N = (8, 16, 32, 64, 96, 128, 160, 192, 224, 256)
MMA_K = {"bf16": 16, "e4m3": 32}
MMA_STAGES = 4
"""Pairs of operand tiles that MMAs take in turn [1]; MMA rates; chosen."""
MMA_KINDS = {"fp16": "bf16", "fp8": "e4m3"}
"""Type that represents a kind of math."""
SAMPLES = 7
"""Launches whose median counts [1]; bandwidths and latencies; chosen."""
CHUNKS = 512
"""Bulk copies of an SM in a launch [1]; bandwidths; chosen."""
LOADS = 2000
"""Loads of a launch, each after the one before [1]; latencies; chosen."""
REST_S = 1.0
"""Idle time before a load [s]; clock and power; chosen."""
LOAD_S = 0.7
"""Length of a load before its clock and power are settled [s]; clock and power; chosen."""


class Microbenchmarks:
    """Runs on the first visible CUDA device; each method yields its measurements."""

    def __init__(self) -> None:
        self._device = TorchDevice()
        properties = torch.cuda.get_device_properties(0)
        self._capability = (properties.major, properties.minor)
        if self._capability < FIRST_WITH_BULK_COPIES:
            raise MissingExtraError(
                f"{properties.name} has no bulk copies, which the microbenchmarks use; expected compute "
                "capability 9.0 or later"
            )
        self._sms = properties.multi_processor_count
        self._smem_bytes = properties.shared_memory_per_block_optin
        self._clocks = torch.zeros(2 * 4 * self._sms, dtype=torch.int64, device="cuda")
        self._kernels: dict[str, CudaKernel] = {}
        self._sink = torch.zeros(32, dtype=torch.float32, device="cuda")
        self._buffer = torch.empty(2048 * MIB, dtype=torch.uint8, device="cuda").random_()

    def describe(self) -> dict[str, Any]:
        """The driver's description of the card."""
        return {**self._device.describe(), "smem_bytes_per_cta": self._smem_bytes}

    def require_alone(self) -> None:
        """Raises InputError where another process holds memory of the card."""
        processes = self._device.sensors.processes()
        if processes > 1:
            raise InputError(f"{processes - 1} other processes use this GPU; end them and run again")

    def readings(self) -> Readings:
        """One pass over the quantities of a GPU description."""
        time.sleep(REST_S)
        idle_w = self._device.sensors.read()["power_w"]
        port_bytes_per_clk = self._port_bytes_per_clk(1)
        clocks, nanoseconds = self._clocks[:2].tolist()
        numbers = {
            "sm_clk_mhz": 1e3 * clocks / nanoseconds,
            "dram_read_gb_per_s": self._dram_read_gb_per_s(),
            "dram_latency_ns": self._latency(128, twice=False)[1],
            "l2_read_gb_per_s": self._l2_read_gb_per_s(),
            "l2_read_bytes_per_clk_per_sm": port_bytes_per_clk,
            "l2_read_bytes_per_clk_of_eight": self._port_bytes_per_clk(8, cluster_size=8),
            "l2_write_gb_per_s": self._store_gb_per_s(STORED_MIB),
            "l2_write_bytes_per_clk_per_sm": self._store_bytes_per_clk(),
            "l2_latency_clk": self._latency(128, twice=True)[0],
            "smem_bytes_per_clk_per_sm": self._smem_bytes_per_clk(),
            "graph_launch_us": (within_graph_us := self._graph_launch_us()),
            "event_pair_us": max(self._device.empty_kernel_us() - within_graph_us, 0.0),
            "idle_power_w": idle_w,
        }
        tensor: dict[str, float] = {}
        if self._capability[0] == 9:
            tensor = {kind: self._tensor_flop_per_clk(dtype, 256, 2) for kind, dtype in MMA_KINDS.items()}
            numbers["mma_clk_share"] = min(self._mma_clk_mhz() / numbers["sm_clk_mhz"], 1.0)
        sensors = self._device.sensors.read()
        return Readings(
            numbers=numbers,
            tensor_flop_per_clk=tensor,
            resident_clusters={size: count for size, count in self._clusters().items() if count},
            sm_mhz=sensors["sm_mhz"],
            throttle=sensors["throttle"],
        )

    def all(self) -> Iterator[Measurement]:
        """All measurements, including those outside a description: by footprint, by bytes, by MMA, under
        load.
        """
        parts = (
            *(self.launch_overhead, self.resident_clusters, self.dram_bandwidth, self.l2_bandwidth),
            *(self.l2_port, self.load_latency, self.store_bandwidth, self.smem_bandwidth),
            *(self.tensor_throughput, self.clock_and_power),
        )
        return chain.from_iterable(part() for part in parts)

    def launch_overhead(self) -> Iterator[Measurement]:
        """Event pairs around nothing and around an empty kernel; empty kernels back to back in a graph."""
        kernel = self._kernel("empty")
        nothing = self._median_us(lambda: None, 51)
        empty = self._median_us(lambda: kernel.launch(1, 32, (), stream=_stream()), 51)
        yield measured("event_pair", nothing, "us", around="nothing")
        yield measured("event_pair", empty, "us", around="empty kernel")
        yield measured("launch_interval", self._graph_launch_us(), "us", within="graph")

    def _graph_launch_us(self) -> float:
        kernel = self._kernel("empty")
        count = 1000
        graph = captured([lambda: kernel.launch(1, 32, (), stream=_stream())] * count)
        return self._median_us(graph.replay, SAMPLES) / count

    def resident_clusters(self) -> Iterator[Measurement]:
        """Clusters at once when each CTA takes all shared memory of an SM."""
        for size, count in self._clusters().items():
            yield measured("resident_clusters", count, "clusters", cluster_size=size)

    def _clusters(self) -> dict[int, int]:
        kernel = self._kernel("empty")
        return {size: kernel.resident_clusters(size, 128, self._smem_bytes) for size in CLUSTER_SIZES}

    def dram_bandwidth(self) -> Iterator[Measurement]:
        """Reading and copying buffers far larger than L2."""
        yield measured("dram_read_bandwidth", self._dram_read_gb_per_s(), "GB/s")
        half = self._buffer.numel() // 2
        copy_us = self._median_us(lambda: self._buffer[:half].copy_(self._buffer[half:]), SAMPLES)
        yield measured("dram_copy_bandwidth", 2 * half / copy_us / 1e3, "GB/s", counting="both ways")
        write_us = self._median_us(lambda: self._buffer.zero_(), SAMPLES)
        yield measured("dram_write_bandwidth", 2 * half / write_us / 1e3, "GB/s")
        self._buffer.random_()

    def _dram_read_gb_per_s(self) -> float:
        """Each SM reads its own part of the buffer, once."""
        region = self._buffer.numel() // self._sms // CHUNK_BYTES * CHUNK_BYTES
        return self._bulk_read_gb_per_s(region, self._sms, region // CHUNK_BYTES)

    def _l2_read_gb_per_s(self) -> float:
        """All SMs read the same quarter of L2 over and over, each from its own starting point."""
        quarter = torch.cuda.get_device_properties(0).L2_cache_size // 4 // CHUNK_BYTES * CHUNK_BYTES
        return self._bulk_read_gb_per_s(quarter, 1, CHUNKS)

    def l2_bandwidth(self) -> Iterator[Measurement]:
        """All SMs read a footprint over and over, in groups that read the same bytes."""
        for sharers in (count for count in SHARERS if self._sms % count == 0):
            regions = self._sms // sharers
            for footprint in FOOTPRINTS_MIB:
                region = footprint * MIB // regions // CHUNK_BYTES * CHUNK_BYTES
                if region == 0:
                    continue
                rate = self._bulk_read_gb_per_s(region, regions, CHUNKS)
                yield measured("l2_read_bandwidth", rate, "GB/s", footprint_mib=footprint, sharers=sharers)

    def l2_port(self) -> Iterator[Measurement]:
        """A few SMs read bytes that L2 holds: the ingress bandwidth of an SM while the others are silent."""
        for sms in (1, 2, 4, 8, 16, 33, 66):
            yield measured("l2_port_bandwidth", self._port_bytes_per_clk(sms), "B/clk/SM", sms=sms)

    def _port_bytes_per_clk(self, sms: int, cluster_size: int | None = None) -> float:
        """Ingress of each of `sms` SMs that read a MiB of their own repeatedly; a cluster lies in one GPC."""
        read = self._bulk("bulk_read", MIB, sms, CHUNKS, 0, cluster_size=cluster_size)
        self._median_us(lambda: read(sms), SAMPLES)
        return CHUNKS * CHUNK_BYTES / self._median_clocks(sms)

    def load_latency(self) -> Iterator[Measurement]:
        """One bulk copy at a time into shared memory, of fresh bytes or of bytes just read."""
        for level, twice in (("dram", False), ("l2", True)):
            for size in LATENCY_BYTES:
                clocks, nanoseconds = self._latency(size, twice=twice)
                yield measured("load_latency", nanoseconds, "ns", level=level, bytes=size)
                yield measured("load_latency", clocks, "clk", level=level, bytes=size)

    def _latency(self, size: int, *, twice: bool) -> tuple[float, float]:
        """Clocks and nanoseconds of one bulk load; with `twice`, of bytes that were just loaded."""
        stride = self._buffer.numel() // LOADS // CHUNK_BYTES * CHUNK_BYTES
        self._bulk("bulk_latency", size, stride, LOADS, int(twice))(1)
        clocks, nanoseconds = self._clocks[:2].tolist()
        return clocks / LOADS, nanoseconds / LOADS

    def store_bandwidth(self) -> Iterator[Measurement]:
        """Bulk stores of tiles from shared memory, as an epilogue does, into L2 or through it."""
        for footprint in (STORED_MIB, 32, 64, 256, 1024):
            yield measured(
                "store_bandwidth", self._store_gb_per_s(footprint), "GB/s", footprint_mib=footprint
            )
        self._buffer.random_()

    def _store_gb_per_s(self, footprint_mib: int) -> float:
        microseconds = self._bulk_store_us(footprint_mib * MIB, self._sms)
        return float(CHUNKS * CHUNK_BYTES * self._sms / microseconds / 1e3)

    def _store_bytes_per_clk(self) -> float:
        """Store rate of one SM that writes a MiB repeatedly."""
        self._bulk_store_us(MIB, 1)
        return CHUNKS * CHUNK_BYTES / self._median_clocks(1)

    def _bulk_store_us(self, footprint_bytes: int, sms: int) -> float:
        store = self._bulk("bulk_store", footprint_bytes // CHUNK_BYTES, CHUNKS)
        return self._median_us(lambda: store(sms), SAMPLES)

    def smem_bandwidth(self) -> Iterator[Measurement]:
        """16-byte reads of 512 threads."""
        yield measured("smem_read_bandwidth", self._smem_bytes_per_clk(), "B/clk/SM")

    def _smem_bytes_per_clk(self) -> float:
        kernel = self._kernel("smem_read")
        rounds, threads = 2000, 512
        arguments = (rounds, self._clocks, self._sink)
        kernel.launch(self._sms, threads, arguments, smem_bytes=64 * 1024, stream=_stream())
        return rounds * 8 * threads * 16 / self._median_clocks(self._sms)

    def tensor_throughput(self) -> Iterator[Measurement]:
        """Warpgroup MMAs with operands in shared memory, by N, type and warpgroups of an SM."""
        if self._capability[0] != 9:
            return
        for dtype, k in MMA_K.items():
            for n in MMA_N:
                for warpgroups in (1, 2):
                    rate = self._tensor_flop_per_clk(dtype, n, warpgroups)
                    shape: dict[str, Any] = {"dtype": dtype, "mma_n": n, "warpgroups": warpgroups}
                    yield measured("tensor_throughput", rate, "FLOP/clk/SM", **shape)
                    yield measured("mma_interval", 2 * 64 * n * k / rate, "clk", **shape)

    def _tensor_flop_per_clk(self, dtype: str, n: int, warpgroups: int) -> float:
        rounds = 1000
        self._launch_mma(dtype, n, warpgroups, rounds, self._sms)
        flop = 2.0 * 64 * n * MMA_K[dtype] * 4 * rounds * warpgroups
        return flop / self._median_clocks(self._sms)

    def _mma_clk_mhz(self) -> float:
        """In-kernel clock under MMAs on a quarter of the SMs, which no power cap limits: the types' mean."""
        sms = self._sms // 4
        return statistics.mean(self._settled(partial(self._mma_load, dtype), sms)[0] for dtype in MMA_K)

    def _mma_load(self, dtype: str, sms: int) -> None:
        self._launch_mma(dtype, 256, 2, 4000, sms)

    def clock_and_power(self) -> Iterator[Measurement]:
        """Settled SM clock and power under a tensor-bound and a DRAM-bound load on part or all of the SMs."""
        region = self._buffer.numel() // self._sms // CHUNK_BYTES * CHUNK_BYTES
        loads: list[tuple[str, Callable[[int], None]]] = []
        if self._capability[0] == 9:
            loads += [(f"tensor {dtype}", partial(self._mma_load, dtype)) for dtype in MMA_K]
        loads.append(("dram read", self._bulk("bulk_read", region, self._sms, region // CHUNK_BYTES, 0)))
        idle = self._device.sensors.read()
        yield measured("power", idle["power_w"], "W", load="little", sms=0)
        for name, launch in loads:
            for part in (4, 2, 1):
                sms = self._sms // part
                clock_mhz, sensors = self._settled(launch, sms)
                yield measured("sm_clock_under_load", clock_mhz, "MHz", load=name, sms=sms, by="SM counters")
                yield measured("sm_clock_under_load", sensors["sm_mhz"], "MHz", load=name, sms=sms, by="NVML")
                yield measured("power", sensors["power_w"], "W", load=name, sms=sms)

    def _settled(self, launch: Callable[[int], None], sms: int) -> tuple[float, dict[str, Any]]:
        """In-kernel clock and sensors at the end of LOAD_S of this load, launches queued ahead."""
        deadline = time.monotonic() + LOAD_S
        sensors: dict[str, Any] = {}
        while time.monotonic() < deadline:
            for _ in range(8):
                launch(sms)
            sensors = self._device.sensors.read()
            torch.cuda.synchronize()
        pairs = self._clocks[: 2 * sms].view(-1, 2).tolist()
        return 1e3 * statistics.median(clocks / nanoseconds for clocks, nanoseconds in pairs), sensors

    def _bulk_read_gb_per_s(self, region: int, regions: int, chunks: int) -> float:
        """Bandwidth of all SMs, each reading `chunks` chunks from `regions` regions in turn."""
        read = self._bulk("bulk_read", region, regions, chunks, int(regions < self._sms))
        moved = float(chunks * CHUNK_BYTES * self._sms)
        return moved / self._median_us(lambda: read(self._sms), SAMPLES) / 1e3

    def _bulk(self, name: str, *numbers: int, cluster_size: int | None = None) -> Callable[[int], None]:
        """A launch of a kernel of bulk copies, one warp on each of so many SMs."""
        kernel = self._kernel(name)
        options: dict[str, Any] = {"smem_bytes": RING_BYTES, "cluster_size": cluster_size}
        arguments = (self._buffer, *numbers, self._clocks)
        return lambda sms: kernel.launch(sms, 32, arguments, stream=_stream(), **options)

    def _launch_mma(self, dtype: str, n: int, warpgroups: int, rounds: int, sms: int) -> None:
        stage_bytes = 128 * (64 * warpgroups + n)
        self._kernel("wgmma", wgmma_source(n, dtype)).launch(
            sms,
            128 * warpgroups,
            (rounds, MMA_STAGES, self._clocks, self._sink),
            smem_bytes=MMA_STAGES * stage_bytes + 1024,
            stream=_stream(),
        )

    def _median_us(self, launch: Callable[[], object], count: int) -> float:
        """Median over `count` rested launches, caches as the launch before left them."""
        launch()
        return self._device.median_rested_us(launch, count)

    def _median_clocks(self, ctas: int) -> float:
        torch.cuda.synchronize()
        return float(statistics.median(self._clocks[: 2 * ctas].view(-1, 2)[:, 0].tolist()))

    def _kernel(self, name: str, source: str = "") -> CudaKernel:
        source = source or source_of(name)
        if source not in self._kernels:
            cubin = compile_to_cubin(source, self._capability)
            self._kernels[source] = CudaKernel(cubin, f"{name}_kernel".encode())
        return self._kernels[source]


@cache
def source_of(name: str) -> str:
    """The source of the kernel `{name}_kernel`, behind what all of them use."""
    return "\n" + "\n".join((FOLDER / file).read_text() for file in ("common.cuh", f"{name}.cu"))


@cache
def wgmma_source(n: int, dtype: str) -> str:
    """A loop of m64nNkK warpgroup MMAs with both operands in 128-byte-swizzled shared memory.

    `dtype` is 'bf16' (K of 16) or 'e4m3' (K of 32). Four MMAs, one 128-byte row of K, make a commit group. At
    most two warpgroups run it, so that a thread may hold 128 accumulators.
    Random bits fill the operands: exponents are clipped so that sums stay finite.
    """
    registers = n // 2
    wide = dtype == "bf16"
    return Template(source_of("wgmma")).substitute(
        n=n,
        registers=registers,
        flag_place=registers + 1,
        operands=", ".join(f"%{index}" for index in range(registers)),
        outputs=", ".join(f'"+f"(sum[{index}])' for index in range(registers)),
        shape=f"m64n{n}k{16 if wide else 32}",
        types="f32.bf16.bf16" if wide else "f32.e4m3.e4m3",
        flags="1, 1, 0, 0" if wide else "1, 1",
        mask="0x3fff3fffu" if wide else "0xbfbfbfbfu",
    )


def _stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)
