"""The grammar of cuBLAS kernel names.

cuBLAS is column-major: for our row-major D[m, n] it computes D^T, so the first extent of a name runs along
our n and the second along our m. Three generations of names are read:

    nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT    tile, k tile x stages, cluster, raster, options, layouts
    sm90_xmma_gemm_..._tilesize128x128x64_cgasize1x2x1_stage4_warpgroupsize2x1x1_...
    ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn, cutlass_80_tensorop_..._128x128_64x4_tn_align8
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from gemm_model.core.gpu import WHOLE_COPY_BYTES
from gemm_model.errors import InputError

NVJET = re.compile(
    r"nvjet_(?:sm\d+_)?[a-z0-9]+_(?P<tile>\d+x\d+)_(?P<ring>\d+x\d+)_(?P<cluster>\d+x\d+)"
    r"_(?P<options>(?:\w+_)?[hv](?:_\w+)?)_(?P<layouts>[NT]{3,4})\b"
)
XMMA = re.compile(
    r"(?P<arch>sm\d+)_xmma_gemm_(?P<types>\w+?)_tilesize(?P<tile>\d+x\d+)x(?P<cta_k>\d+)(?P<options>\w*)"
)
STAGED = re.compile(
    r"(?:(?P<arch>ampere|turing|volta|cutlass_\d+)_)\w*?gemm\w*?_(?P<tile>\d+x\d+)(?:_ldg\d+\w*?_stages)?"
    r"_(?P<ring>\d+x\d+)_(?P<layouts>[nt]{2})(?![a-z])"
)
SGEMM = re.compile(
    r"sgemm_(?P<tile>\d+x\d+)(?:x8|_8x(?P<cutlass>\d))?(?:_sliced\dx\d)?_[ntNT]{2}"
    r"|_tilesize(?P<along_m>\d+x\d+)x8_stage(?P<stages>\d+)_warpsize(?P<warps>\dx\d)x1_ffma"
)
"""Kernels of fp32 on CUDA cores, with k tiles of 8: `ampere_sgemm_128x64_tn`, `cutlass_80_simt_sgemm_256x128_8x4_nn_
align1`, and `sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_...`, which names the
extent along our m first (grids of published profiles: sitar-lab/NeuSight)."""
SGEMM_WARPS, SGEMM_OUTPUTS = 8, {False: 64, True: 8}
"""Most warps of a CTA [warps], and outputs of a thread by whether an extent is 32 [1]; the others of these kernels;
block sizes in the same profiles."""
OLDER = re.compile(r"(?:ampere|turing|volta|cutlass_[78]\d|sm[78]\d_xmma)_(?:.*_align(?P<elements>[124])\b)?")
"""Kernels for cards before Hopper, and how many elements their threads copy at once where that is not 16 bytes."""
RASTERS = {"h": "along_m", "v": "along_n"}
"""Horizontal walks along the columns of D^T (our rows, m), vertical along its rows (our n)."""


def parse_cublas_name(name: str) -> dict[str, Any]:
    """The columns of a benchmark table that a kernel's name (plain or mangled) fills, with extents along our D.

    No name gives the number of parts of a split K. Raises InputError if the grammar does not match.
    """
    for pattern, read in ((NVJET, _nvjet), (XMMA, _xmma), (STAGED, _staged)):
        found = pattern.search(name)
        if found and not SGEMM.search(name):
            return read(found)
    raise InputError(f"no tile is known from the cuBLAS kernel name {name[:120]!r}")


def copied_bytes(name: str, bits: int) -> float | None:
    """Bytes that each thread copies at once, in a kernel for cards before Hopper; None for other kernels.

    `bits` is the size of an element.
    """
    if not (found := OLDER.search(name)):
        return None
    return WHOLE_COPY_BYTES if found["elements"] is None else int(found["elements"]) * bits / 8.0


def parse_sgemm_name(name: str) -> dict[str, Any]:
    """Tile, warp's tile (`mma_m` x `mma_n`), k tile and stages of a kernel of CUDA cores; {} for any other name."""
    found = SGEMM.search(name)
    if found is None:
        return {}
    extents = tuple(map(int, (found["tile"] or found["along_m"]).split("x")))
    cta_m, cta_n = extents[::-1] if found["tile"] else extents
    most = cta_m * cta_n // (32 * SGEMM_OUTPUTS[min(extents) == 32])
    warps = prod(map(int, found["warps"].split("x"))) if found["warps"] else min(SGEMM_WARPS, most)
    outputs = cta_m * cta_n // warps
    mma_n = min(cta_n, 1 << (outputs.bit_length() // 2))
    stages = int(found["stages"] or found["cutlass"] or 2)
    return {
        "cta_m": cta_m,
        "cta_n": cta_n,
        "mma_m": outputs // mma_n,
        "mma_n": mma_n,
        "cta_k": 8,
        "stages": stages,
    }


def _cells(
    tile: str, ring: str, cluster: str = "1x1", schedule: str = "", raster: str = "", *, split: bool = False
) -> dict[str, Any]:
    """The columns of a kernel of D^T; `ring` is the k tile and the stages, 0 where the name has none."""
    (cta_n, cta_m), (cta_k, stages), (cluster_n, cluster_m) = (
        map(int, text.split("x")) for text in (tile, ring, cluster)
    )
    return {
        **{"cta_m": cta_m, "cta_n": cta_n, "mma_m": cta_m, "mma_n": cta_n},
        **{"cluster_m": cluster_m, "cluster_n": cluster_n, "cta_k": cta_k or "", "stages": stages or ""},
        **{"schedule": schedule, "raster": raster, "scheduler": "split_k" if split else "static"},
    }


def _nvjet(found: re.Match[str]) -> dict[str, Any]:
    options = found["options"].split("_")
    cooperative = "coopA" in options or "coopB" in options
    return _cells(
        *(found["tile"], found["ring"], found["cluster"]),
        schedule="2cta" if "2cta" in options else "cooperative" if cooperative else "pingpong",
        raster=next(RASTERS[option] for option in options if option in RASTERS),
        split="splitK" in options,
    )


def _xmma(found: re.Match[str]) -> dict[str, Any]:
    options = found["options"]
    cluster = re.search(r"_cgasize(\d+x\d+)x1", options)
    stages = re.search(r"_stage(\d+)", options)
    groups = re.search(r"_warpgroupsize(\d+)x(\d+)x1", options)
    cooperative = groups is not None and int(groups[1]) * int(groups[2]) > 1
    return _cells(
        found["tile"],
        f"{found['cta_k']}x{stages[1] if stages else 0}",
        cluster[1] if cluster else "1x1",
        schedule="cooperative" if cooperative else "",
        split="splitK" in options,
    )


def _staged(found: re.Match[str]) -> dict[str, Any]:
    return _cells(found["tile"], found["ring"])


def cells_of_names(names: Sequence[str]) -> dict[str, Any]:
    """Table cells of a call that launched kernels of these names: from the first name with a tile.

    A call that splits K launches a reduction afterwards. If no name is known, `detail` says so.
    """
    remark = "the call launched no kernel"
    for name in names:
        try:
            return parse_cublas_name(name)
        except InputError as error:
            remark = str(error)
    return {"detail": remark}
