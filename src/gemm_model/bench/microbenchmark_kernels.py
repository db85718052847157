"""CUDA sources of the microbenchmarks. Every kernel writes what it measured, so that none is left out."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template

FOLDER = Path(__file__).with_name("microbenchmarks")


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
