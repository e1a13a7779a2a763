"""Corpus BLEU and chrF of detokenised text, by sacreBLEU, with their signatures (Post 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from mt.inspection.heads import cross_heads, switched_off
from mt.translator import Translator


@dataclass(frozen=True)
class Scores:
    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str
    sentences: int


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """references: one or more for every hypothesis. ValueError for lists of other lengths, and for strings."""
    if isinstance(hypotheses, str) or any(isinstance(r, str) for r in references):
        raise ValueError("score takes lists of sentences, with a list of references for each")
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses and {len(references)} references")
    if not hypotheses or not all(references):
        raise ValueError("nothing to score, or a sentence without a reference")
    most = max(map(len, references))
    # sacreBLEU wants one list per position of a reference; None where a sentence has fewer.
    streams: Any = [[r[i] if i < len(r) else None for r in references] for i in range(most)]
    bleu, chrf = BLEU(), CHRF()
    return Scores(
        bleu=bleu.corpus_score(hypotheses, streams).score,
        chrf=chrf.corpus_score(hypotheses, streams).score,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(hypotheses),
    )


LENGTHS = {"1-5": range(1, 6), "6-8": range(6, 9), "9+": range(9, 10**9)}
"""Words of a source sentence."""


def chrf_by_length(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """chrF of the short, the middling and the long sentences alone; a group without sentences is left out."""
    result = {}
    for name, words in LENGTHS.items():
        rows = [i for i, source in enumerate(sources) if len(source.split()) in words]
        if rows:
            result[name] = score([hypotheses[i] for i in rows], [[references[i]] for i in rows]).chrf
    return result


def chrf_drops(translator: Translator, sources: Sequence[str], references: Sequence[str]) -> list[float]:
    """What greedy translations lose with a cross-attention head switched off: each head, in `score_heads`' order."""

    def chrf() -> float:
        found = translator.translate(sources, beam=1)
        return score([t.text for t in found], [[reference] for reference in references]).chrf

    whole, drops = chrf(), []
    for name, head in cross_heads(translator.model):
        with switched_off(translator.model, name, head):
            drops.append(whole - chrf())
    return drops
