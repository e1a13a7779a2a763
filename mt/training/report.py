"""The end of a run: the test, and what somebody who waited for it wants to know."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mt.data.corpus import Report
from mt.training.scores import Scores, chrf_by_length, score
from mt.translator import Translation, Translator


def corpus_table(report: Report, title: str) -> Table:
    """Pairs read, left out by reason, and kept, a column a split."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for split in report:
        table.add_column(split, justify="right")
    table.add_row("read", *(f"{part['read']:,}" for part in report.values()))
    for reason in dict.fromkeys(reason for part in report.values() for reason in part["dropped"]):
        cells = [f"{part['dropped'].get(reason, 0):,}" for part in report.values()]
        first = next((part["first"][reason] for part in report.values() if reason in part["first"]), None)
        table.add_row(f"- {reason}" + (f" (first: {first})" if first else ""), *cells)
    table.add_row("kept", *(f"{part['kept']:,}" for part in report.values()), style="bold")
    return table


def translation_table(translations: Sequence[Translation], references: Sequence[str]) -> Table:
    table = Table(title="Translations of the test", title_justify="left", show_lines=True)
    for name in ("source", "translation", "reference"):
        table.add_column(name, ratio=1)
    for translation, reference in zip(translations, references, strict=True):
        table.add_row(translation.source, translation.text, reference)
    return table


@dataclass(frozen=True)
class Evaluation:
    scores: Scores
    translations: list[Translation]
    references: list[str]


def evaluate(translator: Translator, sources: Sequence[str], references: Sequence[str]) -> Evaluation:
    """Translate with the checkpoint's own decoding, and score against one reference a sentence."""
    translations = translator.translate(sources)
    scores = score([t.text for t in translations], [[reference] for reference in references])
    return Evaluation(scores, translations, list(references))


def write_summary(path: Path, results: dict[str, Evaluation], **values: Any) -> dict[str, Any]:
    """summary.json: the scores of each split under its name, and values beside them."""
    summary: dict[str, Any] = {}
    for split, result in results.items():
        named = asdict(result.scores)
        signature = {"bleu": named.pop("bleu_signature"), "chrf": named.pop("chrf_signature")}
        sources, found = [t.source for t in result.translations], [t.text for t in result.translations]
        by_length = chrf_by_length(sources, found, result.references)
        summary[split] = {**named, "chrf_by_length": by_length, "signature": signature}
    summary.update(values)
    path.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return summary


def print_report(console: Console, summary: dict[str, Any], test: Evaluation) -> None:
    step = max(1, len(test.translations) // 10)
    console.print(translation_table(test.translations[::step][:10], test.references[::step][:10]))
    scores = test.scores
    console.print(
        f"BLEU {scores.bleu:.1f}  chrF {scores.chrf:.1f}  on {scores.sentences:,} test sentences", style="bold"
    )
    console.print(f"{scores.bleu_signature}\n{scores.chrf_signature}", highlight=False, style="dim")
    console.print(
        f"{summary['parameters']:,} parameters, {summary['tokens_per_second']:,.0f} target tokens/s, "
        f"{summary['train_seconds'] / 60:.1f} minutes of training",
        highlight=False,
    )
