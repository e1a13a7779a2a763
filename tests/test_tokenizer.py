import io
import re

import pytest
import sentencepiece
from conftest import PAIRS, VOCAB_SIZE
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.data.cleaning import normalise
from mt.special_tokens import BOS, EOS, PAD, UNK
from mt.tokenizer import Tokenizer

SENTENCES = [sentence for pair in PAIRS for sentence in pair]
IDS = {"pad_id": PAD, "unk_id": UNK, "bos_id": BOS, "eos_id": EOS}
TEXTS = [
    "I want a red chair.", "Perché no?", "👩‍🚀🎉", "漢字とかな", "שלום עולם", "مرحبا", "e\u0301 o\u0308\u0323",
    "naïve ﬁ Å ½", "</s>", "<s> hello </s>", "<unk>", "<pad>", "<0x41>", "a <0x0A> b", "▁", "a▁b", "▁▁ a",
    "tab\x00nul", "\u200b", "\ufeff", "a" * 500,
]  # fmt: skip


def sentencepiece_model(**options: object) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=120, minloglevel=2, **options
    )
    return model.getvalue()


@pytest.mark.parametrize("text", TEXTS)
def test_text_in_is_text_out(tokenizer: Tokenizer, text: str) -> None:
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode(ids) == text
    assert not {PAD, UNK, BOS, EOS} & set(ids)
    assert all(tokenizer.decode(ids) == text for ids, _ in tokenizer.candidates(text, 4))


@given(st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=200, deadline=None)
def test_any_normalised_text_comes_back(text: str) -> None:
    sentence = normalise(text)
    (ids,) = shared().encode([sentence])
    assert shared().decode(ids) == sentence


def shared(cache: list[Tokenizer] = []) -> Tokenizer:  # noqa: B006 (hypothesis takes no fixtures)
    if not cache:
        cache.append(Tokenizer.train(SENTENCES, VOCAB_SIZE))
    return cache[0]


def test_an_empty_list_and_an_empty_sentence_are_no_special_case(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode([]) == []
    assert tokenizer.encode(["", "  "]) == [[], []]
    assert tokenizer.decode([]) == ""
    assert tokenizer.pieces([]) == []


def test_special_ids_are_the_constants_and_have_readable_names(tokenizer: Tokenizer) -> None:
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    assert tokenizer.pieces([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]
    assert len(tokenizer) == VOCAB_SIZE
    assert tokenizer.decode([BOS, *tokenizer.encode(["a red chair"])[0], EOS, PAD]) == "a red chair"


def test_candidates_come_best_first_and_the_first_is_the_segmentation_itself(tokenizer: Tokenizer) -> None:
    found = tokenizer.candidates(SENTENCES[0], 8)
    assert found[0][0] == tokenizer.encode(SENTENCES[:1])[0]
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert len({tuple(ids) for ids, _ in found}) == 8


def test_two_trainings_give_the_same_bytes(tokenizer: Tokenizer) -> None:
    assert Tokenizer.train(iter(SENTENCES), VOCAB_SIZE).model == tokenizer.model
    assert Tokenizer(tokenizer.model).encode(SENTENCES) == tokenizer.encode(SENTENCES)


@pytest.mark.parametrize("vocab_size", [50_000, 280, 10, 1, 0, -4])
def test_a_vocabulary_that_the_corpus_cannot_have_is_refused_in_one_line(vocab_size: int) -> None:
    with pytest.raises(ValueError, match=rf"vocab_size={vocab_size}\b|vocabulary of {vocab_size}\b") as error:
        Tokenizer.train(SENTENCES, vocab_size)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("vocab_size", [50_000, 280])
def test_the_size_that_is_said_to_fit_fits(vocab_size: int) -> None:
    with pytest.raises(ValueError, match="fits") as error:
        Tokenizer.train(SENTENCES, vocab_size)
    size = int(re.findall(r"\d+", str(error.value))[-1])
    assert len(Tokenizer.train(SENTENCES, size)) == size


def test_a_corpus_of_nothing_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError) as error:
        Tokenizer.train([], VOCAB_SIZE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ids", [{}, {**IDS, "bos_id": EOS, "eos_id": BOS}, {**IDS, "pad_id": -1}])
def test_a_model_with_other_ids_is_refused(ids: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"pad, unk, bos, eos"):
        Tokenizer(sentencepiece_model(**ids))


@pytest.mark.parametrize("model", [b"", b"not a model", b"\x00" * 100, bytes(range(256))])
def test_what_is_no_model_is_refused(model: bytes) -> None:
    with pytest.raises(ValueError, match=r"model|ids"):
        Tokenizer(model)
