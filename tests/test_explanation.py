import itertools
import math

import pytest
import torch
from conftest import LEARNT

from mt.inspection.explanation import _alternatives, _Source, explain_words
from mt.inspection.words import words_of
from mt.special_tokens import BOS, EOS
from mt.tokenizer import Tokenizer
from mt.training.module import TranslationModule
from mt.translator import Translator


@pytest.fixture
def translator(module: TranslationModule) -> Translator:
    return module.translator


def probability(translator: Translator, src: list[int], tgt: list[int], start: int) -> float:
    """Of tgt from place start on, one forward pass a piece."""
    total = 1.0
    for i in range(start, len(tgt)):
        logits = translator.model(torch.tensor([[*src, EOS]]), torch.tensor([[BOS, *tgt[:i]]]))[0, -1]
        total *= logits.softmax(dim=-1)[tgt[i]].item()
    return total


def test_the_words_probabilities_multiply_to_that_of_the_hypothesis(translator: Translator) -> None:
    for source in ("You sell his guitar.", "Anna hides", "xyz 猫"):
        explanation = translator.explain(source)
        found = sum(math.log(word.probability) for word in explanation.words)
        assert found == pytest.approx(explanation.translation.best.log_probability, abs=1e-3)
        assert explanation.words[-1].word == "</s>"


def test_an_alternative_is_a_whole_word_with_the_probability_that_the_model_gives_it(
    translator: Translator, tokenizer: Tokenizer
) -> None:
    source, target = LEARNT[3]
    src, tgt = tokenizer.encode([source, target])
    first = explain_words(translator.model, tokenizer, src, tgt)[0]
    assert first.alternatives and first.word not in [other.word for other in first.alternatives]
    shares = [other.share for other in first.alternatives]
    assert shares == sorted(shares, reverse=True) and sum(shares) + first.probability <= 1.001
    pieces = tokenizer.pieces(tgt)
    length = next(i for i in range(1, len(pieces)) if pieces[i].startswith("▁"))
    assert first.probability == pytest.approx(probability(translator, src, tgt[:length], 0), rel=1e-3)
    known = [o for o in first.alternatives if tokenizer.decode(tokenizer.encode([o.word])[0]) == o.word]
    other = next(o for o in known if len(tokenizer.encode([o.word])[0]) <= 3)
    ids = tokenizer.encode([other.word])[0]
    assert other.share >= probability(translator, src, ids, 0) * 0.999


def test_an_alternative_has_the_probability_of_all_its_pieces_even_where_it_begins_as_the_word_does(
    translator: Translator, tokenizer: Tokenizer
) -> None:
    src, tgt = tokenizer.encode([LEARNT[0][0], LEARNT[35][1]])  # a translation of something else: improbable pieces
    of = words_of(tokenizer.pieces([*tgt, EOS])).of
    with torch.inference_mode():
        source = _Source.read(translator.model, src)
        alternatives = _alternatives(source, tokenizer, tgt, source.log_probs(source.states([tgt])[0]), of)
    starts = [of.index(a.place) for a in alternatives]
    alike = [
        (a, start)
        for a, start in zip(alternatives, starts, strict=True)
        if a.ids[start : start + 1] == tgt[start : start + 1]
    ]
    for a, start in alike[:4]:
        assert math.exp(a.log_probability) == pytest.approx(probability(translator, src, a.ids, start), rel=1e-2)
    assert alike


def test_sources_are_the_words_with_the_most_weight(translator: Translator) -> None:
    explanation = translator.explain("You sell his guitar.")
    for word in explanation.words:
        shares = [source.share for source in word.sources]
        assert len(shares) == 3 and shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 1.0001
        assert {source.word for source in word.sources} <= {"You", "sell", "his", "guitar", ".", "</s>"}


def test_where_beam_and_greedy_part_is_said_and_nowhere_else(translator: Translator) -> None:
    sources = [source for source, _ in LEARNT[::7]]
    sources += [f"{one} and {other}" for one, other in itertools.pairwise(sources)]
    parted = 0
    for source in sources:
        explanation = translator.explain(source, beam=4, length_penalty=0.0)
        (greedy,) = translator.translate([source], beam=1)
        parting = explanation.parting
        if explanation.translation.text == greedy.text:
            assert parting is None or parting.word == parting.greedy_word
            continue
        assert parting is not None and parting.word != parting.greedy_word
        parted += 1
        assert parting.greedy == greedy.text
        assert explanation.words[parting.place].word == parting.word
        assert parting.log_probability >= parting.greedy_log_probability  # without a length penalty
    assert parted > 0


def test_beam_1_never_parts_and_an_end_by_force_is_told_from_one_by_choice(translator: Translator) -> None:
    explanation = translator.explain(LEARNT[0][0], beam=1)
    assert explanation.parting is None and "most probable" in explanation.ending
    assert "cut at 3 pieces" in translator.explain(LEARNT[0][0], beam=1, max_length=3).ending


def test_a_blank_source_is_explained_too(translator: Translator) -> None:
    explanation = translator.explain("  ")
    assert explanation.words == [] and explanation.parting is None and "blank" in explanation.ending


def test_a_model_in_training_is_explained_without_dropout_and_goes_on_training(translator: Translator) -> None:
    expected = translator.explain(LEARNT[5][0])
    translator.model.train()
    try:
        assert translator.explain(LEARNT[5][0]) == expected
        assert translator.model.training
    finally:
        translator.model.eval()
