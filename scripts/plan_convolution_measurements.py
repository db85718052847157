"""The rows of `data/measurements/h200/conv_networks`, `conv_beside` and their `_unseen`: cuDNN in networks.

    python scripts/plan_convolution_measurements.py --output plans
    gemm-model benchmark --rows plans/conv_networks.csv --output conv_networks.csv

Forward convolutions and both gradients of whole networks, most of their channels no multiples of 64. Networks
take turns: one for the fit, the next held out. Depthwise convolutions are left out, since their kernels
multiply no matrices. `conv_beside` are layers whose images cuDNN copies beside: channels that fill no row of
16 bytes, groups of more channels than a tile packs. `conv_networks_later` are twelve networks more, all held
out. Of 24 further ones, with their first layers and groups, the seed deals twelve to `conv_networks_further`
(fit) and twelve to `conv_networks_fresh` (held out). `conv_few` and `conv_few_unseen` are first layers and
depthwise ones. Every draw is seeded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain, product
from pathlib import Path

from plan_library_measurements import write_plans
from plan_problem_measurements import LARGEST_CONVOLUTION_FLOP, one_of_each, row

from gemm_model.bench.rows import Row
from gemm_model.core.conv import KINDS, ConvProblem
from gemm_model.core.problem import GemmProblem
from gemm_model.tables.table import read_table

SEED = 20261123
MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements" / "h200"
EARLIER = ("convolutions", "unseen_problems")
LATER_THAN = (*EARLIER, "conv_networks", "conv_networks_unseen")
FURTHER_THAN = (*LATER_THAN, "conv_networks_later", "conv_beside", "conv_beside_unseen")
ROWS_OF_A_NETWORK = 30
BATCHES = {2: (1, 4, 16, 64), 3: (1, 2, 4)}
"""Images, by dimensions."""
SHARE_OF_FP16 = 0.3

Layer = tuple[int, int, int, int, int] | tuple[int, int, int, int, int, str]
"""Channels, height and width, filters, filter size, stride; further words."""

NETWORKS: Mapping[str, tuple[Layer | str, ...]] = {
    "EfficientNetV2-S": (
        (24, 150, 24, 3, 1), (24, 150, 96, 3, 2), (48, 75, 192, 3, 1), (48, 75, 192, 3, 2),
        (64, 38, 256, 3, 1),
    ),
    "Inception-v3": (
        (3, 299, 32, 3, 2, "pad=0"), (32, 149, 32, 3, 1, "pad=0"), (48, 35, 64, 5, 1), (64, 35, 96, 3, 1),
        (96, 35, 96, 3, 1), (288, 35, 384, 3, 2, "pad=0"),
        "c=128 h=17 w=17 k=192 r=7 s=1 pad=3x0", "c=160 h=17 w=17 k=192 r=1 s=7 pad=0x3",
        "c=192 h=17 w=17 k=192 r=7 s=1 pad=3x0", (192, 17, 320, 3, 2, "pad=0"),
        "c=384 h=8 w=8 k=384 r=1 s=3 pad=0x1",
    ),
    "HRNet-W48": (
        (48, 56, 48, 3, 1), (96, 28, 96, 3, 1), (192, 14, 192, 3, 1), (384, 7, 384, 3, 1), (48, 56, 96, 3, 2),
        (96, 28, 192, 3, 2), (256, 56, 48, 3, 1),
    ),
    "YOLOv8-m": (
        (48, 320, 96, 3, 2), (48, 160, 48, 3, 1), (96, 160, 192, 3, 2), (96, 80, 96, 3, 1),
        (192, 80, 384, 3, 2),
        (192, 40, 192, 3, 1), (384, 40, 576, 3, 2), (288, 20, 288, 3, 1), (576, 20, 64, 3, 1),
    ),
    "nnU-Net 3-D": (
        "d=64 h=64 w=64 c=32 k=32 t=3 r=3 s=3 pad=1", "d=64 h=64 w=64 c=32 k=64 t=3 r=3 s=3 pad=1 stride=2",
        "d=32 h=32 w=32 c=64 k=128 t=3 r=3 s=3 pad=1 stride=2",
        "d=16 h=16 w=16 c=128 k=128 t=3 r=3 s=3 pad=1",
        "d=8 h=8 w=8 c=256 k=256 t=3 r=3 s=3 pad=1", "d=8 h=8 w=8 c=256 k=320 t=3 r=3 s=3 pad=1 stride=2",
        "d=4 h=4 w=4 c=320 k=320 t=3 r=3 s=3 pad=1",
    ),
    "R(2+1)D-18": (
        "d=16 h=56 w=56 c=64 k=144 t=1 r=3 s=3 pad=0x1x1", "d=16 h=56 w=56 c=144 k=64 t=3 r=1 s=1 pad=1x0x0",
        "d=8 h=28 w=28 c=128 k=288 t=1 r=3 s=3 pad=0x1x1", "d=8 h=28 w=28 c=288 k=128 t=3 r=1 s=1 pad=1x0x0",
        "d=4 h=14 w=14 c=256 k=576 t=1 r=3 s=3 pad=0x1x1", "d=4 h=14 w=14 c=576 k=256 t=3 r=1 s=1 pad=1x0x0",
        "d=16 h=56 w=56 c=64 k=232 t=1 r=3 s=3 pad=0x1x1 stride=1x2x2",
    ),
    "GoogLeNet": (
        (96, 28, 128, 3, 1), (16, 28, 32, 5, 1), (128, 28, 192, 3, 1), (32, 28, 96, 5, 1),
        (96, 14, 208, 3, 1),
        (112, 14, 224, 3, 1), (24, 14, 64, 5, 1), (144, 14, 288, 3, 1), (160, 14, 320, 3, 1),
        (160, 7, 320, 3, 1), (48, 7, 128, 5, 1),
    ),
    "ESRGAN": (
        (64, 128, 32, 3, 1), (96, 128, 32, 3, 1), (128, 128, 32, 3, 1), (160, 128, 32, 3, 1),
        (192, 128, 64, 3, 1), (64, 256, 64, 3, 1),
    ),
    "SDXL U-Net": (
        (320, 128, 320, 3, 1), (320, 128, 320, 3, 2), (320, 64, 640, 3, 1), (640, 64, 640, 3, 2),
        (960, 128, 320, 3, 1), (1920, 64, 640, 3, 1), (1280, 32, 1280, 3, 1), (960, 64, 640, 3, 1),
        (640, 32, 1280, 3, 1),
    ),
    "ResNeXt-50 32x4d": (
        (128, 56, 128, 3, 1, "groups=32"), (256, 28, 256, 3, 1, "groups=32"),
        (512, 14, 512, 3, 1, "groups=32"), (1024, 7, 1024, 3, 1, "groups=32"),
        (512, 28, 512, 3, 2, "groups=32"),
        (3, 224, 64, 7, 2),
    ),
    "RegNetX-3.2GF": (
        (96, 56, 96, 3, 1, "groups=2"), (192, 28, 192, 3, 1, "groups=4"), (432, 14, 432, 3, 1, "groups=9"),
        (1008, 7, 1008, 3, 1, "groups=21"), (192, 56, 192, 3, 2, "groups=4"), (192, 28, 432, 1, 2),
        (3, 224, 32, 3, 2),
    ),
    "ConvNeXt-B": (
        (128, 56, 256, 2, 2, "pad=0"), (256, 28, 512, 2, 2, "pad=0"), (512, 14, 1024, 2, 2, "pad=0"),
        (3, 224, 128, 4, 4, "pad=0"),
    ),
    "DenseNet-161": (
        (192, 56, 48, 3, 1), (192, 28, 48, 3, 1), (192, 14, 48, 3, 1), (192, 7, 48, 3, 1), (3, 224, 96, 7, 2),
    ),
    "HRNet-W40": (
        (40, 56, 40, 3, 1), (80, 28, 80, 3, 1), (160, 14, 160, 3, 1), (320, 7, 320, 3, 1), (40, 56, 80, 3, 2),
        (80, 28, 160, 3, 2), (160, 14, 320, 3, 2),
    ),
    "DeepLabv3": (
        (512, 33, 512, 3, 1, "pad=2 dilation=2"), (2048, 33, 256, 3, 1, "pad=12 dilation=12"),
        (2048, 33, 256, 3, 1, "pad=24 dilation=24"), (304, 129, 256, 3, 1), (256, 33, 256, 3, 1),
    ),
    "PSPNet and dilated DRN": (
        (256, 45, 256, 3, 1, "pad=2 dilation=2"), (512, 45, 512, 3, 1, "pad=4 dilation=4"),
        (4096, 45, 512, 3, 1), (1024, 23, 480, 3, 1), (128, 90, 128, 3, 1),
    ),
    "ResNet-D and Res2Net": (
        (32, 112, 32, 3, 1), (32, 112, 64, 3, 1), (26, 56, 26, 3, 1), (52, 28, 52, 3, 1),
        (104, 14, 104, 3, 1),
        (208, 7, 208, 3, 1), (256, 56, 512, 1, 2), (1024, 14, 2048, 1, 2),
    ),
    "YOLOX-l and CSPDarknet": (
        (12, 320, 64, 3, 1), (64, 320, 128, 3, 2), (128, 80, 128, 3, 1), (256, 80, 512, 3, 2),
        (256, 40, 256, 3, 1), (512, 40, 1024, 3, 2), (512, 20, 512, 3, 1),
    ),
    "SD VAE decoder": (
        (512, 64, 512, 3, 1), (512, 128, 512, 3, 1), (512, 128, 256, 3, 1), (256, 256, 256, 3, 1),
        (256, 256, 128, 3, 1), (128, 256, 128, 3, 1), (8, 64, 512, 3, 1), (128, 256, 8, 3, 1),
    ),
    "Small U-Net": (
        (24, 192, 24, 3, 1), (24, 96, 48, 3, 1), (48, 48, 96, 3, 1), (96, 24, 192, 3, 1),
        (192, 12, 384, 3, 1),
        (576, 24, 192, 3, 1), (288, 48, 96, 3, 1), (144, 96, 48, 3, 1),
    ),
    "NFNet and RegNetY-16GF": (
        (224, 56, 224, 3, 2, "groups=2"), (448, 28, 448, 3, 1, "groups=4"),
        (1232, 14, 1232, 3, 1, "groups=11"),
        (256, 24, 256, 3, 1, "groups=2"), (768, 12, 768, 3, 1, "groups=6"), (128, 96, 128, 3, 1),
    ),
    "MobileNetV4 and EfficientNet-Lite": (
        (32, 112, 32, 3, 2), (32, 56, 96, 3, 2), (96, 28, 192, 1, 2), (40, 28, 240, 3, 1),
        (80, 14, 480, 3, 1),
        (112, 14, 672, 3, 1), (160, 7, 960, 3, 1), (192, 7, 1152, 3, 1),
    ),
    "VGG and AlexNet": (
        (64, 224, 64, 3, 1), (256, 56, 256, 3, 1), (512, 28, 512, 3, 1),
        (64, 27, 192, 5, 1), (192, 13, 384, 3, 1), (384, 13, 256, 3, 1),
    ),
    "SqueezeNet and U-Net++": (
        (16, 55, 64, 3, 1), (32, 27, 128, 3, 1), (48, 13, 192, 3, 1), (64, 13, 256, 3, 1), (96, 64, 32, 3, 1),
        (192, 32, 64, 3, 1), (384, 16, 128, 3, 1), (160, 64, 32, 3, 1), (320, 32, 64, 3, 1),
    ),
}  # fmt: skip
"""Layers as published, some with another size of image."""
LATER: Mapping[str, tuple[Layer | str, ...]] = {
    "ResNet-34": (
        (64, 56, 64, 3, 1), (128, 28, 128, 3, 1), (256, 14, 256, 3, 1), (512, 7, 512, 3, 1),
        (64, 56, 128, 3, 2), (128, 28, 256, 3, 2), (256, 14, 512, 3, 2), (64, 56, 128, 1, 2),
    ),
    "Inception-v4": (
        (32, 147, 64, 3, 1), (64, 147, 96, 3, 2, "pad=0"), (64, 73, 96, 3, 1, "pad=0"),
        (192, 71, 192, 3, 2, "pad=0"), (64, 35, 96, 3, 1), (224, 35, 256, 3, 1),
        "c=192 h=17 w=17 k=224 r=1 s=7 pad=0x3", "c=224 h=17 w=17 k=256 r=7 s=1 pad=3x0",
        "c=256 h=17 w=17 k=320 r=7 s=1 pad=3x0", (320, 17, 320, 3, 2, "pad=0"),
        "c=448 h=8 w=8 k=512 r=3 s=1 pad=1x0",
    ),
    "YOLOv5-l": (
        (64, 160, 64, 3, 1), (64, 320, 128, 3, 2), (128, 80, 128, 3, 1), (128, 160, 256, 3, 2),
        (256, 40, 256, 3, 1), (512, 20, 512, 3, 1), (512, 40, 1024, 3, 2),
    ),
    "DenseNet-121": ((128, 56, 32, 3, 1), (128, 28, 32, 3, 1), (128, 14, 32, 3, 1), (128, 7, 32, 3, 1)),
    "VoVNet-39": (
        (64, 112, 128, 3, 2), (128, 56, 128, 3, 1), (256, 28, 160, 3, 1), (160, 28, 160, 3, 1),
        (512, 14, 192, 3, 1), (192, 14, 192, 3, 1), (768, 7, 224, 3, 1), (224, 7, 224, 3, 1),
    ),
    "DLA-34 and CenterNet": (
        (16, 224, 16, 3, 1), (16, 224, 32, 3, 2), (32, 112, 64, 3, 2), (64, 128, 256, 3, 1),
        (128, 64, 64, 3, 1), (256, 32, 128, 3, 1), (512, 16, 256, 3, 1),
    ),
    "UNet 3+": (
        (64, 128, 64, 3, 1), (320, 128, 320, 3, 1), (256, 64, 64, 3, 1), (512, 32, 64, 3, 1),
        (1024, 8, 64, 3, 1), (320, 32, 320, 3, 1),
    ),
    "EDSR": ((256, 48, 256, 3, 1), (256, 96, 256, 3, 1), (64, 96, 64, 3, 1), (64, 96, 256, 3, 1)),
    "RAFT": (
        (64, 128, 96, 3, 2), (96, 64, 96, 3, 1), (96, 64, 128, 3, 2), (256, 55, 192, 3, 1),
        (128, 55, 64, 3, 1), "c=384 h=55 w=128 k=128 r=1 s=5 pad=0x2",
        "c=384 h=55 w=128 k=128 r=5 s=1 pad=2x0", (128, 55, 256, 3, 1),
    ),
    "SlowFast": (
        "d=32 h=56 w=56 c=8 k=8 t=1 r=3 s=3 pad=0x1x1", "d=32 h=28 w=28 c=16 k=16 t=1 r=3 s=3 pad=0x1x1",
        "d=32 h=14 w=14 c=128 k=32 t=3 r=1 s=1 pad=1x0x0", "d=8 h=56 w=56 c=64 k=64 t=1 r=3 s=3 pad=0x1x1",
        "d=8 h=28 w=28 c=128 k=128 t=1 r=3 s=3 pad=0x1x1", "d=8 h=14 w=14 c=1024 k=256 t=3 r=1 s=1 pad=1x0x0",
        "d=8 h=14 w=14 c=256 k=256 t=1 r=3 s=3 pad=0x1x1",
    ),
    "C3D": (
        "d=16 h=56 w=56 c=64 k=128 t=3 r=3 s=3 pad=1", "d=8 h=28 w=28 c=128 k=256 t=3 r=3 s=3 pad=1",
        "d=8 h=28 w=28 c=256 k=256 t=3 r=3 s=3 pad=1", "d=4 h=14 w=14 c=512 k=512 t=3 r=3 s=3 pad=1",
        "d=2 h=7 w=7 c=512 k=512 t=3 r=3 s=3 pad=1",
    ),
    "BigGAN": (
        (96, 128, 96, 3, 1), (192, 64, 96, 3, 1), (192, 64, 192, 3, 1), (384, 32, 384, 3, 1),
        (768, 32, 384, 3, 1), (768, 16, 768, 3, 1), (1536, 8, 1536, 3, 1),
    ),
}  # fmt: skip
"""Layers as published; `conv_networks_later`, drawn when the picks of all others were known."""
BESIDE: Mapping[str, tuple[Layer | str, ...]] = {
    "nnU-Net 2-D of 30 filters": (
        (1, 256, 30, 3, 1), (30, 256, 30, 3, 1), (30, 256, 60, 3, 2), (60, 128, 60, 3, 1),
        (60, 128, 120, 3, 2),
    ),
    "HRNet-W18": (
        (18, 56, 18, 3, 1), (36, 28, 36, 3, 1), (18, 56, 36, 3, 2), (36, 28, 72, 3, 2), (270, 56, 18, 3, 1),
    ),
    "Vision transformers": (
        (3, 224, 768, 16, 16, "pad=0"), (3, 224, 1024, 14, 14, "pad=0"), (3, 384, 768, 32, 32, "pad=0"),
        (3, 224, 384, 8, 8, "pad=0"),
    ),
    "Swin, CLIP and DINO": (
        (3, 224, 96, 4, 4, "pad=0"), (3, 224, 1280, 14, 14, "pad=0"), (3, 336, 1024, 14, 14, "pad=0"),
        (3, 512, 1152, 16, 16, "pad=0"),
    ),
    "PyramidNet": ((27, 56, 27, 3, 1), (43, 28, 43, 3, 1), (59, 14, 59, 3, 1), (91, 7, 91, 3, 1)),
    "Pruned VGG": ((61, 112, 61, 3, 1), (118, 56, 118, 3, 1), (237, 28, 237, 3, 1), (501, 14, 501, 3, 1)),
    "RegNetY-8GF and 32GF": (
        (448, 28, 448, 3, 1, "groups=8"), (896, 14, 896, 3, 1, "groups=16"), (696, 28, 696, 3, 1, "groups=3"),
        (1392, 14, 1392, 3, 1, "groups=6"), (696, 56, 696, 3, 2, "groups=3"),
    ),
    "RegNetX-12GF and Y-4GF": (
        (224, 56, 224, 3, 1, "groups=2"), (448, 28, 448, 3, 1, "groups=4"),
        (2240, 7, 2240, 3, 1, "groups=20"),
        (192, 28, 192, 3, 1, "groups=3"), (512, 14, 512, 3, 1, "groups=8"), (512, 28, 512, 3, 2, "groups=8"),
    ),
    "ResNeSt-50": (
        (64, 56, 128, 3, 1, "groups=2"), (128, 28, 256, 3, 1, "groups=2"), (256, 14, 512, 3, 1, "groups=2"),
        (512, 7, 1024, 3, 1, "groups=2"),
    ),
    "AlexNet and ResNeXt-101 32x48d": (
        (96, 27, 256, 5, 1, "groups=2"), (384, 13, 384, 3, 1, "groups=2"), (384, 13, 256, 3, 1, "groups=2"),
        (1536, 28, 1536, 3, 1, "groups=32"), (3072, 14, 3072, 3, 1, "groups=32"),
    ),
    "First layers": ((1, 224, 32, 3, 2), (3, 416, 32, 3, 1), (4, 64, 320, 3, 1), (6, 256, 64, 7, 2)),
    "R(2+1)D and mono images": (
        "d=16 h=112 w=112 c=3 k=45 t=1 r=7 s=7 pad=0x3x3 stride=1x2x2",
        "d=16 h=56 w=56 c=45 k=64 t=3 r=1 s=1 pad=1x0x0", (1, 256, 64, 3, 1), (2, 256, 48, 3, 1),
        (5, 128, 80, 3, 1), (9, 64, 320, 3, 1),
    ),
}  # fmt: skip
"""Layers as published, and odd ones as pruning leaves them."""


FURTHER: Mapping[str, tuple[Layer | str, ...]] = {
    "WideResNet-28-10": (
        (3, 32, 16, 3, 1), (16, 32, 160, 3, 1), (160, 32, 160, 3, 1), (160, 32, 320, 3, 2),
        (320, 16, 320, 3, 1), (320, 16, 640, 3, 2), (640, 8, 640, 3, 1),
    ),
    "WideResNet-50-2": (
        (128, 56, 128, 3, 1), (256, 56, 256, 3, 2), (256, 28, 256, 3, 1), (512, 28, 512, 3, 2),
        (512, 14, 512, 3, 1), (1024, 14, 1024, 3, 2), (1024, 7, 1024, 3, 1), (3, 224, 64, 7, 2),
    ),
    "RetinaNet heads": (
        (256, 100, 256, 3, 1), (256, 50, 256, 3, 1), (256, 25, 256, 3, 1), (256, 13, 256, 3, 1),
        (256, 50, 720, 3, 1), (256, 50, 36, 3, 1), (2048, 25, 256, 3, 2), (256, 13, 256, 3, 2),
    ),
    "StyleGAN2": (
        (512, 8, 512, 3, 1), (512, 16, 512, 3, 1), (512, 32, 512, 3, 1), (512, 64, 256, 3, 1),
        (256, 128, 128, 3, 1), (128, 256, 64, 3, 1), (64, 512, 64, 3, 1),
    ),
    "U-Net as first published": (
        (1, 572, 64, 3, 1, "pad=0"), (64, 570, 64, 3, 1, "pad=0"), (128, 282, 128, 3, 1, "pad=0"),
        (256, 138, 256, 3, 1, "pad=0"), (512, 66, 512, 3, 1, "pad=0"), (1024, 30, 1024, 3, 1, "pad=0"),
        (1024, 54, 512, 3, 1, "pad=0"), (512, 102, 256, 3, 1, "pad=0"),
    ),
    "SegFormer": (
        (3, 224, 32, 7, 4), (32, 56, 64, 3, 2), (64, 28, 160, 3, 2), (160, 14, 256, 3, 2),
        (64, 56, 64, 8, 8, "pad=0"), (128, 28, 128, 4, 4, "pad=0"), (320, 14, 320, 2, 2, "pad=0"),
    ),
    "I3D": (
        "d=16 h=56 w=56 c=64 k=192 t=3 r=3 s=3 pad=1", "d=16 h=28 w=28 c=96 k=128 t=3 r=3 s=3 pad=1",
        "d=16 h=28 w=28 c=16 k=32 t=3 r=3 s=3 pad=1", "d=8 h=14 w=14 c=96 k=208 t=3 r=3 s=3 pad=1",
        "d=8 h=14 w=14 c=112 k=224 t=3 r=3 s=3 pad=1", "d=4 h=7 w=7 c=160 k=320 t=3 r=3 s=3 pad=1",
        "d=16 h=224 w=224 c=3 k=64 t=7 r=7 s=7 pad=3 stride=2",
    ),
    "RCAN": (
        (3, 48, 64, 3, 1), (64, 48, 64, 3, 1), (64, 64, 64, 3, 1), (64, 48, 256, 3, 1), (64, 192, 3, 3, 1),
    ),
    "DDPM": (
        (3, 32, 128, 3, 1), (128, 32, 128, 3, 1), (128, 32, 128, 3, 2), (128, 16, 256, 3, 1),
        (256, 16, 256, 3, 1), (512, 16, 256, 3, 1), (512, 8, 256, 3, 1), (256, 4, 256, 3, 1),
        (128, 32, 3, 3, 1),
    ),
    "ResNeXt-101 64x4d": (
        (256, 56, 256, 3, 1, "groups=64"), (512, 28, 512, 3, 1, "groups=64"),
        (1024, 14, 1024, 3, 1, "groups=64"), (2048, 7, 2048, 3, 1, "groups=64"),
        (512, 56, 512, 3, 2, "groups=64"),
    ),
    "YOLOv7": (
        (3, 640, 32, 3, 1), (32, 640, 64, 3, 2), (64, 160, 64, 3, 1), (128, 160, 128, 3, 2),
        (128, 80, 128, 3, 1), (256, 40, 256, 3, 1), (256, 40, 256, 3, 2), (512, 20, 512, 3, 1),
    ),
    "EfficientNetV2-L": (
        (3, 384, 32, 3, 2), (32, 192, 32, 3, 1), (32, 192, 128, 3, 2), (64, 96, 256, 3, 1),
        (64, 96, 256, 3, 2), (96, 48, 384, 3, 1),
    ),
    "Stable Diffusion 1.5": (
        (4, 64, 320, 3, 1), (320, 64, 320, 3, 1), (320, 64, 320, 3, 2), (320, 32, 640, 3, 1),
        (640, 32, 640, 3, 2), (640, 16, 1280, 3, 1), (1280, 16, 1280, 3, 1), (1280, 16, 1280, 3, 2),
        (1920, 32, 640, 3, 1), (960, 64, 320, 3, 1), (320, 64, 4, 3, 1),
    ),
    "YOLOv8-x": (
        (3, 640, 80, 3, 2), (80, 320, 160, 3, 2), (80, 160, 80, 3, 1), (160, 160, 320, 3, 2),
        (160, 80, 160, 3, 1), (320, 80, 640, 3, 2), (320, 40, 320, 3, 1), (320, 20, 320, 3, 1),
        (640, 40, 640, 3, 2),
    ),
    "Swin UNETR": (
        "d=48 h=48 w=48 c=48 k=48 t=3 r=3 s=3 pad=1", "d=24 h=24 w=24 c=96 k=96 t=3 r=3 s=3 pad=1",
        "d=12 h=12 w=12 c=192 k=192 t=3 r=3 s=3 pad=1", "d=6 h=6 w=6 c=384 k=384 t=3 r=3 s=3 pad=1",
        "d=48 h=48 w=48 c=96 k=48 t=3 r=3 s=3 pad=1", "d=96 h=96 w=96 c=1 k=48 t=2 r=2 s=2 stride=2",
    ),
    "3-D ResNet-18": (
        "d=16 h=112 w=112 c=3 k=64 t=3 r=7 s=7 pad=1x3x3 stride=1x2x2",
        "d=16 h=56 w=56 c=64 k=64 t=3 r=3 s=3 pad=1", "d=16 h=56 w=56 c=64 k=128 t=3 r=3 s=3 pad=1 stride=2",
        "d=8 h=28 w=28 c=128 k=128 t=3 r=3 s=3 pad=1", "d=4 h=14 w=14 c=256 k=256 t=3 r=3 s=3 pad=1",
        "d=2 h=7 w=7 c=512 k=512 t=3 r=3 s=3 pad=1",
    ),
    "Darknet-53": (
        (3, 416, 32, 3, 1), (32, 416, 64, 3, 2), (32, 208, 64, 3, 1), (64, 208, 128, 3, 2),
        (64, 104, 128, 3, 1), (128, 52, 256, 3, 1), (256, 26, 512, 3, 1), (512, 13, 1024, 3, 1),
        (512, 26, 1024, 3, 2),
    ),
    "BiSeNet V2": (
        (3, 512, 64, 3, 2), (64, 256, 64, 3, 1), (64, 256, 64, 3, 2), (64, 128, 128, 3, 2),
        (128, 64, 128, 3, 1), (16, 128, 16, 3, 2), (128, 64, 1024, 3, 1), (32, 128, 16, 3, 1),
    ),
    "FlowNet": (
        (6, 384, 64, 7, 2), (64, 192, 128, 5, 2), (128, 96, 256, 5, 2), (256, 48, 256, 3, 1),
        (256, 48, 512, 3, 2), (512, 24, 512, 3, 1), (512, 12, 1024, 3, 2), (473, 48, 256, 3, 1),
    ),
    "Stacked hourglass": (
        (3, 256, 64, 7, 2), (64, 128, 64, 3, 1), (128, 64, 128, 3, 1), (128, 32, 128, 3, 1),
        (128, 16, 128, 3, 1), (128, 8, 128, 3, 1),
    ),
    "RegNetX-8GF": (
        (80, 56, 80, 3, 1), (240, 28, 240, 3, 1, "groups=2"), (720, 14, 720, 3, 1, "groups=6"),
        (1920, 7, 1920, 3, 1, "groups=16"), (240, 56, 240, 3, 2, "groups=2"), (80, 56, 240, 1, 2),
    ),
    "PSMNet": (
        "d=48 h=64 w=64 c=64 k=32 t=3 r=3 s=3 pad=1", "d=48 h=64 w=64 c=32 k=32 t=3 r=3 s=3 pad=1",
        "d=48 h=64 w=64 c=32 k=64 t=3 r=3 s=3 pad=1 stride=2", "d=24 h=32 w=32 c=64 k=64 t=3 r=3 s=3 pad=1",
        (320, 64, 128, 3, 1), (128, 64, 128, 3, 1, "pad=2 dilation=2"), (32, 128, 32, 3, 1),
    ),
    "ControlNet's hints": (
        (3, 512, 16, 3, 1), (16, 512, 16, 3, 1), (16, 512, 32, 3, 2), (32, 256, 32, 3, 1),
        (32, 256, 96, 3, 2), (96, 128, 96, 3, 1), (96, 128, 256, 3, 2), (256, 64, 320, 3, 1),
    ),
    "CondenseNet and ShuffleNet": (
        (24, 28, 240, 3, 2, "groups=3"), (240, 28, 240, 3, 1, "groups=3"), (128, 28, 32, 3, 1, "groups=4"),
        (256, 14, 64, 3, 1, "groups=4"), (512, 14, 64, 3, 1, "groups=4"), (3, 224, 24, 3, 2),
    ),
}  # fmt: skip
"""Layers as published, first ones and groups among them; the seed deals them to the fit and to what is held
out."""
FEW: Mapping[str, tuple[Layer | str, ...]] = {
    "First layers of 7 x 7": ((3, 224, 48, 7, 2), (3, 320, 64, 7, 2), (1, 224, 64, 7, 2), (4, 224, 64, 7, 2)),
    "First layers of 7 x 7 elsewhere": ((3, 192, 64, 7, 2), (3, 256, 96, 7, 2), (2, 256, 64, 7, 2)),
    "First layers of 3 x 3": ((3, 128, 64, 3, 1), (3, 320, 16, 3, 2), (3, 224, 40, 3, 2), (1, 128, 32, 3, 1)),
    "First layers of 3 x 3 elsewhere": (
        (3, 256, 64, 3, 1), (3, 288, 24, 3, 2), (3, 192, 48, 3, 2), (5, 224, 32, 3, 1),
    ),
    "Patches": ((3, 224, 192, 16, 16, "pad=0"), (3, 256, 128, 4, 4, "pad=0"), (4, 64, 1152, 2, 2, "pad=0")),
    "Patches elsewhere": (
        (3, 224, 512, 32, 32, "pad=0"), (3, 192, 192, 4, 4, "pad=0"), (16, 64, 1536, 2, 2, "pad=0"),
    ),
    "Last layers": ((64, 256, 3, 3, 1), (64, 512, 1, 1, 1), (128, 128, 21, 3, 1), (320, 64, 4, 3, 1)),
    "Last layers elsewhere": (
        (32, 512, 3, 3, 1), (64, 256, 2, 3, 1), (256, 128, 19, 3, 1), (64, 128, 12, 3, 1),
    ),
    "MobileNetV2": (
        (32, 112, 32, 3, 1, "groups=32"), (144, 56, 144, 3, 1, "groups=144"),
        (96, 112, 96, 3, 2, "groups=96"), (384, 14, 384, 3, 1, "groups=384"),
        (960, 7, 960, 3, 1, "groups=960"),
    ),
    "MobileNetV1": (
        (64, 112, 64, 3, 2, "groups=64"), (128, 56, 128, 3, 1, "groups=128"),
        (256, 28, 256, 3, 1, "groups=256"), (512, 14, 512, 3, 1, "groups=512"),
        (512, 14, 512, 3, 2, "groups=512"), (1024, 7, 1024, 3, 1, "groups=1024"),
    ),
    "ConvNeXt-L and large kernels": (
        (192, 56, 192, 7, 1, "groups=192"), (384, 28, 384, 7, 1, "groups=384"),
        (768, 14, 768, 7, 1, "groups=768"), (1536, 7, 1536, 7, 1, "groups=1536"),
        (128, 56, 128, 13, 1, "groups=128"),
    ),
    "EfficientNet-B3": (
        (40, 150, 40, 3, 1, "groups=40"), (192, 75, 192, 5, 2, "groups=192"),
        (288, 38, 288, 5, 1, "groups=288"), (576, 19, 576, 3, 1, "groups=576"),
        (816, 19, 816, 5, 1, "groups=816"), (1392, 10, 1392, 5, 1, "groups=1392"),
    ),
}  # fmt: skip
"""Few channels in an image, its output or a group: published layers, some with another size or filter."""


def words_of(layer: Layer | str) -> str:
    """The words of `ConvProblem.parse` but the kind and the images; filters keep the size unless told."""
    if isinstance(layer, str):
        return layer
    c, h, k, r, stride, *further = layer
    words = " ".join(map(str, further))
    pad = "" if "pad=" in words else f" pad={r // 2}"
    return f"c={c} h={h} w={h} k={k} r={r} s={r} stride={stride}{pad} {words}".strip()


@cache
def measured(tables: tuple[str, ...]) -> frozenset[str]:
    """Convolutions of earlier tables."""
    found = (read_table(MEASUREMENTS / f"{name}.csv.gz") for name in tables)
    return frozenset(conv for table in found for conv in table["conv"])


def network_rows(
    layers: tuple[Layer | str, ...],
    earlier: frozenset[str],
    draw: random.Random,
    most: int = ROWS_OF_A_NETWORK,
) -> Iterator[Row]:
    found = []
    for layer, kind in product(layers, KINDS):
        words = words_of(layer)
        for images in BATCHES[3 if " t=" in words else 2]:
            dtype = "fp16" if draw.random() < SHARE_OF_FP16 else "bf16"
            conv = ConvProblem.parse(f"{kind} n={images} {words}")
            problem = GemmProblem.of_conv(conv, dtype)
            if problem.flop <= LARGEST_CONVOLUTION_FLOP and conv.name not in earlier:
                found.append(row(problem, None, "cudnn"))
    yield from draw.sample(found, min(most, len(found)))


def drawn_rows(
    networks: Mapping[str, tuple[Layer | str, ...]], earlier: tuple[str, ...], seed: int
) -> list[list[Row]]:
    """Of each network some rows that are in no earlier table."""
    return [
        list(network_rows(layers, measured(earlier), random.Random(seed + number)))
        for number, layers in enumerate(networks.values())
    ]


def taking_turns(
    name: str, networks: Mapping[str, tuple[Layer | str, ...]], earlier: tuple[str, ...], seed: int
) -> dict[str, list[Row]]:
    """The plan of a fit and of what is held out of it: networks take turns, no row is in both."""
    drawn = drawn_rows(networks, earlier, seed)
    fit, unseen = (dict.fromkeys(chain.from_iterable(rows)) for rows in (drawn[::2], drawn[1::2]))
    return {name: [item for item in fit if item not in unseen], f"{name}_unseen": list(unseen)}


def plans() -> dict[str, list[Row]]:
    found = taking_turns("conv_networks", NETWORKS, EARLIER, SEED)
    smoke = one_of_each([item for rows in found.values() for item in rows], random.Random(SEED - 1))
    beside = taking_turns("conv_beside", BESIDE, LATER_THAN, SEED + len(NETWORKS))
    later = drawn_rows(LATER, LATER_THAN, SEED + len(NETWORKS) + len(BESIDE))
    rows = list(dict.fromkeys(chain.from_iterable(later)))
    return {**found, **beside, "conv_networks_later": rows, **further_plans(), "conv_smoke": smoke}


def further_plans() -> dict[str, list[Row]]:
    seed = SEED + sum(map(len, (NETWORKS, BESIDE, LATER)))
    dealt = random.Random(seed).sample(sorted(FURTHER), len(FURTHER))
    networks = taking_turns("further", {name: FURTHER[name] for name in dealt}, FURTHER_THAN, seed + 1)
    few = taking_turns("conv_few", FEW, FURTHER_THAN, seed + 1 + len(FURTHER))
    fit, fresh = networks.values()
    # A filter of one tap is a plain product.
    known = {None, *(item.problem.conv for rows in (fit, fresh) for item in rows)}
    few = {name: [item for item in rows if item.problem.conv not in known] for name, rows in few.items()}
    return {"conv_networks_further": fit, "conv_networks_fresh": fresh, **few}


if __name__ == "__main__":
    write_plans(__doc__, plans)
