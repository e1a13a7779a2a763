"""The corpus: cleaning, splits without leaks, the report, the cache."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from conftest import PAIRS
from hypothesis import given
from hypothesis import strategies as st

import mt.data.corpus as corpus_module
from mt.data.cleaning import fraction, key, normalise, why_dropped
from mt.data.corpus import LONGEST_HELD_OUT, Corpus, _sentences, prepare
from mt.data.readers import Source

SPLITS = ("train", "validation", "test")
Prepare = Callable[..., Corpus]


def write(path: Path, pairs: list[tuple[str, str]]) -> str:
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    return str(path)


@pytest.fixture
def corpus(tmp_path: Path) -> Prepare:
    """`prepare` of PAIRS, or of what is told, with the other arguments small."""

    def run(pairs: list[tuple[str, str]] = PAIRS, **settings: Any) -> Corpus:
        defaults = {
            "train": write(tmp_path / "train.tsv", pairs),
            "validation": None,
            "test": None,
            "columns": ["en", "it"],
            "src": "en",
            "tgt": "it",
            "vocab_size": 330,
            "max_pieces": 60,
            "max_ratio": 3.0,
            "held_out": 10,
            "cache_dir": str(tmp_path / "cache"),
        }
        return prepare(**{**defaults, **settings})

    return run


def pairs_of(corpus: Corpus, split: str) -> list[tuple[str, str]]:
    return list(zip(corpus.splits[split]["src"], corpus.splits[split]["tgt"], strict=True))


def assert_adds_up(corpus: Corpus) -> None:
    for split, part in corpus.report.items():
        assert part["read"] == part["kept"] + sum(part["dropped"].values()), split
        assert part["kept"] == len(corpus.splits[split])


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("  a \t b\u2028c\u0085d\x0ce\u00a0f\n", "a b c d e f"),
        ("e\u0301", "é"),
        ("ﬁ ½ „quoted“", "ﬁ ½ „quoted“"),
        (" \u2029 ", ""),
    ],
)
def test_a_normalised_sentence_is_one_line_with_single_spaces(sentence: str, expected: str) -> None:
    assert normalise(sentence) == expected


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)
    assert len(normalise(text).splitlines()) <= 1


@pytest.mark.parametrize(
    ("one", "other"),
    [("Where is it?", "where, is it"), ("STRASSE!", "straße"), ("it's_here", "It s here…"), ("“Perché?”", "perché")],
)
def test_case_and_punctuation_make_no_other_sentence(one: str, other: str) -> None:
    assert key(one) == key(other)


def test_other_words_and_marks_alone_are_other_sentences() -> None:
    assert len({key(s) for s in ("perche", "perché", "Where is it?", "Where is he?", "?", "!", "…")}) == 7


@pytest.mark.parametrize(
    ("src", "tgt", "reason"),
    [
        ("", "uno", "empty side"),
        ("one", "", "empty side"),
        ("OK", "OK", "both sides the same"),
        ("Hi!", "Buongiorno a tutti!", None),  # (19 + 10) / (3 + 10) = 2.2
        ("a" * 20, "b" * 80, None),  # 90 / 30 is exactly 3
        ("a" * 20, "b" * 81, "too unequal"),
        ("a" * 81, "b" * 20, "too unequal"),
    ],
)
def test_a_pair_is_dropped_for_a_reason(src: str, tgt: str, reason: str | None) -> None:
    assert why_dropped(src, tgt, 3.0) == reason


def test_a_sentences_place_depends_on_its_text_alone() -> None:
    digest = hashlib.blake2b("perché".encode(), digest_size=7).hexdigest()
    assert fraction("perché") == int(digest, 16) / 2**56
    places = [fraction(str(i)) for i in range(2_000)]
    assert min(places) >= 0 and max(places) < 1
    assert sum(place < 0.1 for place in places) == pytest.approx(200, abs=50)


def test_a_vocabulary_is_learnt_from_both_sides_of_evenly_spread_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    split = datasets.Dataset.from_dict(
        {"src": [f"one {i}" for i in range(100)], "tgt": [f"uno {i}" for i in range(100)]}
    )
    for most in (100, 99, 30, 1):
        monkeypatch.setattr(corpus_module, "TOKENIZER_PAIRS", most)
        found = list(_sentences(split))
        numbers = [int(sentence.split()[1]) for sentence in found[::2]]
        assert found == [f"{word} {i}" for i in numbers for word in ("one", "uno")]
        assert most / 2 <= len(numbers) <= most and len(set(np.diff(numbers))) <= 1
        assert numbers[0] == 0 and 100 - numbers[-1] <= 100 / len(numbers) + 1  # to the end


def test_the_split_does_not_depend_on_the_order_of_the_file(corpus: Prepare, tmp_path: Path) -> None:
    there, back = corpus(), corpus(PAIRS[::-1], cache_dir=str(tmp_path / "other"))
    for split in SPLITS:
        assert sorted(pairs_of(there, split)) == sorted(pairs_of(back, split))
        assert 3 <= len(there.splits["validation"]) <= 25


def test_what_was_trained_on_is_never_held_out_when_pairs_are_added(corpus: Prepare) -> None:
    more = [(f"Number {i} is here.", f"Il numero {i} è qui.") for i in range(40)]
    before, after = corpus(PAIRS, vocab_size=335), corpus(more + PAIRS, vocab_size=335)
    held_out = set(pairs_of(after, "validation")) | set(pairs_of(after, "test"))
    assert held_out
    assert not held_out & set(pairs_of(before, "train"))


def test_no_sentence_of_either_side_stands_in_two_splits(corpus: Prepare) -> None:
    shared_target = [(f"{a} Now and {a.lower()}", b) for a, b in PAIRS]  # the target says where it must not be
    shared_source = [(a.upper().replace(".", "!"), f"Ebbene, {b}") for a, b in PAIRS]
    found = corpus(PAIRS + shared_target + shared_source, held_out=30)
    for side in ("src", "tgt"):
        keys = {split: {key(sentence) for sentence in found.splits[split][side]} for split in SPLITS}
        for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
            assert not keys[one] & keys[other], (side, one, other)
    dropped = found.report["train"]["dropped"]
    assert dropped["stands in test"] and dropped["stands in validation"]
    assert_adds_up(found)


def test_given_splits_keep_their_pairs_and_train_gives_way(corpus: Prepare, tmp_path: Path) -> None:
    validation = write(tmp_path / "v.tsv", [*PAIRS[:5], *PAIRS[:1], ("OK", "OK"), ("", "vuoto"), ("x", "y" * 99)])
    test = write(tmp_path / "t.tsv", [(PAIRS[1][0].upper(), "Un'altra frase."), *PAIRS[90:95]])
    found = corpus(validation=validation, test=test)
    assert len(pairs_of(found, "test")) == 6
    assert pairs_of(found, "validation") == [PAIRS[0], *PAIRS[2:5], PAIRS[0], ("OK", "OK"), ("x", "y" * 99)]
    assert found.report["validation"]["dropped"] == {"empty side": 1, "stands in test": 1}
    assert not set(pairs_of(found, "train")) & {*PAIRS[:5], *PAIRS[90:95]}
    assert_adds_up(found)


def test_an_immense_line_is_left_out_of_the_held_out_pairs_and_counted(corpus: Prepare, tmp_path: Path) -> None:
    immense = ("many " * 9_000, "tanti " * 9_000)
    found = corpus(test=write(tmp_path / "t.tsv", [*PAIRS[90:95], immense, ("word " * 40, "parola " * 40)]))
    assert len(pairs_of(found, "test")) == 6, "a long one stays"
    assert found.report["test"]["dropped"] == {f"more than {LONGEST_HELD_OUT} pieces": 1}
    assert_adds_up(found)


def test_what_is_left_out_of_training_is_counted_by_reason_with_the_first_line(corpus: Prepare, tmp_path: Path) -> None:
    bad = [("", "x"), ("same", "same"), ("short", "long " * 40), ("many " * 70, "tanti " * 70), PAIRS[3]]
    path = Path(write(tmp_path / "bad.tsv", [*PAIRS, *bad]))
    path.write_bytes(path.read_bytes() + b"one column\n\xff\tx\nanother\n")
    found = corpus(train=str(path))
    part = found.report["train"]
    assert part["read"] == 108
    expected = {
        "empty side", "both sides the same", "too unequal", "more than 60 pieces", "identical pair", "not 2 columns",
        "not UTF-8", "now validation", "now test",
    }  # fmt: skip
    assert expected <= set(part["dropped"])
    assert (part["dropped"]["not 2 columns"], part["dropped"]["identical pair"]) == (2, 1)
    assert part["first"] == {"not 2 columns": f"{path}:106", "not UTF-8": f"{path}:107"}
    assert_adds_up(found)


def test_ids_are_those_of_a_tokenizer_that_saw_the_training_split_alone(corpus: Prepare, tmp_path: Path) -> None:
    validation = write(tmp_path / "v.tsv", [("Ω is new.", "Ω è nuova.")] * 50)
    found = corpus(validation=validation)
    assert "Ω" not in "".join(found.tokenizer.pieces(range(len(found.tokenizer))))
    for split in found.splits.values():
        assert split["src_ids"][:] == found.tokenizer.encode(split["src"][:])
        assert split["tgt_ids"][:] == found.tokenizer.encode(split["tgt"][:])


def test_the_other_direction_swaps_the_sides_and_columns_may_be_in_any_order(corpus: Prepare) -> None:
    there, back = corpus(), corpus(src="it", tgt="en")
    assert set(pairs_of(back, "train")) <= {(b, a) for a, b in PAIRS}
    swapped = corpus([(b, a) for a, b in PAIRS], columns=["it", "en"])
    assert pairs_of(swapped, "train") == pairs_of(there, "train")


def test_a_second_run_comes_from_the_cache_and_reads_nothing(corpus: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    first = corpus()

    def rows(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(Source, "rows", rows)
    second = corpus()
    assert (first.cached, second.cached) == (False, True)
    assert first.fingerprint == second.fingerprint
    assert first.report == second.report
    assert first.tokenizer.model == second.tokenizer.model
    assert all(first.splits[split][:] == second.splits[split][:] for split in SPLITS)


def test_another_setting_or_content_never_meets_the_cache(corpus: Prepare, tmp_path: Path) -> None:
    again = {"vocab_size": 331, "max_pieces": 59, "max_ratio": 2.9, "held_out": 9, "src": "it", "tgt": "en"}
    validation = write(tmp_path / "v.tsv", PAIRS[:5])
    runs = [corpus(), corpus(PAIRS[::-1]), corpus(PAIRS[1:]), corpus(validation=validation), corpus(test=validation)]
    runs += [corpus(**{name: value}) for name, value in again.items() if name not in ("src", "tgt")]
    runs += [corpus(src="it", tgt="en"), corpus(columns=["it", "en"])]
    assert not any(run.cached for run in runs)
    assert len({run.fingerprint for run in runs}) == len(runs)


def test_the_same_files_side_by_side_and_one_after_the_other_are_not_the_same_corpus(
    corpus: Prepare, tmp_path: Path
) -> None:
    parts = [write(tmp_path / f"part{i}.tsv", PAIRS[i::2]) for i in (0, 1)]
    aligned, after = corpus(train=parts), corpus(train=str(tmp_path / "part*.tsv"))
    assert not after.cached
    assert aligned.fingerprint != after.fingerprint


def test_an_interrupted_run_leaves_no_cache_behind(corpus: Prepare, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fits"):
        corpus(vocab_size=40_000)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"src": "de"}, "'de'.*en, it"),
        ({"tgt": "fr"}, "'fr'.*en, it"),
        ({"tgt": "en"}, "both 'en'"),
        ({"train": "nowhere.tsv"}, "nowhere.tsv"),
        ({"vocab_size": 40_000}, "vocab_size=40000.*fits"),
        ({"held_out": 40}, "held_out to at most 25"),
        ({"held_out": 0}, "held_out"),
        ({"held_out": -5}, "held_out"),
        ({"max_pieces": 1}, "no train pair is left"),
        ({"max_ratio": 0.5}, "no train pair is left"),
        ({"pairs": []}, "empty"),
        ({"pairs": [("same", "same")] * 3}, "both sides the same"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line(corpus: Prepare, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        corpus(**wrong)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.docx", b"PK", "Known endings"),
        ("a.csv", b"x,y\n1,2\n", "no column en, it; its columns: x, y"),
        ("a.parquet", b"<html>404</html>", "a.parquet"),
        ("a.tsv.gz", b"\x1f\x8b\x08\x00cut", "can't be read to its end"),
    ],
)
def test_a_file_that_cannot_be_read_stays_one_line_on_its_way_up(
    corpus: Prepare, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        corpus(train=str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_unequal_aligned_files_and_an_offline_hub_stay_one_line_on_their_way_up(
    corpus: Prepare, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("one\n" * 3)
    (tmp_path / "b").write_text("uno\n" * 2)
    for train, message in (
        ([str(tmp_path / "a"), str(tmp_path / "b")], "3 lines, .* 2"),
        ("hf://datasets/nobody/nothing@0123abc/train.parquet", "data=everyday"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            corpus(train=train)
        assert "\n" not in str(error.value)
