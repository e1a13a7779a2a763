import datasets
import numpy as np
import pytest
import torch
from conftest import PAIRS
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.data.batching import (
    MOST_JOINED,
    NONE,
    join,
    make_batch,
    one_of_each,
    row_lengths,
    surplus,
    token_budget_batches,
)
from mt.data.examples import BatchedPairs, add_noise
from mt.special_tokens import BOS, EOS, PAD
from mt.tokenizer import Tokenizer
from mt.training.datamodule import Remaining, share_out

Lengths = list[tuple[int, int]]


def batches(lengths: Lengths, budget: int, seed: tuple[int, int] | None) -> list[list[int]]:
    sizes = np.array(lengths, dtype=np.int64).reshape(-1, 2)
    random = None if seed is None else np.random.default_rng(seed)
    return [batch.tolist() for batch in token_budget_batches(sizes, budget, random)]


def realistic(count: int) -> Lengths:
    random = np.random.default_rng(4)
    src = random.lognormal(2.3, 0.5, count)
    return [(int(a) + 1, int(a * ratio) + 1) for a, ratio in zip(src, random.normal(1.1, 0.2, count), strict=True)]


@pytest.fixture(scope="module")
def split(tokenizer: Tokenizer) -> datasets.Dataset:
    src, tgt = ([pair[side] for pair in PAIRS] for side in (0, 1))
    columns = {"src": src, "tgt": tgt, "src_ids": tokenizer.encode(src), "tgt_ids": tokenizer.encode(tgt)}
    return datasets.Dataset.from_dict(columns)


def batched(split: datasets.Dataset, tokenizer: Tokenizer, **options: object) -> BatchedPairs:
    batches = [np.arange(0, 40)[:, None], np.array([[99, 3, NONE], [7, NONE, NONE]]), np.arange(40, 99)[:, None]]
    return BatchedPairs(split, batches, tokenizer, **{"noise": 0, "sampling": 0, "seed": (7, 0), **options})


def sentences(ids: torch.Tensor, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode([i for i in row if i not in (PAD, EOS)]) for row in ids.tolist()]


def test_target_in_begins_with_bos_and_target_out_is_one_piece_ahead() -> None:
    batch = make_batch([[10, 11], [12]], [[20], [21, 22, 23]])
    assert batch.src.tolist() == [[10, 11, EOS], [12, EOS, PAD]]
    assert batch.tgt_in.tolist() == [[BOS, 20, PAD, PAD], [BOS, 21, 22, 23]]
    assert batch.tgt_out.tolist() == [[20, EOS, PAD, PAD], [21, 22, 23, EOS]]
    assert [row.tolist() for row in make_batch([[]], [[]])] == [[[EOS]], [[BOS]], [[EOS]]]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=60),
    st.integers(31, 200),
    st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
@settings(deadline=None)
def test_every_pair_is_in_one_batch_and_rows_by_longest_stay_in_the_budget(
    lengths: Lengths, budget: int, seed: tuple[int, int] | None
) -> None:
    found = batches(lengths, budget, seed)
    assert sorted(i for batch in found for i in batch) == list(range(len(lengths)))
    for batch in found:
        assert batch
        assert len(batch) * (max(max(lengths[i]) for i in batch) + 1) <= budget


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    lengths = realistic(2_000)
    first = batches(lengths, 256, (1, 0))
    np.random.seed(5)
    assert batches(lengths, 256, (1, 0)) == first
    for other in ((1, 1), (2, 0)):
        found = batches(lengths, 256, other)
        assert found != first
        assert sorted(map(sorted, found)) != sorted(map(sorted, first)), "other pairs meet"
    widths = [max(lengths[i]) for i in (batch[0] for batch in first)]
    assert abs(np.corrcoef(range(len(widths)), widths)[0, 1]) < 0.2, "long batches are not all at one end"


def test_without_shuffling_the_order_is_always_the_same() -> None:
    lengths = realistic(300)
    assert batches(lengths, 128, None) == batches(lengths, 128, None)


def test_of_pairs_with_the_same_source_sentence_one_is_drawn_and_each_as_often() -> None:
    sources = np.array([0.5, 0.1, 0.5, 0.7, 0.5, 0.1])
    draws = [one_of_each(sources, np.random.default_rng(seed)).tolist() for seed in range(600)]
    assert all(sorted(sources[draw]) == [0.1, 0.5, 0.7] and draw == sorted(draw) for draw in draws)
    drawn = np.bincount(np.concatenate(draws))
    assert drawn[3] == 600, "the only one"
    assert drawn[[1, 5]].min() > 240 and drawn[[0, 2, 4]].min() > 140, "of two and of three, at random"
    assert one_of_each(sources, np.random.default_rng(1)).tolist() == draws[1]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=60), st.floats(0, 0.5), st.integers(30, 90))
@settings(deadline=None)
def test_every_pair_stands_in_one_row_none_of_them_too_long(lengths: Lengths, share: float, longest: int) -> None:
    sizes = np.array(lengths, dtype=np.int32).reshape(-1, 2)
    rows = join(sizes, share, longest, np.random.default_rng(1))
    assert sorted(rows[rows != NONE].tolist()) == list(range(len(lengths)))
    assert (np.diff((rows == NONE).astype(int), axis=1) >= 0).all() and (rows[:, 0] != NONE).all(), "no gaps"
    expected = [[sum(lengths[i][side] for i in row if i != NONE) for side in (0, 1)] for row in rows.tolist()]
    assert row_lengths(rows, sizes).tolist() == expected
    assert row_lengths(rows, sizes).max(initial=0) <= longest


def test_of_the_rows_a_share_goes_on_and_of_these_the_same_share_again() -> None:
    sizes = np.full((10_000, 2), 5)
    for share in (0.0, 0.2, 0.5):
        rows = join(sizes, share, 100, np.random.default_rng(1))
        parts = np.count_nonzero(rows != NONE, axis=1)
        for number in range(1, MOST_JOINED):
            goes_on = np.count_nonzero(parts > number) / max(1, np.count_nonzero(parts >= number))
            assert goes_on == pytest.approx(share, abs=0.01)
        again = join(sizes, share, 100, np.random.default_rng(1))
        other = join(sizes, share, 100, np.random.default_rng(2))
        assert (rows == again).all() and (rows != other).any()
    assert abs(np.corrcoef(rows[parts == 2][:, 0], rows[parts == 2][:, 1])[0, 1]) < 0.1, "of any two"


def test_a_row_whose_target_is_long_goes_on_with_a_pair_whose_target_is_short() -> None:
    sizes = np.array(realistic(5_000))
    rows = join(sizes, 0.3, 1_000, np.random.default_rng(1))
    joined = rows[rows[:, 1] != NONE]
    whole, first = (surplus(row_lengths(part, sizes)) for part in (joined, joined[:, :1]))
    assert whole.std() < 0.7 * first.std(), "joined at random, it would be 1.4 times, and more"


def test_a_sentence_longer_than_the_budget_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"batch_tokens=30 .* 31 pieces"):
        batches([(3, 4), (30, 2)], 30, None)
    assert batches([(3, 4), (29, 2)], 30, None)


def test_little_of_a_batch_is_padding() -> None:
    lengths = realistic(5_000)
    found = batches(lengths, 1_024, (1, 0))
    for side, most in ((1, 0.05), (0, 0.08)):
        real = sum(pair[side] + 1 for pair in lengths)
        padded = sum(len(batch) * (max(lengths[i][side] for i in batch) + 1) for batch in found)
        assert 1 - real / padded < most


def test_without_noise_and_sampling_batches_hold_the_pairs_as_they_are(
    split: datasets.Dataset, tokenizer: Tokenizer
) -> None:
    pairs = batched(split, tokenizer)
    assert len(pairs) == 3
    for side, found in enumerate((pairs[1].src, pairs[1].tgt_out)):
        texts = [f"{PAIRS[99][side]} {PAIRS[3][side]}", PAIRS[7][side]]
        expected = [[*ids, EOS] for ids in tokenizer.encode(texts)]
        assert [[i for i in row if i != PAD] for row in found.tolist()] == expected, "as one line of text"
    expected = make_batch(split["src_ids"][:40], split["tgt_ids"][:40])
    assert all(torch.equal(a, b) for a, b in zip(pairs[0], expected, strict=True))


@pytest.mark.parametrize("options", [{"noise": 0.5}, {"sampling": 0.3}, {"noise": 0.5, "sampling": 0.3}])
def test_noise_and_sampling_repeat_from_their_seed_and_never_widen_a_batch(
    split: datasets.Dataset, tokenizer: Tokenizer, options: dict[str, float]
) -> None:
    plain, one = batched(split, tokenizer), batched(split, tokenizer, **options)
    same, other = batched(split, tokenizer, **options), batched(split, tokenizer, seed=(7, 1), **options)
    same[2]  # what was read before is no part of the seed
    np.random.seed(3)
    for i in range(3):
        assert all(torch.equal(a, b) for a, b in zip(one[i], same[i], strict=True))
        assert all(a.shape[1] <= b.shape[1] for a, b in zip(one[i], plain[i], strict=True))
    assert not torch.equal(one[0].src, other[0].src) and not torch.equal(one[0].src, plain[0].src)
    targets = [target for _, target in PAIRS[:40]]
    assert sentences(one[0].tgt_out, tokenizer) == targets, "their text stays"


def test_noise_takes_capitals_and_marks_from_its_share_of_sources(
    split: datasets.Dataset, tokenizer: Tokenizer
) -> None:
    found = sentences(batched(split, tokenizer, noise=0.5)[2].src, tokenizer)
    sources = [source for source, _ in PAIRS[40:99]]
    kinds = [lambda s: s, str.lower, lambda s: s.rstrip(".?"), lambda s: s.lower().rstrip(".?")]
    counts = [sum(f == kind(s) for f, s in zip(found, sources, strict=True)) for kind in kinds]
    assert sum(counts) == len(sources)
    assert min(counts) > 4
    random = np.random.default_rng(1)
    noisy = [add_noise("Where?", 0.2, random) for _ in range(4_000)]
    shares = [noisy.count(text) / len(noisy) for text in ("where?", "Where", "where", "Where?")]
    assert np.allclose(shares, [0.1, 0.1, 0.1, 0.7], atol=0.02), "half of what loses one loses both"
    sure = np.random.default_rng(1)
    assert [add_noise(s, 1.0, sure) for s in ("Where?!", "OK …", "...", "")] == ["where", "ok", "...", ""]
    assert add_noise("Where?", 0.0, sure) == "Where?"
    joined = f"{PAIRS[99][0]} {PAIRS[3][0]}".lower().rstrip(".?")
    assert sentences(batched(split, tokenizer, noise=1.0)[1].src, tokenizer)[0] == joined, "a line loses them as one"


def test_sampling_segments_the_same_text_in_other_ways(split: datasets.Dataset, tokenizer: Tokenizer) -> None:
    plain, flat, sharp = (batched(split, tokenizer, sampling=a)[0] for a in (0, 0.1, 1.0))
    for sampled in (flat, sharp):
        assert sentences(sampled.src, tokenizer) == sentences(plain.src, tokenizer)
        assert sentences(sampled.tgt_out, tokenizer) == sentences(plain.tgt_out, tokenizer)

    def unchanged(batch: torch.Tensor) -> int:
        rows = zip(batch.tolist(), plain.src.tolist(), strict=True)
        return sum([i for i in a if i] == [i for i in b if i] for a, b in rows)

    assert unchanged(flat.src) < unchanged(sharp.src) < 40, "a larger α stays nearer to the best segmentation"


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.integers(1, 6))
def test_ranks_get_disjoint_batches_equal_in_number_and_together_all(sizes: list[int], ranks: int) -> None:
    ends = np.cumsum(sizes)
    whole = [np.arange(end - size, end)[:, None] for size, end in zip(sizes, ends, strict=True)]
    if sum(sizes) < ranks * -(-len(sizes) // ranks):
        with pytest.raises(ValueError, match=f"shared out over {ranks} devices"):
            share_out(whole, ranks)
        return
    shared = share_out(whole, ranks)
    assert len(shared) % ranks == 0
    assert all(len(batch) for batch in shared)
    assert sorted(np.concatenate(shared).ravel().tolist()) == list(range(sum(sizes)))
    assert max(map(len, shared)) <= max(sizes)


def test_the_rest_of_an_epoch_has_the_epochs_length() -> None:
    assert (list(Remaining(5, 3)), len(Remaining(5, 3))) == ([3, 4], 5)
