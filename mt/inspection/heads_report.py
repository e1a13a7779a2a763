"""The scoreboard of heads for people: as a table and as a picture."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mt.inspection.figures import save_figure
from mt.inspection.heads import Scoreboard

MEASURES = {
    "aer": ("AER", "{:.3f}"),
    "entropy": ("entropy, bits", "{:.2f}"),
    "eos_share": ("on </s>", "{:.0%}"),
    "diagonality": ("diagonality", "{:.2f}"),
}
DROP = "chrF lost"


def heads_table(board: Scoreboard, drops: Sequence[float], baseline: float) -> Group:
    """A row a head; what its columns mean below."""
    table = Table(title="Cross-attention heads", title_justify="left")
    for name in ("layer", "head", *(name for name, _ in MEASURES.values()), f"{DROP}, off"):
        table.add_column(name, justify="right")
    for head, drop in zip(board.heads, drops, strict=True):
        cells = [form.format(getattr(head, measure)) for measure, (_, form) in MEASURES.items()]
        style = "bold" if head is board.best else None
        table.add_row(str(head.layer), str(head.head), *cells, f"{drop:.1f}", style=style)
    best = board.best
    lines = [
        f"AER: layer {best.layer} head {best.head} aligns best with {best.aer:.3f}; the average of all heads' maps, "
        f"scored as one, has {board.mean_aer:.3f}, for heads err in different places; IBM Model 1, which sees all of "
        f"the target, {baseline:.3f}. 0 is perfect.",
        "entropy: 0 bits where a head looks at one piece, 1 where at two alike. on </s>: share of its weight on the "
        "source's end. diagonality: 1 where it reads along, 0 where places don't matter. chrF lost: when it is off.",
    ]
    return Group(table, *map(Text, lines))


def save_heads_figure(board: Scoreboard, drops: Sequence[float], baseline: float, path: Path) -> None:
    """One panel a measure, one bar a head; the best aligner in another colour. Errors as `save_figure` has them."""
    names = [f"layer {head.layer} head {head.head}" for head in board.heads]
    colours = ["#d9822b" if head is board.best else "#2e52a2" for head in board.heads]
    panels = {title: [getattr(head, measure) for head in board.heads] for measure, (title, _) in MEASURES.items()}
    panels[DROP] = list(drops)
    figure = Figure(figsize=(12, 1.6 + 0.24 * len(names)), dpi=100, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True)
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        axis.barh(range(len(names)), values, color=colours)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    for value, style, name in ((board.mean_aer, "--", "average of all maps"), (baseline, ":", "IBM Model 1")):
        axes[0].axvline(value, color="black", linestyle=style, linewidth=1, label=f"{name} {value:.2f}")
    figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=9)
    save_figure(figure, path)
