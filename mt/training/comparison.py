"""Runs side by side, from the summary.json that each of them leaves: a table and a chart."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from mt.training.scores import LENGTHS


@dataclass(frozen=True)
class Run:
    """name: the overrides in which it differs from the other runs; scores are of the test."""

    name: str
    parameters: int
    minutes: float
    bleu: float
    chrf: float
    chrf_by_length: dict[str, float]


def read_runs(folders: Iterable[str | Path]) -> list[Run]:
    """All finished runs in the folders and below, best chrF first. ValueError, in one line, where there is none."""
    summaries = {}
    for folder in folders:
        found = sorted(Path(folder).glob("**/summary.json"))
        if not found:
            raise ValueError(f"no summary.json in {folder} or below: is it a run that has ended?")
        for path in found:
            try:
                summaries[path] = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                raise ValueError(f"{path}: not a summary of a run") from None
    try:
        names = _names({path: summary["overrides"] for path, summary in summaries.items()})
        runs = [
            Run(
                name=names[path],
                parameters=summary["parameters"],
                minutes=summary["train_seconds"] / 60,
                bleu=summary["test"]["bleu"],
                chrf=summary["test"]["chrf"],
                chrf_by_length=summary["test"]["chrf_by_length"],
            )
            for path, summary in summaries.items()
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"a summary.json of another version of mt: it has no {error}") from None
    return sorted(runs, key=lambda run: run.chrf, reverse=True)


def _names(overrides: dict[Path, list[str]]) -> dict[Path, str]:
    """What only some runs were started with; its value alone where it is one thing everywhere; else the folder."""
    common = set.intersection(*map(set, overrides.values()))
    own = {path: [o.lstrip("+") for o in given if o not in common] for path, given in overrides.items()}
    keys = {o.partition("=")[0] for given in own.values() for o in given}
    if len(keys) == 1 and all(len(given) == 1 for given in own.values()):
        own = {path: [given[0].partition("=")[2]] for path, given in own.items()}
    return {path: " ".join(given) or path.parent.name for path, given in own.items()}


def comparison_table(runs: list[Run]) -> str:
    """Markdown, aligned. The last columns are chrF of the sentences whose source has so many words."""
    rows = [["run", "parameters", "minutes", "BLEU", "chrF", *(f"chrF, {words} words" for words in LENGTHS)]]
    for run in runs:
        lengths = [f"{run.chrf_by_length[words]:.1f}" if words in run.chrf_by_length else "" for words in LENGTHS]
        parameters = f"{run.parameters / 1e6:.2f} M"
        rows.append([run.name, parameters, f"{run.minutes:.1f}", f"{run.bleu:.1f}", f"{run.chrf:.1f}", *lengths])
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [
        " | ".join([row[0].ljust(first), *(cell.rjust(n) for cell, n in zip(row[1:], others, strict=True))])
        for row in rows
    ]
    lines.insert(1, " | ".join(["-" * first, *("-" * (n - 1) + ":" for n in others)]))
    return "\n".join(f"| {line} |" for line in lines)


def comparison_figure(runs: list[Run]) -> Figure:
    """A row a run: BLEU, chrF by the source's length, minutes of training, parameters."""
    figure = Figure(figsize=(11, 1.4 + 0.34 * len(runs)), dpi=100, facecolor="white", layout="constrained")
    scores, lengths, minutes, parameters = figure.subplots(1, 4, sharey=True, width_ratios=(3, 5, 2, 2))
    rows = range(len(runs))
    for axes, title, values, form in (
        (scores, "BLEU", [run.bleu for run in runs], "{:.1f}"),
        (minutes, "minutes", [run.minutes for run in runs], "{:.1f}"),
        (parameters, "million parameters", [run.parameters / 1e6 for run in runs], "{:.2f}"),
    ):
        bars = axes.barh(rows, values, color="#8fbfdc", height=0.7)
        axes.bar_label(bars, [form.format(value) for value in values], padding=2, fontsize=8)
        axes.set_xlim(0, 1.35 * max(values) or 1)
        axes.set_title(title, fontsize=10)
    for (words, colour), marker in zip(
        zip(LENGTHS, ("#7cc4a0", "#2f7fb8", "#3b2a6b"), strict=True), "o^s", strict=True
    ):
        points = [(run.chrf_by_length[words], row) for row, run in enumerate(runs) if words in run.chrf_by_length]
        if points:
            lengths.plot(*zip(*points, strict=True), marker, color=colour, markersize=6, label=f"{words} words")
    lengths.set_title("chrF by the source's length", fontsize=10)
    lengths.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=len(LENGTHS), fontsize=8, frameon=False)
    lengths.grid(color="0.9")
    for axes in (scores, lengths, minutes, parameters):
        axes.set_axisbelow(True)
        axes.tick_params(length=0, labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (scores, minutes, parameters):
        axes.set_xticks([])
    scores.set_yticks(rows, [run.name for run in runs], parse_math=False)
    scores.invert_yaxis()
    return figure
