import pytest
from sacrebleu import corpus_bleu, corpus_chrf

from mt.training.scores import score

HYPOTHESES = ["Il gatto dorme sul divano.", "Dove si trova la stazione?", "Vorrei un bicchiere d'acqua, grazie!"]
REFERENCES = ["Il gatto sta dormendo sul divano.", "Dov'è la stazione?", "Vorrei un bicchiere d'acqua, per favore!"]
OTHERS = ["Il gatto dorme sul sofà.", "Dove si trova la stazione?", "Mi dia un bicchiere d'acqua, grazie!"]


def test_scores_are_sacrebleus() -> None:
    found = score(HYPOTHESES, [[reference] for reference in REFERENCES])
    assert found.bleu == pytest.approx(corpus_bleu(HYPOTHESES, [REFERENCES]).score)
    assert found.chrf == pytest.approx(corpus_chrf(HYPOTHESES, [REFERENCES]).score)
    assert 10 < found.bleu < 90 and found.sentences == 3


def test_several_references_are_nested_the_right_way() -> None:
    found = score(HYPOTHESES, list(zip(REFERENCES, OTHERS, strict=True)))
    assert found.bleu == pytest.approx(corpus_bleu(HYPOTHESES, [REFERENCES, OTHERS]).score)
    assert found.chrf == pytest.approx(corpus_chrf(HYPOTHESES, [REFERENCES, OTHERS]).score)
    assert found.bleu > score(HYPOTHESES, [[reference] for reference in REFERENCES]).bleu


def test_a_sentence_may_have_fewer_references_than_its_neighbour() -> None:
    found = score(HYPOTHESES, [[REFERENCES[0]], [REFERENCES[1], OTHERS[1]], [REFERENCES[2]]])
    assert found.bleu == pytest.approx(corpus_bleu(HYPOTHESES, [REFERENCES, [None, OTHERS[1], None]]).score)
    assert found.chrf == pytest.approx(corpus_chrf(HYPOTHESES, [REFERENCES, [None, OTHERS[1], None]]).score)


def test_signatures_say_how_it_was_computed() -> None:
    found = score(HYPOTHESES, [[reference] for reference in REFERENCES])
    for signature, words in ((found.bleu_signature, "tok:13a"), (found.chrf_signature, "nc:6")):
        assert {"nrefs:1", words} < set(signature.split("|"))
        assert "version:" in signature


def test_a_perfect_translation_scores_100_and_an_empty_one_0() -> None:
    perfect = score(REFERENCES, [[reference] for reference in REFERENCES])
    assert (perfect.bleu, perfect.chrf) == (pytest.approx(100), pytest.approx(100))
    empty = score(["", "", ""], [[reference] for reference in REFERENCES])
    assert (empty.bleu, empty.chrf) == (0, 0)


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [
        ("one string", [["one"]]),
        (["a", "b"], ["a", "b"]),
        (["a", "b"], "ab"),
        (["a"], [["a"], ["b"]]),
        (["a", "b"], [["a", "b"]]),
        (["a"], [[]]),
        ([], []),
    ],
)
def test_strings_other_lengths_and_nothing_are_refused(hypotheses: list[str], references: list[list[str]]) -> None:
    with pytest.raises(ValueError):
        score(hypotheses, references)
