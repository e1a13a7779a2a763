"""Words, alignments, and the scoreboard of heads."""

import copy
import math
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import LEARNT
from jaxtyping import Int
from torch import Tensor, nn

from mt.data.readers import everyday
from mt.inspection.alignment import AlignedPair, aligned_pairs, alignment_error_rate, ibm_model_1
from mt.inspection.attention_maps import AttentionMap, record_weights
from mt.inspection.heads import cross_heads, links, score_heads, switched_off
from mt.inspection.words import WORD, merge, words, words_of
from mt.model.attention import AttentionWeights
from mt.special_tokens import BOS, EOS
from mt.tokenizer import Tokenizer
from mt.training.module import TranslationModule
from mt.training.scores import chrf_drops, score

CROSS = "decoder.layers.0.cross_attention"


def test_pieces_make_words_marks_and_special_pieces() -> None:
    names, of = words_of(["<s>", "▁Vor", "rei", "▁d", "'", "acqua", ",", "▁c", "'", "è", "?", "!", "</s>"])
    assert names == ["<s>", "Vorrei", "d'", "acqua", ",", "c'", "è", "?!", "</s>"]
    assert of == [0, 1, 1, 2, 2, 3, 4, 5, 5, 6, 7, 7, 8]


def test_the_bytes_of_a_character_make_one_word_even_where_some_are_missing() -> None:
    assert words_of(["▁a", "▁", "<0xE7>", "<0x8C>", "<0xAB>", "▁b"]) == (["a", "猫", "b"], [0, 1, 1, 1, 1, 2])
    names, of = words_of(["▁a", "▁", "<0xE7>", "<0x8C>", "</s>"])
    assert len(of) == 5 and names[0] == "a" and names[-1] == "</s>" and "\ufffd" in names[1]


@pytest.mark.parametrize("pieces", [[], ["</s>"], ["▁"], ["▁", "</s>"], ["<s>", "</s>"], ["▁a", "▁"]])
def test_every_piece_has_a_word_and_every_word_a_piece(pieces: list[str]) -> None:
    names, of = words_of(pieces)
    assert len(of) == len(pieces) and set(of) == set(range(len(names)))


def test_words_of_pieces_are_the_words_of_the_sentence(tokenizer: Tokenizer) -> None:
    for pair in aligned_pairs("en", "it"):
        for sentence in (pair.src, pair.tgt):
            names, of = words_of(tokenizer.pieces(tokenizer.encode([sentence])[0]))
            assert [name for name in names if WORD.fullmatch(name)] == words(sentence)
            assert of == sorted(of)


def test_merging_adds_a_keys_pieces_and_averages_a_querys() -> None:
    weights = torch.tensor([[[0.5, 0.2, 0.3], [0.1, 0.1, 0.8], [0.0, 0.0, 1.0]]])
    merged = merge(AttentionMap(CROSS, weights, ["▁ros", "sa", "</s>"], ["▁re", "d", "</s>"]))
    assert (merged.queries, merged.keys) == (["rossa", "</s>"], ["red", "</s>"])
    torch.testing.assert_close(merged.weights, torch.tensor([[[0.45, 0.55], [0.0, 1.0]]]))


def test_the_alignments_are_turned_round_for_the_other_direction_and_refused_for_other_languages() -> None:
    there, back = aligned_pairs("en", "it"), aligned_pairs("it", "en")
    assert len(there) == len(back) == 150
    for a, b in zip(there, back, strict=True):
        assert (a.src, a.tgt) == (b.tgt, b.src) and a.links == {(i, j) for j, i in b.links}
    with pytest.raises(ValueError, match="not en and de"):
        aligned_pairs("en", "de")


def test_the_error_rate_is_that_of_a_sum_by_hand() -> None:
    sure = [{(0, 0), (1, 1)}, {(0, 1)}]
    assert alignment_error_rate(sure, sure) == 0
    assert alignment_error_rate([{(0, 1)}, set()], sure) == 1
    assert alignment_error_rate([{(0, 0), (1, 2)}, {(0, 1)}], sure) == pytest.approx(1 - 2 * 2 / (3 + 3))


def test_ibm_model_1_learns_the_textbook_corpus() -> None:
    """Jurafsky & Martin's and Koehn's: "das Haus", "das Buch", "ein Buch"."""
    pairs = [("das Haus", "the house"), ("das Buch", "the book"), ("ein Buch", "a book")]
    assert ibm_model_1(pairs, iterations=30) == [{(0, 0), (1, 1)}] * 3


def test_ibm_model_1_does_what_plain_loops_do() -> None:
    pairs = list(zip(*(side[:60] for side in everyday("test", "en", "it")), strict=True))
    split = [(["", *words(src.lower())], words(tgt.lower())) for src, tgt in pairs]
    p = {(s, t): 1.0 for src, tgt in split for s in src for t in tgt}
    for _ in range(4):
        count: Counter[tuple[str, str]] = Counter()
        total: Counter[str] = Counter()
        for src, tgt in split:
            for t in tgt:
                z = sum(p[s, t] for s in src)
                for s in src:
                    count[s, t] += p[s, t] / z
                    total[s] += p[s, t] / z
        p = {(s, t): count[s, t] / total[s] for s, t in p}
    for (src, tgt), found in zip(split, ibm_model_1(pairs, iterations=4), strict=True):
        for j, t in enumerate(tgt):
            best = max(p[s, t] for s in src)
            chosen = next((i + 1 for i, other in found if other == j), 0)
            assert p[src[chosen], t] == pytest.approx(best)


class Oracle(nn.Module):
    """A model of two heads: the first looks where the links say, the second at the source's end."""

    def __init__(self, tokenizer: Tokenizer, pair: AlignedPair) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        self.cross_attention = nn.ModuleDict({"weights": AttentionWeights()})
        src, tgt = (words_of([*tokenizer.pieces(ids), "</s>"]) for ids in tokenizer.encode([pair.src, pair.tgt]))
        source, target = ([i for i, name in enumerate(side.names) if WORD.fullmatch(name)] for side in (src, tgt))
        linked = {(source[i], target[j]) for i, j in pair.links}
        self.scores = torch.zeros(1, 2, len(tgt.of), len(src.of))
        for q, word in enumerate(tgt.of):
            for k, other in enumerate(src.of):
                self.scores[0, 0, q, k] = 30.0 * ((other, word) in linked)
        self.scores[0, 1, :, -1] = 50.0

    def forward(self, src: Int[Tensor, "1 S"], tgt_in: Int[Tensor, "1 T"]) -> Tensor:
        return self.cross_attention["weights"](self.scores, torch.ones(1, 1, src.shape[1], dtype=torch.bool))


def test_a_head_that_looks_where_the_links_say_is_perfect_and_one_that_looks_at_the_end_is_seen_to(
    tokenizer: Tokenizer,
) -> None:
    pair = AlignedPair("a red chair.", "una sedia rossa.", frozenset({(0, 0), (1, 2), (2, 1)}))
    right, end = score_heads(Oracle(tokenizer, pair), tokenizer, [pair]).heads
    assert (right.layer, right.head, end.layer, end.head) == (1, 1, 1, 2)
    assert right.aer == 0 and right.eos_share < 0.2 and right.diagonality > 0
    assert end.eos_share == pytest.approx(1) and end.entropy == pytest.approx(0, abs=1e-6) and end.diagonality == 0


def test_entropy_and_diagonality_are_those_of_numpy(module: TranslationModule, tokenizer: Tokenizer) -> None:
    src, tgt = LEARNT[7]
    ids = tokenizer.encode([src, tgt])
    board = score_heads(module.model, tokenizer, [AlignedPair(src, tgt, frozenset({(0, 0)}))])
    maps = record_weights(module.model, torch.tensor([[*ids[0], EOS]]), torch.tensor([[BOS, *ids[1]]]))
    cross = [weights.numpy().astype(float) for name, weights in maps.items() if "cross" in name]
    assert [(h.layer, h.head) for h in board.heads] == [(layer, head) for layer in (1, 2) for head in (1, 2, 3)]
    for score_of, w in zip(board.heads, np.concatenate(cross), strict=True):
        rows = w[:-1]
        assert score_of.entropy == pytest.approx(-(rows * np.log2(np.maximum(rows, 1e-30))).sum() / len(rows), abs=1e-4)
        assert score_of.eos_share == pytest.approx(rows[:, -1].mean(), abs=1e-5)
        q, k = (axis.ravel() for axis in np.indices(rows[:, :-1].shape))
        cov = np.cov(q, k, aweights=rows[:, :-1].ravel(), ddof=0)
        assert score_of.diagonality == pytest.approx(cov[0, 1] / math.sqrt(cov[0, 0] * cov[1, 1]), abs=1e-4)


def test_a_link_is_the_heaviest_word_and_never_a_mark_or_the_end() -> None:
    weights = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.3, 0.1, 0.5, 0.1], [0.25] * 4]])
    assert links(AttentionMap(CROSS, weights, ["▁il", "▁gatto", "</s>"], ["▁the", "▁cat", ".", "</s>"])) == [
        {(1, 0), (0, 1)}
    ]


def test_a_head_that_is_switched_off_is_off_and_the_others_and_what_comes_after_are_not(
    module: TranslationModule, tokenizer: Tokenizer
) -> None:
    ids = torch.tensor([[*tokenizer.encode([LEARNT[0][0]])[0], EOS]]), torch.tensor([[BOS, 20, 21]])
    before = module.model(*ids)
    attention = module.model.get_submodule("decoder.layers.1.cross_attention")
    with switched_off(module.model, "decoder.layers.1.cross_attention", 2):
        off = module.model(*ids)
    assert torch.equal(module.model(*ids), before) and not torch.allclose(off, before)

    columns = torch.arange(attention.output.in_features).view(3, -1)[1]  # what the output makes of head 2
    kept = attention.output.weight.data.clone()
    try:
        attention.output.weight.data[:, columns] = 0
        torch.testing.assert_close(module.model(*ids), off)
    finally:
        attention.output.weight.data = kept


def test_a_drop_is_the_chrf_of_all_heads_less_that_without_one(module: TranslationModule) -> None:
    module = copy.deepcopy(module)
    values = module.model.get_submodule("decoder.layers.1.cross_attention.value")
    values.weight.data.view(3, -1, values.in_features)[1] *= 20  # a head that spoils what the others find
    sources, references = map(list, zip(*LEARNT[:12], strict=True))
    heads = cross_heads(module.model)
    assert heads == [(f"decoder.layers.{layer}.cross_attention", head) for layer in (0, 1) for head in (1, 2, 3)]
    drops = chrf_drops(module.translator, sources, references)
    assert len(drops) == 6 and drops[4] == min(drops) < -1
    with switched_off(module.model, *heads[4]):
        without = score([t.text for t in module.translator.translate(sources, beam=1)], [[r] for r in references]).chrf
    whole = score([t.text for t in module.translator.translate(sources, beam=1)], [[r] for r in references]).chrf
    assert drops[4] == pytest.approx(whole - without)
