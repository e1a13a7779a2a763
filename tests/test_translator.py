import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LEARNT, PAIRS

from mt.data.cleaning import normalise
from mt.tokenizer import Tokenizer
from mt.training.module import TranslationModule
from mt.translator import BATCH_TOKENS, CHUNK, CHUNK_CHARACTERS, LONGEST, Translator, _batches

SOURCES = [source for source, _ in LEARNT]
STRANGE = [
    "", "I want two boxes.", "   ", "\t\n", "👩‍🚀🎉", "\u2028", "I want\u2028two boxes.", "</s>", "<0x41>", "שלום",
    "漢字", "\u200b", "▁", "a\x00b", "!", "I WANT TWO BOXES", "",
]  # fmt: skip


@pytest.fixture(scope="module")
def translator(module: TranslationModule, tmp_path_factory: pytest.TempPathFactory) -> Translator:
    content = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(content)
    path = tmp_path_factory.mktemp("run à é") / "best.ckpt"
    torch.save(content, path)
    return Translator.load(path)


def texts(translator: Translator, sentences: list[str], **options: Any) -> list[str]:
    return [t.text for t in translator.translate(sentences, **options)]


def test_a_loaded_checkpoint_translates_what_was_learnt(translator: Translator) -> None:
    found = texts(translator, SOURCES)
    right = sum(text == reference for text, (_, reference) in zip(found, LEARNT, strict=True))
    assert right > 0.8 * len(LEARNT)


def test_it_loads_what_the_module_was_trained_with(checkpoint: Path, module: TranslationModule) -> None:
    loaded = Translator.load(str(checkpoint))
    assert (loaded.src, loaded.tgt, loaded.beam, loaded.length_penalty) == ("en", "it", 3, 1.0)
    assert loaded.tokenizer.model == module.translator.tokenizer.model
    assert not loaded.model.training
    assert texts(loaded, SOURCES[:20]) == texts(module.translator, SOURCES[:20])
    assert texts(loaded, SOURCES[:20]) == texts(loaded, SOURCES[:20], beam=3, length_penalty=1.0)


def test_a_checkpoint_stands_alone(checkpoint: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.bin"
    checkpoint.rename(moved)
    loaded = Translator.load(moved)
    moved.unlink()
    gc.collect()
    assert texts(loaded, SOURCES[:2])


def test_n_sentences_in_are_n_out_whatever_is_in_them(translator: Translator) -> None:
    found = translator.translate(STRANGE)
    assert [t.source for t in found] == STRANGE
    for translation in found:
        assert bool(translation.source.split()) or translation.text == ""
        assert not {"\n", "\r", "\u2028"} & set(translation.text)
    assert found[1].text == texts(translator, ["I want two boxes."])[0] == found[6].text
    assert translator.translate([]) == []
    assert texts(translator, ["", " "], nbest=2) == ["", ""]


def test_a_byte_of_the_command_line_that_is_not_utf8_is_no_reason_to_stop(translator: Translator) -> None:
    found = translator.translate([SOURCES[0], "caf\udce9", SOURCES[1]])  # what sys.argv holds for b"caf\xe9"
    assert [found[0].text, found[2].text] == texts(translator, SOURCES[:2])


def test_order_is_kept_and_a_batch_is_its_sentences_one_by_one(translator: Translator) -> None:
    sentences = [*SOURCES[::5], "two", *STRANGE[:10], "a small mirror and " * 5]
    one_by_one = [texts(translator, [sentence])[0] for sentence in sentences]
    assert texts(translator, sentences) == one_by_one
    assert texts(translator, sentences[::-1]) == one_by_one[::-1]


@pytest.mark.parametrize("batch_size", [1, 3, 1_000])
def test_any_batch_size_gives_the_same(translator: Translator, batch_size: int) -> None:
    expected = [t.hypotheses for t in translator.translate(SOURCES[::3], nbest=3)]
    found = [t.hypotheses for t in translator.translate(SOURCES[::3], nbest=3, batch_size=batch_size)]
    assert [[text for text, _ in one] for one in found] == [[text for text, _ in one] for one in expected]
    scores = [[h.score for _, h in one] for one in found]
    assert scores == [pytest.approx([h.score for _, h in one], abs=1e-4) for one in expected]


def test_a_batch_never_has_more_rows_or_pieces_than_it_should() -> None:
    ids = [[7] * length for length in (9_000, 3, 1, 4_000, 200, 3, 2, 90, 4_096, 0)]
    batches = list(_batches(ids, 3, beam=5))
    assert sorted(i for batch in batches for i in batch) == list(range(len(ids)))
    for batch in batches:
        assert len(batch) == 1 or 5 * len(batch) * max(len(ids[i]) for i in batch) <= BATCH_TOKENS
        assert len(batch) <= 3


def test_a_stream_gives_what_a_list_gives_and_reads_no_further_than_it_must(translator: Translator) -> None:
    taken = 0

    def endless() -> Any:
        nonlocal taken
        while True:
            yield SOURCES[taken % 3] if taken % 97 == 0 else ""
            taken += 1

    stream = translator.translate_stream(endless(), beam=1)
    first = [next(stream) for _ in range(CHUNK)]
    assert taken <= CHUNK
    assert first == translator.translate([t.source for t in first], beam=1)
    assert list(translator.translate_stream(iter(SOURCES[:3]))) == translator.translate(SOURCES[:3])
    assert list(translator.translate_stream([])) == []


def test_a_chunk_of_a_stream_is_bounded_in_characters_too(translator: Translator) -> None:
    taken = 0

    def long_blanks() -> Any:
        nonlocal taken
        while True:
            yield " " * (CHUNK_CHARACTERS // 3)
            taken += 1

    next(translator.translate_stream(long_blanks()))
    assert taken <= 4


def test_a_source_of_any_length_is_translated_in_parts_that_end_with_sentences(translator: Translator) -> None:
    sentences = [a for a, _ in LEARNT]
    long = " ".join(sentences[i % len(sentences)] for i in range(90))
    (whole,) = translator.translate([long], beam=2, nbest=2)
    parts = [
        translator.tokenizer.decode(part)
        for part in translator.tokenizer.parts(*translator.tokenizer.encode([long]), LONGEST - 1)
    ]
    assert whole.parts == len(parts) > 1
    assert " ".join(parts) == long
    assert all(part.endswith((".", "?")) for part in parts)
    of_parts = translator.translate(parts, beam=2, nbest=2)
    assert [text for text, _ in whole.hypotheses] == [
        normalise(" ".join(t.hypotheses[rank][0] for t in of_parts)) for rank in range(2)
    ]
    for rank in range(2):
        alone = [t.hypotheses[rank][1] for t in of_parts]
        assert whole.hypotheses[rank][1].log_probability == pytest.approx(
            sum(h.log_probability for h in alone), rel=1e-3
        )
        assert whole.hypotheses[rank][1].ids == [piece for h in alone for piece in h.ids]


def test_the_model_never_sees_a_source_that_is_longer_than_it_may_be(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    start = translator.model.start
    monkeypatch.setattr(translator.model, "start", lambda src: seen.append(tuple(src.shape)) or start(src))
    sources = ["😀" * 5_000, "語" * 2_000, "ab " * 400, "x"]
    found = translator.translate(sources, beam=4, max_length=2)
    assert [t.source for t in found] == sources
    assert all(t.parts > 1 for t in found[:2])
    assert max(length for _, length in seen) == LONGEST + 1  # with EOS
    assert all(rows * 4 * length <= BATCH_TOKENS for rows, length in seen)


@pytest.mark.parametrize("source", ["😀" * 500, "ab " * 150])
def test_what_is_too_long_to_explain_is_translated_all_the_same(translator: Translator, source: str) -> None:
    (found,) = translator.translate([source], beam=1, max_length=2)
    explanation = translator.explain(source, beam=1, max_length=2)
    assert explanation.translation == found and not explanation.words
    (note,) = explanation.notes
    assert note.endswith("is too long to explain: at most 128.")
    with pytest.raises(ValueError, match="too long to look into: at most 128"):
        translator.scenes(source, beam=1, max_length=2)
    if found.parts == 1:
        assert translator.attention_maps(found)
    else:
        with pytest.raises(ValueError, match="too long to look into: at most 511"):
            translator.attention_maps(found)


def test_a_string_where_a_list_belongs_is_refused(translator: Translator) -> None:
    with pytest.raises(TypeError, match="list of sentences"):
        translator.translate("Where is it?")
    with pytest.raises(TypeError, match="list of sentences"):
        list(translator.translate_stream("Where is it?"))


@pytest.mark.parametrize(
    "wrong", [{"batch_size": 0}, {"beam": 0}, {"nbest": 9}, {"length_penalty": -1.0}, {"max_length": 0}]
)
def test_an_option_that_makes_no_sense_is_refused_and_leaves_the_model_as_it_was(
    translator: Translator, wrong: dict[str, Any]
) -> None:
    name, value = next(iter(wrong.items()))
    translator.model.train()
    try:
        with pytest.raises(ValueError, match=f"{name}={value}"):
            translator.translate(["two boxes"], **wrong)
        assert translator.model.training
    finally:
        translator.model.eval()


def test_a_model_in_training_translates_without_dropout_and_goes_on_training(translator: Translator) -> None:
    expected = translator.translate(SOURCES[:9])
    translator.model.train()
    translator.model.encoder.eval()  # frozen
    try:
        assert translator.translate(SOURCES[:9]) == expected
        assert translator.model.decoder.training
        assert not translator.model.encoder.training
    finally:
        translator.model.eval()


def test_nbest_is_sorted_and_distinct_and_starts_with_the_best(translator: Translator) -> None:
    (found,) = translator.translate(["You sell his guitar."], beam=5, nbest=5)
    scores = [h.score for _, h in found.hypotheses]
    assert scores == sorted(scores, reverse=True)
    assert len({tuple(h.ids) for _, h in found.hypotheses}) == 5
    assert (found.text, found.best) == found.hypotheses[0]


def test_long_input_is_translated_and_ends(translator: Translator) -> None:
    (found,) = translator.translate(["Yesterday I lost an umbrella " * 100], beam=1)
    assert len(found.best.ids) > 5
    (cut,) = translator.translate(["Yesterday I lost an umbrella."], beam=2, max_length=3)
    assert cut.best.cut
    assert len(cut.best.ids) == 2


class Payload:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def changed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A checkpoint with something done to its content."""

    def spoil(path: Path) -> None:
        content = torch.load(path, weights_only=True)
        change(content)
        torch.save(content, path)

    return spoil


def weight(content: dict[str, Any]) -> torch.Tensor:
    return content["state_dict"]["model.embedding.token.weight"]


BAD = {
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("<html>404</html>"),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a tensor": lambda path: torch.save(torch.ones(2), path),
    "foreign": lambda path: torch.save({"state_dict": {"weight": torch.ones(2)}, "epoch": 3}, path),
    "of before zip": lambda path: torch.save({"mt": {}}, path, _use_new_zipfile_serialization=False),
    "another format": changed(lambda c: c["mt"].update(format=99)),
    "no format": changed(lambda c: c["mt"].pop("format")),
    "another shape": changed(lambda c: c["mt"]["model"].update(d_model=12)),
    "another depth": changed(lambda c: c["mt"]["model"].update(encoder_layers=3)),
    "an unknown argument": changed(lambda c: c["mt"]["model"].update(rotary=True)),
    "a missing weight": changed(lambda c: c["state_dict"].pop("model.encoder.norm.weight")),
    "not finite": changed(lambda c: weight(c)[5].fill_(float("nan"))),
    "infinite": changed(lambda c: weight(c)[5, 2].fill_(float("inf"))),
    "without a model": changed(lambda c: c["mt"].pop("model")),
    "without a tokenizer": changed(lambda c: c["mt"].pop("tokenizer")),
    "with a broken tokenizer": changed(lambda c: c["mt"].update(tokenizer=torch.zeros(9, dtype=torch.uint8))),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_is_no_checkpoint_is_refused_in_one_line_that_names_it(checkpoint: Path, kind: str) -> None:
    BAD[kind](checkpoint)
    with pytest.raises(ValueError, match=r"best\.ckpt") as error:
        Translator.load(checkpoint)
    assert "\n" not in str(error.value)


def test_a_checkpoint_whose_tokenizer_has_more_pieces_than_its_model_is_refused(checkpoint: Path) -> None:
    other = Tokenizer.train([sentence for pair in PAIRS for sentence in pair], 350)
    changed(lambda c: c["mt"].update(tokenizer=torch.frombuffer(bytearray(other.model), dtype=torch.uint8)))(checkpoint)
    with pytest.raises(ValueError, match="350"):
        Translator.load(checkpoint)


@pytest.mark.parametrize("write", ["pickle", "torch", "inside"])
def test_code_in_a_file_is_never_run(checkpoint: Path, tmp_path: Path, write: str) -> None:
    planted = tmp_path / "planted"
    payload = Payload(f"touch '{planted}'")
    if write == "pickle":
        checkpoint.write_bytes(pickle.dumps(payload))
    elif write == "torch":
        torch.save({"mt": {"format": 1}, "state_dict": payload}, checkpoint)
    else:
        changed(lambda c: c["mt"].update(model=payload))(checkpoint)
    with pytest.raises(ValueError, match="not a checkpoint of mt"):
        Translator.load(checkpoint)
    assert not planted.exists()


def test_importing_the_translator_loads_nothing_that_it_does_not_need() -> None:
    code = "import sys, mt.translator; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"lightning", "datasets", "matplotlib", "tensorboard", "sacrebleu", "hydra"} & set(done.stdout.split())
    assert done.stderr == ""
