"""Sentences in, sentences out: a checkpoint is one file, and this is all that is needed to use it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mt.data.batching import grouped, pad
from mt.data.cleaning import normalise
from mt.inspection.attention_maps import AttentionMap, attention_maps
from mt.inspection.explanation import ExplainedWord, explain_words
from mt.inspection.film import Scene
from mt.inspection.words import words_of
from mt.model.build import build_model
from mt.model.encoder_decoder import EncoderDecoder
from mt.model.evaluating import evaluating
from mt.search import Hypothesis, check_options, search
from mt.special_tokens import EOS
from mt.tokenizer import Tokenizer

FORMAT = 1
# What bounds memory, whatever the lines are:
CHUNK = 2_000  # sentences that are sorted by length together; a stream is translated chunk by chunk
CHUNK_CHARACTERS = 200_000  # no further sentence is added to a chunk of as many
EXPLAINED = 128  # pieces: a longer source is translated, but alternatives to all its words would take minutes
LONGEST = 511  # pieces; a longer source is translated in parts
BATCH_TOKENS = 16_384  # a batch's rows × beam × longest source


@dataclass(frozen=True)
class Translation:
    source: str
    hypotheses: list[tuple[str, Hypothesis]]
    """Best first; a blank source has one empty hypothesis."""
    parts: int
    """In how many parts the source was translated: 0 of a blank one, 1 of up to LONGEST pieces."""

    @property
    def text(self) -> str:
        return self.hypotheses[0][0]

    @property
    def best(self) -> Hypothesis:
        return self.hypotheses[0][1]


@dataclass(frozen=True)
class Parting:
    """Where the best hypothesis left the path of greedy search."""

    place: int
    """The first word that differs, counted from 0."""
    word: str
    greedy_word: str
    greedy: str
    """The whole greedy translation."""
    log_probability: float
    """Of the best hypothesis; a beam finds what begins worse and ends better."""
    greedy_log_probability: float


@dataclass(frozen=True)
class Explanation:
    translation: Translation
    words: list[ExplainedWord]
    """Of the best hypothesis; the last one is </s>. None for a blank source, and for one of more than EXPLAINED."""
    parting: Parting | None
    """None where greedy search finds the same."""
    ending: str
    """Why it ended, or why there are no words, as a sentence."""

    @property
    def notes(self) -> list[str]:
        """What there is to say beside the words, in sentences."""
        if not self.words:
            return [self.ending]
        if (p := self.parting) is None:
            return ["Greedy search finds the same.", self.ending]
        if p.log_probability >= p.greedy_log_probability:
            reason = "the beam kept both, and its whole is more probable"
        else:
            reason = "its whole is less probable, but scores better for its length"
        parted = (
            f"Greedy search had {p.greedy_word!r} in place of word {p.place + 1}, {p.word!r}, and ends with: {p.greedy}"
        )
        sums = f"log-probability {p.log_probability:.2f} against {p.greedy_log_probability:.2f}"
        return [parted, f"The best hypothesis is another: {reason} ({sums}).", self.ending]


@dataclass(frozen=True)
class Translator:
    model: EncoderDecoder
    tokenizer: Tokenizer
    src: str
    tgt: str
    beam: int
    length_penalty: float
    """The last two: what the checkpoint was tested with."""

    @classmethod
    def load(cls, checkpoint: str | Path, device: str | torch.device = "cpu") -> "Translator":
        """From a checkpoint of `mt.training`. ValueError, in one line, for any other file; none of it is executed."""
        state = load_checkpoint(checkpoint)
        content = state["mt"]
        prefix = "model."
        try:
            weights = {k.removeprefix(prefix): v for k, v in state["state_dict"].items() if k.startswith(prefix)}
            check_options(**content["decoding"])
            tokenizer = Tokenizer(content["tokenizer"].numpy().tobytes())
            model = build_model(**content["model"])
            model.load_state_dict(weights)
            translator = cls(model.eval(), tokenizer, content["src"], content["tgt"], **content["decoding"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ValueError(
                f"{checkpoint}: damaged, or not of this version: {str(error).splitlines()[-1].strip()}"
            ) from None
        if len(tokenizer) != content["model"]["vocab_size"]:
            sizes = f"{len(tokenizer)} pieces for a model of {content['model']['vocab_size']}"
            raise ValueError(f"{checkpoint}: damaged: a vocabulary of {sizes}")
        if not all(tensor.isfinite().all() for tensor in weights.values()):
            raise ValueError(f"{checkpoint}: its weights are not finite")
        try:
            if torch.device(device).type == "meta":
                raise RuntimeError("it holds no numbers")
            model.to(device)
        except (RuntimeError, AssertionError) as error:  # torch's ways to say: no such device, not compiled for it
            raise ValueError(f"device {device} can't be used: {str(error).splitlines()[0]}") from None
        return translator

    def translate(
        self,
        sentences: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        nbest: int = 1,
        max_length: int | None = None,
        batch_size: int = 128,
    ) -> list[Translation]:
        """One translation a sentence, in order. None: what the checkpoint was tested with. See `mt.search`.

        A source of more than LONGEST pieces is translated in parts, whose hypotheses are joined best with best.
        """
        if isinstance(sentences, str):
            raise TypeError("translate takes a list of sentences, not a single string")
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} is less than 1")
        beam = self.beam if beam is None else beam
        length_penalty = self.length_penalty if length_penalty is None else length_penalty
        check_options(beam=beam, length_penalty=length_penalty, nbest=nbest, max_length=max_length)
        encoded = self.tokenizer.encode([normalise(sentence) for sentence in sentences])
        parts = [[[*part, EOS] for part in self.tokenizer.parts(ids, LONGEST)] for ids in encoded]
        ids = [part for of_sentence in parts for part in of_sentence]
        found: dict[int, list[Hypothesis]] = {}  # by their place in ids
        device = next(self.model.parameters()).device
        with evaluating(self.model):
            for rows in _batches(ids, batch_size, beam):
                hypotheses = search(
                    self.model,
                    pad([ids[i] for i in rows]).to(device),
                    beam=beam,
                    length_penalty=length_penalty,
                    nbest=nbest,
                    max_length=max_length,
                )
                found.update(zip(rows, hypotheses, strict=True))
        of_sentences = grouped((found[i] for i in range(len(ids))), [len(of_sentence) for of_sentence in parts])
        return [
            Translation(sentence, self._joined(hypotheses), len(hypotheses))
            for sentence, hypotheses in zip(sentences, of_sentences, strict=True)
        ]

    def _joined(self, parts: list[list[Hypothesis]]) -> list[tuple[str, Hypothesis]]:
        """The best hypotheses of all parts as one, then the second best; a part that has no more repeats its last."""
        joined = []
        for rank in range(max(map(len, parts), default=1)):
            ranked = [hypotheses[min(rank, len(hypotheses) - 1)] for hypotheses in parts]
            whole = Hypothesis(
                ids=[piece for h in ranked for piece in h.ids],
                score=sum((h.score for h in ranked), 0.0),
                log_probability=sum((h.log_probability for h in ranked), 0.0),
                cut=any(h.cut for h in ranked),
            )
            joined.append((normalise(" ".join(self.tokenizer.decode(h.ids) for h in ranked)), whole))
        return joined

    def attention_maps(self, translation: Translation) -> list[AttentionMap]:
        """What every layer and head looked at, on the way to the best hypothesis. ValueError without attention."""
        src = self._whole(translation.source, LONGEST)
        maps = attention_maps(self.model, self.tokenizer, src, translation.best.ids)
        if not maps:
            raise ValueError("this model has no attention to show")
        return maps

    def scenes(self, sentence: str, **options: Any) -> list[Scene]:
        """For `attention_page`: the finished hypotheses of a beam, each with its maps and the reasons of its words."""
        src = self._whole(sentence, EXPLAINED)
        beam = options.get("beam") or self.beam
        (translation,) = self.translate([sentence], **{**options, "nbest": beam})
        return [
            Scene(
                source=sentence,
                target=text,
                maps=attention_maps(self.model, self.tokenizer, src, hypothesis.ids),
                score=hypothesis.score,
                words=explain_words(self.model, self.tokenizer, src, hypothesis.ids),
            )
            for text, hypothesis in translation.hypotheses
        ]

    def explain(self, sentence: str, **options: Any) -> Explanation:
        """`translate` for one sentence, and why: each word's probability, sources and alternatives, and the end."""
        (translation,) = self.translate([sentence], **options)
        if translation.parts == 0:
            return Explanation(translation, [], None, "The source is blank.")
        if len(src := self._ids(sentence)) > EXPLAINED:
            reason = f"A source of {len(src)} pieces is too long to explain: at most {EXPLAINED}."
            return Explanation(translation, [], None, reason)
        (greedy,) = self.translate([sentence], **{**options, "beam": 1, "nbest": 1})
        words = explain_words(self.model, self.tokenizer, src, translation.best.ids)
        return Explanation(translation, words, self._parting(translation, greedy), _ending(translation, words[-1]))

    def _ids(self, sentence: str) -> list[int]:
        (ids,) = self.tokenizer.encode([normalise(sentence)])
        return ids

    def _whole(self, sentence: str, most: int) -> list[int]:
        """Its ids. ValueError for more than `most`."""
        if len(src := self._ids(sentence)) > most:
            raise ValueError(f"a sentence of {len(src)} pieces is too long to look into: at most {most}")
        return src

    def _parting(self, translation: Translation, greedy: Translation) -> Parting | None:
        names, greedy_names = (words_of(self.tokenizer.pieces([*t.best.ids, EOS])).names for t in (translation, greedy))
        if names == greedy_names:
            return None
        place = next(i for i, pair in enumerate(zip(names, greedy_names, strict=False)) if pair[0] != pair[1])
        sums = translation.best.log_probability, greedy.best.log_probability
        return Parting(place, names[place], greedy_names[place], greedy.text, *sums)

    def translate_stream(self, sentences: Iterable[str], **options: Any) -> Iterator[Translation]:
        """`translate` for more sentences than memory should hold; the same options."""
        if isinstance(sentences, str):
            raise TypeError("translate_stream takes a list of sentences, not a single string")
        chunk, characters = [], 0
        for sentence in sentences:
            chunk.append(sentence)
            characters += len(sentence)
            if len(chunk) == CHUNK or characters >= CHUNK_CHARACTERS:
                yield from self.translate(chunk, **options)
                chunk, characters = [], 0
        yield from self.translate(chunk, **options)


def _ending(translation: Translation, end: ExplainedWord) -> str:
    if translation.best.cut:
        return f"It was cut at {len(translation.best.ids) + 1} pieces, the longest that is allowed."
    other = end.alternatives[0]
    if end.probability >= other.share:
        return f"Its end was the most probable next piece ({end.probability:.0%})."
    return (
        f"Its end had {end.probability:.0%} where {other.word!r} had {other.share:.0%}, "
        "but no longer translation that the beam kept scores better."
    )


def _batches(ids: Sequence[Sequence[int]], batch_size: int, beam: int) -> Iterator[list[int]]:
    """Rows of like length together: at most batch_size, and rows × beam × longest at most BATCH_TOKENS or one row."""
    batch: list[int] = []
    for row in sorted(range(len(ids)), key=lambda i: len(ids[i])):
        if batch and (len(batch) == batch_size or (len(batch) + 1) * beam * len(ids[row]) > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint's content, read as data (no code of it runs) and lazily (the optimizer's state stays on disk)."""
    if not Path(path).is_file():
        raise ValueError(f"no checkpoint at {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # pickle, zip and torch each have their own ways to say it
        raise ValueError(f"{path}: not a checkpoint of mt, or damaged ({type(error).__name__})") from None
    content = state.get("mt") if isinstance(state, dict) else None
    if not isinstance(content, dict) or "state_dict" not in state:
        raise ValueError(f"{path}: not a checkpoint of mt")
    if content.get("format") != FORMAT:
        raise ValueError(f"{path}: checkpoint format {content.get('format')}, this version of mt reads {FORMAT}")
    return state
