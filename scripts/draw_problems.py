"""The pictures of `docs/problems.md`: which tiles exist, and which bytes move.

python scripts/draw_problems.py
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "img"
A, B, OUT, READ, SCALE, EMPTY = "#cfe3f5", "#f6d8a8", "#4c8c6b", "#e9b8c4", "#7a5ba6", "#f4f4f4"
INK, SOFT = "#222222", "#555555"
TILE = 26


class Picture:
    """Rectangles and words of one drawing."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
            f' font-size="13" role="img" aria-label="{title}">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, fill: str, stroke: str = SOFT) -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" stroke="{stroke}" '
            'stroke-width="0.7"/>'
        )

    def outline(self, x: float, y: float, width: float, height: float) -> None:
        """A tile, drawn over what it covers."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="none" stroke="{INK}" '
            'stroke-width="1.6"/>'
        )

    def words(self, x: float, y: float, text: str, *, fill: str = INK, middle: bool = False) -> None:
        anchor = ' text-anchor="middle"' if middle else ""
        self.parts.append(f'<text x="{x}" y="{y}" fill="{fill}"{anchor}>{text}</text>')

    def save(self, name: str) -> None:
        (FOLDER / name).write_text("\n".join([*self.parts, "</svg>", ""]))


def epilogue() -> None:
    picture = Picture("One tile of a gated epilogue with a residual", 760, 190)
    picture.words(20, 24, "A and B of one tile, k tile by k tile")
    picture.box(20, 60, 120, 2 * TILE, A)
    picture.box(160, 34, 4 * TILE, 20, B)
    for column in range(4):
        picture.box(160 + column * TILE, 60, TILE, 2 * TILE, OUT if column % 2 else "#8fbfa4")
    picture.outline(160, 60, 4 * TILE, 2 * TILE)
    picture.words(160 + 2 * TILE, 134, "sums: gate and up in turn", middle=True, fill=SOFT)
    picture.words(285, 90, "-> activation x up")
    picture.words(400, 24, "read for each output that is left")
    picture.box(430, 60, 2 * TILE, 2 * TILE, READ)
    picture.words(430 + TILE, 134, "residual", middle=True, fill=SOFT)
    picture.words(498, 90, "+ ->")
    picture.box(545, 60, 2 * TILE, 2 * TILE, OUT)
    picture.outline(545, 60, 2 * TILE, 2 * TILE)
    picture.words(545 + TILE, 134, "stored: half", middle=True, fill=SOFT)
    picture.words(
        20, 172, "A bias is one row of a tile; a matrix is a whole tile, from DRAM through L2 and the port."
    )
    picture.save("problem_epilogue.svg")


def groups() -> None:
    picture = Picture("Tiles of three groups of rows, each with weights of its own", 760, 260)
    rows = (2.4, 0.7, 1.3)
    y, a_y = 40.0, 40.0
    picture.words(20, 24, "rows, group after group")
    picture.words(230, 24, "weights of each group that has rows")
    picture.words(480, 24, "tiles: none holds two groups' rows")
    for group, count in enumerate(rows):
        height = count * TILE
        tiles = int(-(-count // 1))
        picture.box(20, a_y, 150, height, A)
        picture.words(95, a_y + height / 2 + 5, f"group {group}", middle=True)
        a_y += height
        picture.box(230 + group * 75, 60, 60, 110, B)
        picture.words(260 + group * 75, 120, f"B{group}", middle=True)
        for tile in range(tiles):
            inside = min(count - tile, 1.0)
            for column in range(4):
                x = 480 + column * 55
                picture.box(x, y + tile * TILE, 55, inside * TILE, OUT)
                picture.box(x, y + (tile + inside) * TILE, 55, (1 - inside) * TILE, EMPTY)
                picture.outline(x, y + tile * TILE, 55, TILE)
        y += tiles * TILE + 6
    picture.words(20, 222, "Light: rows behind a group. They are loaded and multiplied, and not stored.")
    picture.words(
        20, 242, "A fourth group without rows has a place in the table, no tile, and its weights stay unread."
    )
    picture.save("problem_groups.svg")


def batch() -> None:
    picture = Picture("Matrices of a batch: behind one another, with gaps, row by row in turn", 760, 224)
    colours = (A, B, READ)
    for x, title, gap in (
        (20, "stride = matrix", 0),
        (270, "stride > matrix: gaps", 12),
        (520, "stride < matrix: rows in turn", -1),
    ):
        picture.words(x, 24, title)
        for place in range(9):
            matrix = place % 3 if gap < 0 else place // 3
            y = 36 + place * 14 + (matrix * gap if gap > 0 else 0)
            picture.box(x, y, 150, 14, colours[matrix])
            picture.words(
                x + 160, y + 12, f"A{matrix}, row {place // 3 if gap < 0 else place % 3}", fill=SOFT
            )
    picture.words(20, 210, "A stride of 0: one matrix for all, read once while L2 keeps it.")
    picture.save("problem_batch.svg")


def block_scales() -> None:
    picture = Picture("Scale factors of blocks of A and B, applied to the sums of each k tile", 760, 210)
    picture.words(20, 24, "A: one factor for 128 of a row")
    picture.words(300, 24, "B: one for 128 x 128")
    for part in range(3):
        for row in range(4):
            picture.box(20 + part * 70, 40 + row * TILE, 62, TILE, A)
            picture.box(20 + part * 70 + 62, 40 + row * TILE, 6, TILE, SCALE)
        picture.box(300 + part * 70, 40, 62, 4 * TILE, B)
        picture.box(300 + part * 70 + 62, 40, 6, 12, SCALE)
        picture.words(51 + part * 70, 162, f"k tile {part}", middle=True, fill=SOFT)
    picture.words(540, 84, "sums of a k tile")
    picture.words(540, 104, "x row factor x block factor")
    picture.words(540, 124, "-> second set of registers")
    picture.words(
        20,
        192,
        "0.25 bits of scale factors for an element of A, 0.002 for one of B; products on the CUDA cores.",
    )
    picture.save("problem_block_scales.svg")


def convolution() -> None:
    picture = Picture("A convolution as a product whose rows overlap in the image", 760, 250)
    picture.words(20, 24, "image, read from DRAM once")
    for row in range(6):
        for column in range(6):
            chosen = 1 <= row <= 3 and 1 <= column <= 4
            picture.box(20 + column * 24, 40 + row * 24, 24, 24, A if chosen else EMPTY)
    picture.outline(44, 64, 72, 72)
    picture.outline(68, 64, 72, 72)
    picture.words(230, 24, "A of the product: 9 taps of each pixel, from L2")
    for pixel in range(4):
        for tap in range(9):
            picture.box(230 + tap * 27, 60 + pixel * TILE, 27, TILE, A)
    picture.outline(230, 60, 27, 4 * TILE)
    picture.words(243, 186, "a k tile: channels of one tap", fill=SOFT)
    picture.words(500, 84, "x filters")
    picture.box(570, 60, 60, 4 * TILE, B)
    picture.words(640, 84, "=")
    for column in range(2):
        picture.box(665 + column * 35, 60, 35, 4 * TILE, OUT)
    picture.outline(665, 60, 70, 4 * TILE)
    picture.words(
        20,
        232,
        "Neighbours share two of three columns of pixels: DRAM sees each once, L2 serves them nine times.",
    )
    picture.save("problem_convolution.svg")


if __name__ == "__main__":
    for draw in (epilogue, groups, batch, block_scales, convolution):
        draw()
