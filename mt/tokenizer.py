"""One SentencePiece unigram model for both languages (Kudo 2018), trained in memory; bytes for what it never saw."""

import io
import re
from collections.abc import Iterable, Sequence

import sentencepiece

from mt.special_tokens import BOS, EOS, PAD, UNK

SPACE, STAND_IN = "\u2581", "\ufdd0"
"""SentencePiece writes a space as ▁. Where a user types that, a character that never stands in text takes its place."""


class Tokenizer:
    """Text to ids and back. Every character survives: what has no piece becomes its UTF-8 bytes.

    Control tokens exist as ids only: `</s>` typed by a user is text. Runs of white space become one space.
    """

    def __init__(self, model: bytes) -> None:
        """model: a SentencePiece model file's bytes. ValueError if they are none, or its special ids are others."""
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError:
            raise ValueError("not a SentencePiece model") from None
        p = self._processor
        ids = (p.pad_id(), p.unk_id(), p.bos_id(), p.eos_id())
        if ids != (PAD, UNK, BOS, EOS):
            raise ValueError(f"the tokenizer's ids of pad, unk, bos, eos are {ids}, not {(PAD, UNK, BOS, EOS)}")

    @classmethod
    def train(cls, sentences: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Learn exactly vocab_size pieces. ValueError, with the size that fits, if the sentences can't fill it."""
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.Train(
                sentence_iterator=map(_protect, sentences),
                model_writer=model,
                model_type="unigram",
                vocab_size=vocab_size,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                byte_fallback=True,
                character_coverage=0.9999,
                normalization_rule_name="identity",
                num_threads=1,  # its result depends on the number of threads
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ValueError(_size_that_fits(str(error), vocab_size)) from None
        return cls(model.getvalue())

    def __len__(self) -> int:
        return int(self._processor.GetPieceSize())

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Ids without BOS and EOS."""
        return self._processor.Encode([_protect(s) for s in sentences], num_threads=1)

    def candidates(self, sentence: str, count: int) -> list[tuple[list[int], float]]:
        """The `count` most probable segmentations of a sentence, each with its log-probability, best first."""
        found = self._processor.NBestEncodeAsIds(_protect(sentence), count)
        return [(ids, sum(map(self._processor.GetScore, ids))) for ids in found]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._processor.Decode(list(ids))).replace(STAND_IN, SPACE)

    def parts(self, ids: Sequence[int], most: int) -> list[list[int]]:
        """ids in parts of at most `most`: each ends with a sentence where it can, else with a word. None of no ids."""
        parts, start = [], 0
        while len(ids) - start > most:
            pieces = self.pieces(ids[start : start + most + 1])
            words = [i for i in range(1, most + 1) if pieces[i].startswith(SPACE)]
            sentences = [i for i in words if pieces[i - 1].endswith((".", "!", "?"))]
            end = start + (sentences or words or [most])[-1]
            parts.append(list(ids[start:end]))
            start = end
        return [*parts, list(ids[start:])] if ids else []

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A readable name for every id, special ones included; ▁ stands for a space."""
        return [self._processor.IdToPiece(i) for i in ids]


def _protect(sentence: str) -> str:
    return sentence.replace(SPACE, STAND_IN)


def _size_that_fits(message: str, vocab_size: int) -> str:
    """SentencePiece's complaint as a sentence about vocab_size."""
    if found := re.search(r"value <= (\d+)", message):
        return f"vocab_size={vocab_size} is more than this corpus can fill: at most {found[1]} fits"
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return f"vocab_size={vocab_size} is less than this corpus's characters and bytes: at least {found[1]} fits"
    return f"no vocabulary of {vocab_size} pieces can be learnt from this corpus: {message.splitlines()[0]}"
