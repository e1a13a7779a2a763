"""A translation's attention and its explanation for a terminal, legible without colour."""

import unicodedata
from collections.abc import Sequence

import torch
from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from mt.inspection.attention_maps import AttentionMap, cross_maps
from mt.inspection.explanation import ExplainedWord, Share

# Viridis: dark for a little, bright for much. A 0 keeps the terminal's own background.
COLOURS = ["#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"]
LABEL = 14
"""Characters of a piece that are shown."""


def terminal_map(maps: list[AttentionMap], width: int) -> Constrain:
    """What each target piece looked at in the source, no wider than width: the mean over all heads of all layers.

    Which one head or layer aligns best is known only with the answer in hand; their mean asks for no choice.
    Where the source's EOS takes more than half of the weight, its column gives way to a percentage after each row.
    """
    cross = cross_maps(maps)
    limit = max(1, min(LABEL, width // 4))
    queries = [_shown(piece, limit) for piece in cross[0].queries]
    keys = [_shown(piece, limit) for piece in cross[0].keys]
    weights = torch.cat([m.weights for m in cross]).mean(dim=0)
    eos, eos_weights = keys[-1], weights[:, -1]
    eos_hidden = len(keys) > 1 and eos_weights.mean().item() > 0.5
    if eos_hidden:
        keys, weights = keys[:-1], weights[:, :-1]

    margin = max(map(len, queries)) + 1
    room = max(1, width - margin - 5 * eos_hidden)
    flat = max(map(len, keys)) + 1
    cell = next((size for size in (flat, 2) if size * len(keys) <= room), 1)
    fitting = keys[:room]
    largest = weights[:, : len(fitting)].max().item() or 1.0

    lines = [Text(" " * margin + line, no_wrap=True) for line in _header(fitting, cell)]
    lines[-1].append(f"{eos:>5}" if eos_hidden else "")
    for query, row, eos_weight in zip(queries, weights.tolist(), eos_weights.tolist(), strict=True):
        line = Text(f"{query:>{margin - 1}} ", no_wrap=True)
        for weight in row[: len(fitting)]:
            _append_cell(line, int(9 * (weight / largest)), cell)
        lines.append(line.append(f"{eos_weight:5.0%}" if eos_hidden else ""))

    heads = sum(len(m.weights) for m in cross)
    lines.append(Text(f"row: piece produced; column: source piece looked at; mean of {heads} heads"))
    legend = Text("weight:")
    for digit in range(10):
        _append_cell(legend.append(" "), digit, 1)
    lines.append(legend.append(f" from 0 to {largest:.0%}, the largest shown"))
    note = f"{eos}, the source's end, takes {eos_weights.mean().item():.0%} of all weight"
    lines.append(Text(note + (": column hidden, shares at right" if eos_hidden else "")))
    if len(fitting) < len(keys):
        lines.append(Text(f"the last {len(keys) - len(fitting)} of {len(keys)} columns don't fit and are left out"))
    return Constrain(Group(*lines), width)


def explanation_table(words: Sequence[ExplainedWord], notes: Sequence[str]) -> Group:
    """A row a target word, the notes below."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("word")
    table.add_column("p", justify="right")
    table.add_column("looked at")
    table.add_column("or else")
    for word in words:
        table.add_row(
            *map(Text, (word.word, f"{word.probability:.0%}", _listed(word.sources), _listed(word.alternatives)))
        )
    return Group(*([table] if words else []), *map(Text, notes))


def _listed(shares: Sequence[Share]) -> str:
    """Without those below one percent."""
    return ", ".join(f"{share.word} {share.share:.0%}" for share in shares if share.share >= 0.01)


def _shown(piece: str, limit: int) -> str:
    """At most limit characters, each one column wide: wide, invisible and control characters become □."""
    piece = unicodedata.normalize("NFC", piece)
    piece = piece if len(piece) <= limit else piece[: limit - 1] + "…"
    return "".join(c if c.isprintable() and cell_len(c) == 1 else "□" for c in piece)


def _header(keys: list[str], cell: int) -> list[str]:
    """Labels in one line where they fit into their cells, else upright, one letter a line."""
    if max(map(len, keys)) < cell:
        return ["".join(key.center(cell) for key in keys)]
    height = max(map(len, keys))
    upright = zip(*(key.rjust(height) for key in keys), strict=True)
    return ["".join(letter.center(cell) for letter in letters) for letters in upright]


def _append_cell(line: Text, digit: int, cell: int) -> None:
    if digit == 0:
        line.append("·".center(cell), style="dim")
    else:
        line.append(str(digit).center(cell), style=f"{'#ffffff' if digit < 5 else '#000000'} on {COLOURS[digit - 1]}")
