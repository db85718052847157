"""Where vLLM and SGLang look for tuned configurations, names of files, and what they take without one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gemm_model.core.gpu import GpuSpec
from gemm_model.errors import InputError, require_one_of
from gemm_model.serving.layers import DenseCell, MoeCell
from gemm_model.serving.problem import ServedProduct
from gemm_model.serving.tile_config import TileConfig

TOKEN_KEYS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Token counts of the frameworks' own files [tokens]; a call takes the nearest."""

VLLM, SGLANG = "vllm", "sglang"
VLLM_DENSE_FOLDER = "vllm/model_executor/layers/quantization/utils/configs"
SGLANG_DENSE_FOLDER = "sglang/kernels/ops/gemm/configs"
"""Where a framework keeps dense files inside its package: no variable names another place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework's layout of files; `triton` is the version that names SGLang's folder."""

    name: str
    versions: tuple[tuple[int, ...], tuple[int, ...]]
    """First and last release whose layout was read."""
    moe_folder: Callable[[str], Path]
    moe_name: Callable[[MoeCell, str], str]
    block_word: str
    """A block of scales as file names hold it."""
    variable: str
    dense_folder: str
    default: Callable[[ServedProduct, GpuSpec], TileConfig]
    apart: bool
    """Whether the second product has a file of its own."""

    def moe_path(self, cell: MoeCell, device: str, triton: str, *, down: bool = False) -> Path:
        """The file that the framework looks for, below the folder that its variable names."""
        name = self.moe_name(cell, device_word(device)) + ("_down" if down else "")
        return self.moe_folder(triton) / f"{name}.json"

    def dense_path(self, cell: DenseCell, device: str) -> Path:
        """The file of a dense layer; the user copies it into the package."""
        name = f"N={cell.n},K={cell.k},device_name={device_word(device)},dtype=fp8_w8a8"
        return Path("dense") / f"{name},block_shape={self.block_word}.json"

    def require_version(self, version: str) -> None:
        """Raise InputError for a release whose layout nobody has read."""
        first, last = (".".join(map(str, each)) for each in self.versions)
        if not self.versions[0] <= numbers_of("framework version", version) <= self.versions[1]:
            raise InputError(
                f"{self.name} {version}: the layout of its files is not known; expected {first} to {last}"
            )


def numbers_of(what: str, version: str) -> tuple[int, ...]:
    """The numbers of a version such as 0.5.23 or 0.5.18.post1, three of them."""
    found = re.fullmatch(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:[.+-]?[a-z]\w*)?", version)
    if found is None:
        raise InputError(f"{what} is {version[:40]!r}; expected numbers such as 0.33.0")
    return tuple(int(part or 0) for part in found.groups())


def device_word(device: str) -> str:
    """A card's name as file names hold it."""
    return re.sub(r"[\s/]+", "_", device)


def _vllm_name(cell: MoeCell, device: str) -> str:
    # vLLM gives every card of the H200 family (NVL, 141GB) the H200's files.
    family = "NVIDIA_H200" if "H200" in device.split("_") else device
    return f"E={cell.experts},N={cell.size},device_name={family}{cell.dtype_word}{_block(cell, '[128,128]')}"


def _sglang_name(cell: MoeCell, device: str) -> str:
    channel = ",per_channel_quant=True" if cell.scaling == "channel" else ""
    block = _block(cell, "[128, 128]")
    return f"E={cell.experts},N={cell.size},device_name={device}{cell.dtype_word}{block}{channel}"


def _block(cell: MoeCell, word: str) -> str:
    return f",block_shape={word}" if cell.scaling == "block128x128" else ""


def _sglang_folder(triton: str) -> Path:
    return Path("configs") / f"triton_{'_'.join(map(str, numbers_of('Triton version', triton)))}"


def vllm_default(problem: ServedProduct, _: GpuSpec) -> TileConfig:
    """What vLLM 0.33.0 takes without a file (`get_default_config`, `w8a8_triton_block_scaled_mm`)."""
    tokens = problem.tokens
    if problem.experts_total == 1:
        return TileConfig(64, 128, 128, 32, 4, 2)
    if problem.block_scaled:
        few = tokens <= 8
        stages = 4 if tokens <= 4 else 3
        return TileConfig(
            16 if tokens <= 64 else 64, 64 if few else 128, 128, 1 if tokens <= 16 else 32, 4, stages
        )
    cta_m = next((size for most, size in ((32, 16), (96, 32), (512, 64)) if tokens <= most), 128)
    return TileConfig(
        cta_m,
        64 if tokens <= 64 else 128,
        128 if problem.in_dtype == "e4m3" or tokens <= 64 else 64,
        16 if tokens // problem.experts > 128 else 1,
        4 if tokens <= 128 else 8,
        4 if tokens <= 32 else 3,
    )


SMALL_SMEM_BYTES = 128 * 1024
"""Shared memory of a CTA below which SGLang takes smaller defaults [B]; fp8; its 0.5.23."""


def sglang_default(problem: ServedProduct, gpu: GpuSpec) -> TileConfig:
    """What SGLang 0.5.23 takes without a file (`get_default_config`, `w8a8_block_fp8_matmul_triton`)."""
    few = problem.tokens <= problem.experts
    if problem.experts_total == 1:
        return TileConfig(64, 128, 128, 32, 4, 3)
    if problem.in_dtype != "e4m3":
        return TileConfig(16, 32, 64, 1) if few else TileConfig(64, 64, 32, 8)
    if problem.block_scaled:
        return TileConfig(64, 128, 128, 32, 4, 3)
    if gpu.smem_bytes_per_cta < SMALL_SMEM_BYTES:
        return TileConfig(32, 64, 256, 1, 4, 4) if few else TileConfig(64, 128, 256, 64, 4, 2)
    return TileConfig(64, 128, 128, 1, 4, 4) if few else TileConfig(128, 256, 128, 32, 8, 4)


FRAMEWORKS: Mapping[str, Framework] = {
    VLLM: Framework(
        name=VLLM,
        versions=((0, 10, 1), (0, 33, 0)),
        moe_folder=lambda _: Path(),
        moe_name=_vllm_name,
        block_word="[128,128]",
        variable="VLLM_TUNED_CONFIG_FOLDER",
        dense_folder=VLLM_DENSE_FOLDER,
        default=vllm_default,
        apart=False,
    ),
    SGLANG: Framework(
        name=SGLANG,
        versions=((0, 4, 9), (0, 5, 23)),
        moe_folder=_sglang_folder,
        moe_name=_sglang_name,
        block_word="[128, 128]",
        variable="SGLANG_MOE_CONFIG_DIR",
        dense_folder=SGLANG_DENSE_FOLDER,
        default=sglang_default,
        apart=True,
    ),
}


def framework_of(name: str) -> Framework:
    """The framework of that name; raises InputError for another."""
    require_one_of(f"framework is {name!r}", name, FRAMEWORKS)
    return FRAMEWORKS[name]
