"""Attention maps as pictures: queries down, keys across, one panel a head, white for 0 and dark for 1."""

import io
import math
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.textpath import text_to_path
from torch import Tensor

from mt.command import naming
from mt.inspection.attention_maps import AttentionMap, attention_kind, cross_maps

# Equal steps of CIELAB distance, with lightness falling from 100 to 14: twice the weight looks twice as dark.
COLOURS = LinearSegmentedColormap.from_list(
    "weight",
    ["#ffffff", "#c4eaf1", "#87d0e8", "#51b2df", "#2693d2", "#1a73bf", "#2e52a2", "#313074", "#271c49"],
)
# TensorBoard shows every second pixel of a usual map, in a card of 350 pixels: smaller text is not legible there.
PLAIN = FontProperties(family="DejaVu Sans", size=12)
SMALL = FontProperties(family="DejaVu Sans", size=7.5)
BOLD = FontProperties(family="DejaVu Sans", size=12, weight="bold")
DPI = 100
LINE, SMALL_LINE, CELL, GAP, PAD = 19.0, 13.0, 22.0, 14.0, 10.0
"""Pixels: a line of text, one of small text, the largest cell, between two panels, around everything."""
COMFORTABLE, LARGEST = 1000, 1760
"""Pixels of all panels together: cells shrink to a small line to stay below the first, and further for the second."""
LABEL = 14
"""Characters of a piece that are shown."""
READS = {
    "encoder": ("the source piece that looks", "the source piece it looks at"),
    "decoder": ("the piece being produced", "the earlier piece it looks at"),
    "cross": ("the piece being produced", "the source piece it looks at"),
}


def attention_figure(attention_map: AttentionMap) -> Figure:
    """Every head of one map, at most 2,100 pixels a side. Where only every n-th piece can be named, it says so."""
    heads = [f"head {i}" for i in range(1, len(attention_map.weights) + 1)]
    return _draw(attention_map, attention_map.weights, heads, [_title(attention_map.name), attention_map.name])


def save_attention_figure(maps: list[AttentionMap], path: Path) -> None:
    """What a translation looked at in its source: one panel a layer, the mean of its heads.

    The ending decides the format. ValueError and OSError as `save_figure` has them.
    """
    cross = cross_maps(maps)
    weights = torch.stack([m.weights.mean(dim=0) for m in cross])
    share = weights[:, :, -1].mean().item()
    lines = ["What each piece looked at in the source", "the mean of every layer's heads"]
    lines += [f"{share:.0%} of all weight lies on {cross[0].keys[-1]}, the source's end"]
    save_figure(_draw(cross[0], weights, [f"layer {i}" for i in range(1, len(cross) + 1)], lines), path)


def save_figure(figure: Figure, path: Path) -> None:
    """ValueError where the ending is no picture's, OSError where the path can't be written."""
    picture = io.BytesIO()
    figure.savefig(picture, format=picture_format(path))
    with naming(path):
        path.write_bytes(picture.getvalue())


def picture_format(path: Path) -> str:
    """ValueError where the ending is no picture's."""
    formats = sorted(set(FigureCanvasAgg.get_supported_filetypes()) - {"pgf", "raw", "rgba"})  # LaTeX, no header
    ending = path.suffix[1:].lower()
    if ending not in formats:
        raise ValueError(f"{path}: a picture's name ends in one of .{' .'.join(formats)}")
    return ending


def rgb(figure: Figure) -> UInt8[np.ndarray, "height width 3"]:
    """What SummaryWriter.add_image takes with dataformats="HWC"."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()  # type: ignore[no-untyped-call]


def _title(name: str) -> str:
    """decoder.layers.0.cross_attention in words."""
    if found := re.search(r"(encoder|decoder)\.layers\.(\d+)\.(self|cross)_attention$", name):
        return f"{found[1].capitalize()} layer {int(found[2]) + 1}, {found[3]}-attention"
    return "Attention over the source" if attention_kind(name) == "cross" else "Attention"


def _draw(labels: AttentionMap, panels: Float[Tensor, "P Q K"], names: list[str], lines: list[str]) -> Figure:
    """One Axes in pixels, y down, holds everything: placing labels by hand costs a third of ticks and layout."""
    queries, keys = ([_shown(piece) for piece in pieces] for pieces in (labels.queries, labels.keys))
    grid = _grid(len(panels), len(queries), len(keys), max(_width(name, BOLD) for name in names))
    font = PLAIN if grid.cell >= LINE else SMALL
    query, key = READS[attention_kind(labels.name)]
    lines = [*(_shown(line, 60) for line in lines), f"row = query: {query}", f"column = key: {key}"]
    if grid.step > 1:
        lines.append(f"one piece in {grid.step} is named")
    left = PAD + math.ceil(max(_width(piece, font) for piece in queries)) + 4
    top = PAD + (len(lines) + 1) * LINE + GAP
    width = math.ceil(max(left + grid.columns * grid.pitch_x, 2 * PAD + max(_width(line, BOLD) for line in lines)))
    height = math.ceil(top + grid.rows * grid.pitch_y + max(_width(piece, font) for piece in keys) + PAD)

    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    frames, middle = [], font.get_size() / 2  # from the middle of a line of text to its baseline
    for i, (weights, name) in enumerate(zip(panels, names, strict=True)):
        row, column = divmod(i, grid.columns)
        x, y = left + column * grid.pitch_x, top + row * grid.pitch_y + LINE
        frames.append(_image(axes, weights.numpy(), x, y, len(keys) * grid.cell, len(queries) * grid.cell))
        _text(axes, x, y - 4, name, fontproperties=BOLD)
        if column == 0:
            for j in range(0, len(queries), grid.step):
                _text(axes, x - 4, y + (j + 0.5) * grid.cell + middle, queries[j], fontproperties=font, ha="right")
        if i + grid.columns >= len(panels):  # nothing stands below
            for j in range(0, len(keys), grid.step):
                place = x + (j + 0.5) * grid.cell + middle, y + len(queries) * grid.cell + 4
                _text(axes, *place, keys[j], fontproperties=font, ha="right", rotation=90, rotation_mode="anchor")
    for i, line in enumerate(lines, start=1):
        _text(axes, PAD, PAD + i * LINE - 4, line, fontproperties=BOLD if i == 1 else PLAIN)
    scale = PAD + (len(lines) + 1) * LINE
    _text(axes, PAD, scale - 4, "weight: 0")
    x = PAD + _width("weight: 0") + 4
    frames.append(_image(axes, np.linspace(0, 1, 128)[None], x, scale - LINE + 2, 128.0, LINE - 5))
    _text(axes, x + 132, scale - 4, "1")
    axes.add_collection(LineCollection(frames, colors="0.6", linewidths=0.6), autolim=False)
    return figure


class _Grid(NamedTuple):
    rows: int
    columns: int
    cell: float
    pitch_x: float
    pitch_y: float
    step: int
    """Of how many neighbouring pieces one is named."""


def _grid(panels: int, queries: int, keys: int, name_width: float) -> _Grid:
    """The arrangement with the largest cells; among those the one with the fewest places left empty; the squarest."""

    def arrange(columns: int) -> tuple[float, int, float, _Grid]:
        rows = -(-panels // columns)
        longest = max(columns * keys, rows * queries)
        cell = min(CELL, max(SMALL_LINE, COMFORTABLE // longest), LARGEST / longest)
        cell = float(math.floor(cell)) if cell > 1 else cell
        pitch_x, pitch_y = max(keys * cell, math.ceil(name_width)) + GAP, queries * cell + LINE + GAP
        step = math.ceil((SMALL_LINE - 2) / cell)
        longer_side, empty = max(columns * pitch_x, rows * pitch_y), rows * columns - panels
        return -cell, empty, longer_side, _Grid(rows, columns, cell, pitch_x, pitch_y, step)

    return min(map(arrange, range(1, panels + 1)))[-1]


def _image(
    axes: Axes, values: Float[np.ndarray, "Q K"], x: float, y: float, width: float, height: float
) -> list[tuple[float, float]]:
    """Paint values into a rectangle; its outline."""
    right, bottom = x + width, y + height
    axes.imshow(values, cmap=COLOURS, vmin=0, vmax=1, extent=(x, right, bottom, y), aspect="auto")
    return [(x, y), (right, y), (right, bottom), (x, bottom), (x, y)]


def _text(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    """On the figure, because an Axes would also clip it."""
    how = {"fontproperties": PLAIN, "parse_math": False, **how}
    axes.figure.text(x, y, text, transform=axes.transData, **how)


@lru_cache(maxsize=10_000)
def _width(text: str, font: FontProperties = PLAIN) -> float:
    """In pixels."""
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]) * DPI / 72


def _shown(text: str, limit: int = LABEL) -> str:
    """At most limit characters, each of which the font has: 猫 becomes □."""
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if ord(c) in _characters() else "□" for c in text)


@cache
def _characters() -> set[int]:
    return set(get_font(findfont(PLAIN)).get_charmap())
