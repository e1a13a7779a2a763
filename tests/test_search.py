import itertools
import math
import zlib
from collections.abc import Mapping
from functools import cache

import pytest
import torch
from conftest import PAIRS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from mt.model.encoder_decoder import EncoderDecoder
from mt.model.transformer import Transformer
from mt.search import default_max_length, search
from mt.special_tokens import BOS, EOS, PAD, UNK
from mt.tokenizer import Tokenizer
from mt.training.module import TranslationModule

V = 7  # the special ids, and three words
WORDS = range(4, V)
Prefixes = list[list[tuple[int, ...]]]  # of every hypothesis of every sentence
SRC = torch.tensor([[4, 5, 6, 7, 8, 9, EOS], [10, 11, 4, EOS, PAD, PAD, PAD]])


class Table:
    """A model without weights: the next piece's logits are drawn once for every source and prefix, or written down."""

    def __init__(self, seed: int = 0, known: Mapping[tuple[int, ...], Mapping[int, float]] | None = None) -> None:
        self.seed = seed
        self.known = known or {}
        self.rows: list[int] = []

    def log_probs(self, source: int, prefix: tuple[int, ...]) -> Tensor:
        if (probabilities := self.known.get((source, *prefix))) is not None:
            return torch.tensor([probabilities.get(i, 0.0) for i in range(V)]).log()
        return drawn(zlib.crc32(repr((self.seed, source, prefix)).encode())).clone()

    def start(self, src: Tensor) -> tuple[list[int], Prefixes]:
        return src[:, 0].tolist(), [[()] for _ in src]

    def step(self, state: tuple[list[int], Prefixes], last: Tensor) -> tuple[tuple[list[int], Prefixes], Tensor]:
        sources, prefixes = state
        self.rows.append(len(sources))
        longer = [[(*p, i) for p, i in zip(*row, strict=True)] for row in zip(prefixes, last.tolist(), strict=True)]
        assert all(p[0] == BOS for row in longer for p in row)
        logits = [[self.log_probs(s, p[1:]) for p in row] for s, row in zip(sources, longer, strict=True)]
        return (sources, longer), torch.stack([torch.stack(row) for row in logits])

    def select(
        self, state: tuple[list[int], Prefixes], sentences: Tensor, parents: Tensor
    ) -> tuple[list[int], Prefixes]:
        pairs = list(zip(sentences.tolist(), parents.tolist(), strict=True))
        return [state[0][s] for s, _ in pairs], [[state[1][s][p] for p in row] for s, row in pairs]


@cache
def drawn(seed: int) -> Tensor:
    return torch.randn(V, generator=torch.Generator().manual_seed(seed)).mul(2).log_softmax(dim=0)


def brute_force(table: Table, source: int, max_length: int) -> dict[tuple[int, ...], float]:
    """Every translation with its log-probability."""
    return {
        words: sum(table.log_probs(source, words[:i])[piece].item() for i, piece in enumerate((*words, EOS)))
        for length in range(max_length)
        for words in itertools.product(WORDS, repeat=length)
    }


def greedy(model: Transformer, src: Tensor, bound: int) -> list[int]:
    """Everything computed anew at every step."""
    ids: list[int] = []
    while len(ids) + 1 < bound:
        logits = model(src, torch.tensor([[BOS, *ids]]))[0, -1]
        logits[[PAD, UNK, BOS]] = -torch.inf
        if (best := int(logits.argmax())) == EOS:
            break
        ids.append(best)
    return ids


@pytest.fixture(scope="module")
def learnt(module: TranslationModule) -> Transformer:
    """A model whose translations end, some of them."""
    return module.model


@pytest.fixture(scope="module")
def sources(tokenizer: Tokenizer) -> list[Tensor]:
    """Of many lengths; half of them were learnt."""
    sentences = [source for source, _ in PAIRS[::9]]
    sentences += ["two", "a red", "a chair?", "his old", "I want a red chair. " * 3]
    return [torch.tensor([*ids, EOS]) for ids in tokenizer.encode(sentences)]


def test_a_length_penalty_may_be_a_whole_number_however_long_the_source() -> None:
    class Talkative(Table):
        def log_probs(self, source: int, prefix: tuple[int, ...]) -> Tensor:
            return torch.zeros(V).scatter(0, torch.tensor([EOS, WORDS[0]]), torch.tensor([0.1, 0.9])).log()

    sources = torch.tensor([[4] * 58 + [EOS]])
    for penalty in (10, 10.0):
        ((best,),) = search(Talkative(), sources, beam=4, length_penalty=penalty)
        assert best.ids == [WORDS[0]] * (default_max_length(59) - 1)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("nbest", [1, 3, 40])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_as_wide_as_all_translations_equals_brute_force(length_penalty: float, nbest: int, seed: int) -> None:
    table, max_length, everything = Table(seed), 4, 1 + 3 + 9 + 27
    sources = torch.tensor([[4, EOS], [5, EOS]])
    found = search(table, sources, beam=everything, nbest=nbest, length_penalty=length_penalty, max_length=max_length)
    for source, hypotheses in zip((4, 5), found, strict=True):
        expected = brute_force(table, source, max_length)
        scores = {words: p / (len(words) + 1) ** length_penalty for words, p in expected.items()}
        assert [tuple(h.ids) for h in hypotheses] == sorted(scores, key=lambda words: -scores[words])[:nbest]
        for h in hypotheses:
            assert h.log_probability == pytest.approx(expected[tuple(h.ids)], abs=1e-4)
            assert h.score == pytest.approx(scores[tuple(h.ids)], abs=1e-4)


@given(seed=st.integers(0, 10**6), beam=st.integers(1, 9), length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]))
@settings(max_examples=30, deadline=None)
def test_no_beam_finds_more_than_there_is_and_every_score_is_what_it_says(
    seed: int, beam: int, length_penalty: float
) -> None:
    table, nbest = Table(seed), (beam + 1) // 2
    (found,) = search(
        table, torch.tensor([[4, EOS]]), beam=beam, nbest=nbest, length_penalty=length_penalty, max_length=5
    )
    expected = brute_force(table, 4, 5)
    assert len(found) == nbest
    assert len({tuple(h.ids) for h in found}) == nbest
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    for h in found:
        assert h.log_probability == pytest.approx(expected[tuple(h.ids)], abs=1e-4)
        assert h.score == pytest.approx(h.log_probability / (len(h.ids) + 1) ** length_penalty)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_a_beam_of_1_equals_a_greedy_loop_that_recomputes_everything(
    learnt: Transformer, sources: list[Tensor], length_penalty: float
) -> None:
    expected = [greedy(learnt, row[None], 11) for row in sources]
    found = [search(learnt, row[None], beam=1, length_penalty=length_penalty, max_length=11) for row in sources]
    assert [hypothesis.ids for ((hypothesis,),) in found] == expected
    assert {len(ids) < 10 for ids in expected} == {True, False}, "some end, some are cut"


def test_a_cached_steps_logits_equal_those_of_the_whole_sequence(any_model: EncoderDecoder) -> None:
    tgt = torch.tensor([[BOS, 12, 13, 14, 15], [BOS, 16, 17, 18, 4]])
    whole = any_model(SRC, tgt)
    state = any_model.start(SRC)
    for t, last in enumerate(tgt.T):
        state, logits = any_model.step(state, last[:, None])
        torch.testing.assert_close(logits[:, 0], whole[:, t], atol=1e-5, rtol=1e-5)


def test_the_cache_follows_the_hypotheses_that_are_selected(any_model: EncoderDecoder) -> None:
    state, _ = any_model.step(any_model.start(SRC), torch.full((2, 1), BOS))
    state = any_model.select(state, torch.tensor([0, 1]), torch.zeros(2, 3, dtype=torch.long))
    state, _ = any_model.step(state, torch.tensor([[12, 13, 14], [15, 16, 17]]))
    state = any_model.select(state, torch.tensor([1]), torch.tensor([[2, 0, 2]]))  # the first sentence leaves
    _, logits = any_model.step(state, torch.tensor([[4, 5, 6]]))
    prefixes = torch.tensor([[BOS, 17, 4], [BOS, 15, 5], [BOS, 17, 6]])
    torch.testing.assert_close(logits[0], any_model(SRC[1:].expand(3, -1), prefixes)[:, -1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length_penalty", [0.0, 1.3])
def test_a_score_is_the_sum_of_the_log_probabilities_that_forward_gives(
    learnt: Transformer, sources: list[Tensor], length_penalty: float
) -> None:
    for src in sources[::3]:
        for h in search(learnt, src[None], beam=5, nbest=5, length_penalty=length_penalty)[0]:
            tgt_in, tgt_out = torch.tensor([[BOS, *h.ids]]), torch.tensor([*h.ids, EOS])
            total = -F.cross_entropy(learnt(src[None], tgt_in)[0], tgt_out, reduction="sum").item()
            assert h.log_probability == pytest.approx(total, abs=1e-3)
            assert h.score == pytest.approx(total / (len(h.ids) + 1) ** length_penalty, abs=1e-3)


def test_a_longer_hypothesis_wins_where_the_penalty_says_so() -> None:
    table = Table(known={(9,): {EOS: 0.51, 4: 0.49}, (9, 4): {5: 0.9, 6: 0.1}, (9, 4, 5): {EOS: 0.9, 6: 0.1}})
    src = torch.tensor([[9, EOS]])
    short, long = math.log(0.51), math.log(0.49 * 0.9 * 0.9)
    for length_penalty, ids, score in ((0.0, [], short), (1.0, [4, 5], long / 3)):
        ((best,),) = search(table, src, beam=2, length_penalty=length_penalty, max_length=6)
        assert (best.ids, best.score) == (ids, pytest.approx(score, abs=1e-5))


def test_the_bound_holds_and_the_result_says_that_it_was_cut() -> None:
    on = {4: 0.9, EOS: 0.1}
    never_ends = Table(known={(9, *[4] * n): on for n in range(30)})
    ends_there = Table(known={(9,): on, (9, 4): on, (9, 4, 4): {EOS: 0.9, 4: 0.1}})
    src = torch.tensor([[9, 4, EOS]])
    for table, cut in ((never_ends, True), (ends_there, False)):
        ((h,),) = search(table, src, beam=1, length_penalty=1.0, max_length=3)
        assert (h.ids, h.cut) == ([4, 4], cut)


def test_the_bound_follows_each_sources_own_length(model: Transformer) -> None:
    model.decoder.norm.bias.data = 10 * model.embedding.token.weight.data[7]  # says 7 for ever
    found = search(model, SRC, beam=1, length_penalty=1.0)
    assert [(len(h.ids) + 1, h.cut) for (h,) in found] == [(2 * 7 + 10, True), (2 * 4 + 10, True)]
    assert default_max_length(7) == 24


def test_a_finished_sentence_leaves_and_the_others_go_on() -> None:
    at_once = {(9,): {EOS: 1.0}}
    later = {(8,): {4: 1.0}, (8, 4): {5: 1.0}, (8, 4, 5): {EOS: 1.0}}
    table = Table(known=at_once | later)
    found = search(table, torch.tensor([[9, EOS], [8, EOS], [9, EOS]]), beam=1, length_penalty=1.0)
    assert [h.ids for (h,) in found] == [[], [4, 5], []]
    assert table.rows == [3, 1, 1]


@pytest.mark.parametrize("beam", [1, 4])
def test_a_batch_finds_what_its_sentences_find_one_by_one(
    learnt: Transformer, sources: list[Tensor], beam: int
) -> None:
    batch = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=PAD)
    together = search(learnt, batch, beam=beam, nbest=beam, length_penalty=0.6)
    alone = [search(learnt, row[None], beam=beam, nbest=beam, length_penalty=0.6)[0] for row in sources]
    for a, b in zip(together, alone, strict=True):
        assert [(h.ids, h.cut) for h in a] == [(h.ids, h.cut) for h in b]
        assert [h.score for h in a] == pytest.approx([h.score for h in b], abs=1e-4)


def test_padding_unk_and_bos_are_never_produced() -> None:
    class Wrong(Table):
        def log_probs(self, source: int, prefix: tuple[int, ...]) -> Tensor:
            logits = super().log_probs(source, prefix)
            logits[[PAD, UNK, BOS]] += 20
            return logits

    (found,) = search(Wrong(), torch.tensor([[4, EOS]]), beam=20, nbest=20, length_penalty=0.0, max_length=4)
    assert {i for h in found for i in h.ids} == set(WORDS)
    assert all(math.isfinite(h.score) for h in found)


def test_a_beam_wider_than_everything_gives_what_there_is() -> None:
    (found,) = search(Table(), torch.tensor([[4, EOS]]), beam=50, nbest=50, length_penalty=1.0, max_length=2)
    assert sorted(h.ids for h in found) == [[], [4], [5], [6]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam": 0}, "beam=0"),
        ({"beam": 2, "nbest": 3}, "beam=2, nbest=3"),
        ({"nbest": 0}, "nbest=0"),
        ({"length_penalty": -0.5}, "length_penalty=-0.5"),
        ({"length_penalty": math.nan}, "length_penalty=nan"),
        ({"length_penalty": math.inf}, "length_penalty=inf"),
        ({"max_length": 0}, "max_length=0"),
        ({"max_length": -1}, "max_length=-1"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search(Table(), torch.tensor([[4, EOS]]), **{"beam": 1, "length_penalty": 1.0, "max_length": 4} | wrong)
