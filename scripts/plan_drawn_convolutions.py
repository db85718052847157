"""The rows of `data/measurements/h200/conv_drawn`, `conv_networks_more`, `conv_networks_last`: cuDNN's picks.

    python scripts/plan_drawn_convolutions.py --output plans
    gemm-model benchmark --rows plans/conv_drawn.csv --output conv_drawn.csv

`conv_drawn` (fit) has layers of networks that no one published: widths, images, filters, strides and groups
are drawn. Of 24 published networks that no earlier table has, the seed deals twelve to `conv_networks_more`
(fit) and twelve to `conv_networks_last` (held out). No row is in an earlier table, none of `last` in another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from math import prod

from plan_convolution_measurements import (
    FURTHER_THAN,
    Layer,
    measured,
    network_rows,
    taking_turns,
)
from plan_library_measurements import write_plans

from gemm_model.bench.rows import Row
from gemm_model.core.conv import ConvProblem

SEED = 20261124
DRAWN_NETWORKS = 84
DRAWN_LAYERS = 8
"""Of a network."""
LARGEST_IMAGES = 4e8
"""Elements of all images, or all outputs, of a drawn layer."""
EARLIER = (*FURTHER_THAN, "conv_networks_further", "conv_networks_fresh", "conv_few", "conv_few_unseen")

NETWORKS: Mapping[str, tuple[Layer | str, ...]] = {
    "RepVGG-A0 and B1": (
        (3, 224, 48, 3, 2), (48, 112, 48, 3, 2), (48, 56, 48, 3, 1), (96, 28, 96, 3, 1), (192, 14, 192, 3, 1),
        (192, 14, 1280, 3, 2), (128, 112, 128, 3, 2), (512, 14, 2048, 3, 2),
    ),
    "DnCNN, VDSR and SRCNN": (
        (64, 180, 64, 3, 1), (64, 40, 64, 3, 1), (64, 33, 32, 5, 1), (3, 33, 64, 9, 1), (64, 41, 64, 3, 1),
    ),
    "CycleGAN": (
        (3, 256, 64, 7, 1), (64, 256, 128, 3, 2), (128, 128, 256, 3, 2), (256, 64, 256, 3, 1),
        (64, 128, 128, 4, 2, "pad=1"), (128, 64, 256, 4, 2, "pad=1"), (256, 32, 512, 4, 1, "pad=1"),
    ),
    "DCGAN": (
        (3, 64, 64, 4, 2, "pad=1"), (64, 32, 128, 4, 2, "pad=1"), (128, 16, 256, 4, 2, "pad=1"),
        (256, 8, 512, 4, 2, "pad=1"), (512, 4, 1024, 4, 1, "pad=0"),
    ),
    "OpenPose": (
        (128, 46, 128, 7, 1), (512, 46, 256, 3, 1), (256, 46, 128, 3, 1), (128, 46, 128, 3, 1),
        (184, 46, 128, 7, 1), (128, 46, 512, 3, 1),
    ),
    "PWC-Net": (
        (16, 192, 32, 3, 2), (32, 96, 64, 3, 2), (64, 48, 96, 3, 2), (96, 24, 128, 3, 2),
        (128, 12, 192, 3, 2),
        (128, 48, 128, 3, 1, "pad=4 dilation=4"), (128, 48, 96, 3, 1, "pad=8 dilation=8"), (96, 48, 64, 3, 1),
    ),
    "V-Net": (
        "d=64 h=64 w=64 c=16 k=16 t=5 r=5 s=5 pad=2", "d=32 h=32 w=32 c=32 k=32 t=5 r=5 s=5 pad=2",
        "d=16 h=16 w=16 c=64 k=64 t=5 r=5 s=5 pad=2", "d=8 h=8 w=8 c=128 k=128 t=5 r=5 s=5 pad=2",
        "d=64 h=64 w=64 c=16 k=32 t=2 r=2 s=2 stride=2", "d=16 h=16 w=16 c=64 k=128 t=2 r=2 s=2 stride=2",
    ),
    "S3D": (
        "d=16 h=56 w=56 c=64 k=192 t=1 r=3 s=3 pad=0x1x1", "d=16 h=56 w=56 c=192 k=192 t=3 r=1 s=1 pad=1x0x0",
        "d=16 h=28 w=28 c=128 k=192 t=1 r=3 s=3 pad=0x1x1",
        "d=16 h=28 w=28 c=192 k=192 t=3 r=1 s=1 pad=1x0x0",
        "d=8 h=14 w=14 c=160 k=320 t=1 r=3 s=3 pad=0x1x1", "d=8 h=14 w=14 c=320 k=320 t=3 r=1 s=1 pad=1x0x0",
    ),
    "YOLOv4": (
        (32, 608, 64, 3, 2), (64, 304, 128, 3, 2), (64, 152, 64, 3, 1), (128, 152, 256, 3, 2),
        (128, 76, 128, 3, 1), (256, 38, 256, 3, 1), (512, 19, 512, 3, 1), (512, 19, 1024, 3, 1),
    ),
    "YOLOv5-s": (
        (3, 640, 32, 6, 2, "pad=2"), (32, 320, 64, 3, 2), (32, 160, 32, 3, 1), (64, 160, 128, 3, 2),
        (64, 80, 64, 3, 1), (128, 80, 256, 3, 2), (128, 40, 128, 3, 1), (256, 40, 512, 3, 2),
        (256, 20, 256, 3, 1),
    ),
    "MPRNet": ((3, 256, 80, 3, 1), (80, 256, 80, 3, 1), (128, 128, 128, 3, 1), (176, 64, 176, 3, 1)),
    "ENet and ERFNet": (
        (3, 512, 16, 3, 2), (32, 64, 32, 3, 1, "pad=4 dilation=4"), (16, 128, 16, 3, 1),
        "c=64 h=128 w=128 k=64 r=3 s=1 pad=1x0", "c=64 h=128 w=128 k=64 r=1 s=3 pad=0x1",
        "c=128 h=64 w=64 k=128 r=3 s=1 pad=1x0", "c=128 h=64 w=64 k=128 r=1 s=3 pad=0x1",
        (64, 128, 128, 3, 2),
    ),
    "DPN-92": (
        (96, 56, 96, 3, 1, "groups=32"), (192, 28, 192, 3, 1, "groups=32"), (384, 14, 384, 3, 1, "groups=32"),
        (768, 7, 768, 3, 1, "groups=32"), (192, 56, 192, 3, 2, "groups=32"), (3, 224, 64, 7, 2),
    ),
    "RegNetX-800MF and Y-1.6GF": (
        (128, 28, 128, 3, 1, "groups=8"), (288, 14, 288, 3, 1, "groups=18"), (672, 7, 672, 3, 1, "groups=42"),
        (48, 56, 48, 3, 1, "groups=2"), (120, 28, 120, 3, 1, "groups=5"), (336, 14, 336, 3, 1, "groups=14"),
        (888, 7, 888, 3, 1, "groups=37"), (48, 56, 120, 1, 2),
    ),
    "RegNetX-6.4GF": (
        (168, 56, 168, 3, 1, "groups=3"), (392, 28, 392, 3, 1, "groups=7"), (784, 14, 784, 3, 1, "groups=14"),
        (1624, 7, 1624, 3, 1, "groups=29"), (392, 28, 784, 1, 2), (3, 224, 32, 3, 2),
    ),
    "ResNeXt-29 8x64d": (
        (3, 32, 64, 3, 1), (512, 32, 512, 3, 1, "groups=8"), (1024, 16, 1024, 3, 1, "groups=8"),
        (2048, 8, 2048, 3, 1, "groups=8"), (1024, 32, 1024, 3, 2, "groups=8"), (256, 32, 512, 1, 2),
    ),
    "ResNeXt-101 32x8d": (
        (256, 56, 256, 3, 1, "groups=32"), (512, 28, 512, 3, 1, "groups=16"),
        (1024, 14, 1024, 3, 1, "groups=16"), (2048, 7, 2048, 3, 1, "groups=32"),
        (512, 56, 512, 3, 2, "groups=32"), (512, 56, 1024, 1, 2),
    ),
    "ConvNeXt-L and PVTv2": (
        (192, 56, 384, 2, 2, "pad=0"), (384, 28, 768, 2, 2, "pad=0"), (768, 14, 1536, 2, 2, "pad=0"),
        (64, 56, 128, 3, 2), (128, 28, 320, 3, 2), (320, 14, 512, 3, 2), (3, 224, 96, 7, 4),
    ),
    "ADM": (
        (192, 64, 192, 3, 1), (192, 32, 384, 3, 1), (384, 32, 384, 3, 1), (576, 16, 576, 3, 1),
        (768, 8, 768, 3, 1), (1344, 16, 576, 3, 1), (960, 32, 384, 3, 1), (576, 64, 192, 3, 1),
    ),
    "Mask R-CNN": (
        (256, 200, 256, 3, 1), (256, 160, 256, 3, 1), (256, 14, 256, 3, 1), (1024, 50, 512, 3, 1),
        (512, 50, 512, 3, 2), (2048, 25, 256, 1, 2),
    ),
    "Fast style transfer": (
        (3, 256, 32, 9, 1), (32, 256, 64, 3, 2), (64, 128, 128, 3, 2), (128, 64, 128, 3, 1),
        (128, 128, 64, 3, 1),
        (64, 256, 32, 3, 1),
    ),
    "Video VAE": (
        "d=8 h=64 w=64 c=128 k=128 t=3 r=3 s=3 pad=1", "d=4 h=32 w=32 c=256 k=256 t=3 r=3 s=3 pad=1",
        "d=4 h=32 w=32 c=256 k=512 t=3 r=3 s=3 pad=1", "d=2 h=16 w=16 c=512 k=512 t=3 r=3 s=3 pad=1",
        "d=4 h=64 w=64 c=128 k=128 t=1 r=3 s=3 pad=0x1x1 stride=1x2x2",
        "d=4 h=32 w=32 c=16 k=512 t=3 r=3 s=3 pad=1",
    ),
    "HarDNet-68": (
        (3, 224, 32, 3, 2), (32, 112, 64, 3, 1), (64, 56, 16, 3, 1), (80, 56, 24, 3, 1), (40, 28, 24, 3, 1),
        (160, 14, 40, 3, 1), (256, 14, 64, 3, 1), (320, 7, 160, 3, 1),
    ),
    "SelecSLS and NASNet": (
        (32, 112, 64, 3, 2), (64, 56, 64, 3, 1), (144, 28, 144, 3, 2), (144, 28, 72, 3, 1),
        (304, 14, 304, 3, 2),
        (304, 14, 152, 3, 1), (416, 7, 1024, 3, 2),
    ),
}  # fmt: skip
"""Layers as published, some with another size of image."""


def drawn_layer(draw: random.Random) -> Layer | str:
    """A layer of a drawn stage of a network of drawn width; one in ten is a first layer."""
    width = 8 * round(2.0 ** draw.uniform(1.0, 4.3))
    stage = draw.randrange(5)
    extent = max(round(2.0 ** draw.uniform(5.0, 8.3) / 2**stage), 4)
    stride = draw.choice((1, 1, 1, 2))
    size = draw.choice((3, 3, 3, 3, 3, 3, 5, 7, 2, 1))
    if draw.random() < 0.1:
        return (draw.choice((1, 3, 3, 4, 6, 12)), 4 * extent, width, draw.choice((3, 3, 5, 7)), stride)
    channels = width << stage
    filters = draw.choice((channels, channels, 2 * channels, max(channels // 2, 8), 8 * draw.randint(2, 64)))
    if draw.random() < 0.15:
        of_a_group = 8 * draw.choice((1, 2, 3, 4, 6, 7, 8, 8, 8, 12, 14, 16, 16, 16, 24, 29))
        groups = max(channels // of_a_group, 2)
        return (groups * of_a_group, extent, groups * of_a_group, 3, stride, f"groups={groups}")
    if draw.random() < 0.1:
        depth, taps = draw.choice((4, 8, 16)), draw.choice((1, 3, 3))
        side = draw.choice((1, 3, 3))
        small = f"d={depth} h={extent} w={extent} c={channels} k={filters}"
        return f"{small} t={taps} r={side} s={side} pad={taps // 2}x{side // 2}x{side // 2} stride={stride}"
    if draw.random() < 0.05:
        long = draw.choice((3, 5, 7))
        return f"c={channels} h={extent} w={extent} k={filters} r={long} s=1 pad={long // 2}x0"
    if size < 3:
        return (channels, extent, filters, size, 2, "pad=0")
    if draw.random() < 0.05:
        dilation = draw.choice((2, 4))
        return (channels, extent, filters, 3, 1, f"pad={dilation} dilation={dilation}")
    return (channels, extent, filters, size, stride)


def elements(conv: ConvProblem) -> tuple[int, int]:
    """Of an image and its output."""
    return prod(conv.size) * conv.channels, prod(conv.output_size) * conv.filters


def drawn(seed: int) -> Iterator[Row]:
    for number in range(DRAWN_NETWORKS):
        draw = random.Random(seed + number)
        layers = tuple(drawn_layer(draw) for _ in range(DRAWN_LAYERS))
        for item in network_rows(layers, measured(EARLIER), draw):
            conv = item.problem.conv
            if conv is not None and conv.images * max(elements(conv)) <= LARGEST_IMAGES:
                yield item


def plans() -> dict[str, list[Row]]:
    dealt = random.Random(SEED).sample(sorted(NETWORKS), len(NETWORKS))
    more, last = taking_turns("more", {name: NETWORKS[name] for name in dealt}, EARLIER, SEED + 1).values()
    known = {item.problem.conv for item in (*more, *last)}
    rows = dict.fromkeys(drawn(SEED + 1 + len(NETWORKS)))
    return {
        "conv_networks_more": more,
        "conv_networks_last": last,
        "conv_drawn": [item for item in rows if item.problem.conv not in known],
    }


if __name__ == "__main__":
    write_plans(__doc__, plans)
