"""The form of the bundled corpus. What it says was read by people; see mt/data/everyday/README.md."""

import re
import unicodedata
from collections import Counter
from statistics import mean, median

import pytest

from mt.data.cleaning import key
from mt.data.readers import EVERYDAY, HELD_OUT
from mt.inspection.words import words

NOT_TOPICS = (*HELD_OUT, "alignments")
NAMES = set(
    ["anna", "marco", "luca", "giulia", "paolo", "sara", "maria", "peter", "laura", "emma", "david", "rossi", "bianchi"]
)
Pair = tuple[str, str]


def read(stem: str) -> list[Pair]:
    lines = (EVERYDAY / f"{stem}.tsv").read_bytes().decode("utf-8").split("\n")
    assert lines.pop() == "", "the last line ends with a newline"
    for number, line in enumerate(lines, 1):
        assert line.count("\t") == 1, f"{stem}.tsv:{number}: {line!r}"
    return [(en, it) for en, it in (line.split("\t") for line in lines)]


@pytest.fixture(scope="module")
def train() -> list[Pair]:
    return [pair for path in sorted(EVERYDAY.glob("*.tsv")) if path.stem not in NOT_TOPICS for pair in read(path.stem)]


@pytest.fixture(scope="module")
def held_out() -> dict[str, list[Pair]]:
    return {name: read(name) for name in HELD_OUT}


@pytest.fixture(scope="module")
def everything(train: list[Pair], held_out: dict[str, list[Pair]]) -> list[Pair]:
    return [*train, *held_out["validation"], *held_out["test"]]


def forms(english: str) -> list[str]:
    return [form for word in re.findall(r"[a-z0-9']+", english.lower()) if (form := word.strip("'"))]


def test_there_are_more_than_ten_thousand_pairs_and_five_hundred_in_each_held_out_split(
    everything: list[Pair], held_out: dict[str, list[Pair]]
) -> None:
    assert len(everything) >= 10_000
    assert [len(pairs) for pairs in held_out.values()] == [500, 500]


def test_no_side_of_any_pair_stands_twice(everything: list[Pair]) -> None:
    for side in (0, 1):
        counts = Counter(key(pair[side]) for pair in everything)
        assert [sentence for sentence, count in counts.items() if count > 1] == []


def test_characters_spaces_and_final_marks_are_those_of_the_rules(everything: list[Pair]) -> None:
    for pair in everything:
        for sentence in pair:
            assert sentence == unicodedata.normalize("NFC", " ".join(sentence.split())), sentence
            assert re.fullmatch(r"[A-Za-z0-9àèéìòùÀÈÉÌÒÙ ,.?!':;\-\"]+[.?!]\"?", sentence), sentence


def test_lengths_are_one_to_fourteen_words_six_to_seven_on_average(everything: list[Pair]) -> None:
    lengths = [len(en.split()) for en, _ in everything]
    assert min(lengths) >= 1 and max(lengths) <= 14
    assert 6 <= mean(lengths) <= 7


def test_the_vocabulary_is_small_and_every_word_comes_back(everything: list[Pair]) -> None:
    counts = Counter(form for en, _ in everything for form in forms(en) if form not in NAMES)
    assert len(counts) <= 1_700
    assert median(counts.values()) >= 12
    assert mean(count >= 4 for count in counts.values()) >= 0.95


def test_the_twenty_most_frequent_openings_start_few_sentences(everything: list[Pair]) -> None:
    openings = Counter(tuple(forms(en)[:3]) for en, _ in everything)
    assert sum(count for _, count in openings.most_common(20)) <= 0.08 * len(everything)


def test_few_test_sentences_differ_from_a_training_sentence_in_one_word_only(
    train: list[Pair], held_out: dict[str, list[Pair]]
) -> None:
    def holes(words: list[str]) -> set[tuple[str, ...]]:
        """The sentence with each of its words replaced by a hole."""
        return {(*words[:i], "", *words[i + 1 :]) for i in range(len(words))}

    known = set().union(*(holes(forms(en)) for en, _ in train))
    near = sum(not known.isdisjoint(holes(forms(en))) for en, _ in held_out["test"])
    assert near <= 0.25 * len(held_out["test"])


def test_words_are_split_as_the_corpus_readme_says() -> None:
    assert words("I don't know the boys' dog, it's Anna's.") == [
        "I",
        "don't",
        "know",
        "the",
        "boys'",
        "dog",
        "it's",
        "Anna's",
    ]
    assert words("Vorrei un po' d'acqua; c'è?") == ["Vorrei", "un", "po'", "d'", "acqua", "c'", "è"]


def test_alignments_are_links_between_words_of_test_sentences(held_out: dict[str, list[Pair]]) -> None:
    lines = (EVERYDAY / "alignments.tsv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 150
    for line in lines:
        en, it, links = line.split("\t")
        assert (en, it) in held_out["test"]
        pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
        assert pairs and pairs == sorted(set(pairs)), line
        assert all(0 <= i < len(words(en)) and 0 <= j < len(words(it)) for i, j in pairs), line
