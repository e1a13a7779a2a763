"""What the benchmark measures is what it says: the same network, the same operations, the same translations."""

import itertools
import time

import pytest
import torch
from conftest import PAIRS
from torch.utils.flop_counter import FlopCounterMode

from mt.data.batching import make_batch
from mt.model.transformer import Transformer
from mt.special_tokens import BOS, EOS, PAD
from mt.training.benchmark import batch_flops, decoding, medians, plain_greedy, step_flops
from mt.training.module import TranslationModule
from mt.training.usual_code import UsualTransformer

SIZES = {"vocab_size": 19, "d_model": 12, "num_heads": 3, "d_ff": 20, "encoder_layers": 2, "decoder_layers": 3}
KIND = {"attention": "scaled_dot_product", "positions": "sinusoidal"}
SRC = torch.tensor([[4, 5, 6, 7, 8, 9, EOS], [10, 11, 4, EOS, PAD, PAD, PAD]])
TGT = torch.tensor([[BOS, 12, 13, 14, 15], [BOS, 16, 17, PAD, PAD]])


def test_the_usual_code_is_the_same_network() -> None:
    """torch's names and ours, one for one: the same shapes, and the same logits with the same weights."""
    torch.manual_seed(0)
    ours = Transformer(**SIZES, **KIND, dropout=0.1).eval()
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    theirs = UsualTransformer(architecture="transformer", **SIZES, **KIND, dropout=0.1).eval()
    state = ours.state_dict()
    names = {
        "self_attn.out_proj": "self_attention.output",
        "multihead_attn.out_proj": "cross_attention.output",
        "linear1": "feed_forward.0",
        "linear2": "feed_forward.3",
        "norm1": "self_attention_norm",
    }
    loaded = {}
    for name in theirs.state_dict():
        mine = name.removeprefix("transformer.")
        norms = (
            {"norm2": "feed_forward_norm"}
            if mine.startswith("encoder")
            else {"norm2": "cross_attention_norm", "norm3": "feed_forward_norm"}
        )
        for theirs_part, ours_part in {**names, **norms}.items():
            mine = mine.replace(f".{theirs_part}.", f".{ours_part}.")
        kind = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}.get(mine.split(".")[-2], "")
        if "in_proj_" in mine:
            prefix, suffix = mine.rsplit(".", 2)[0] + f".{kind}", mine.rsplit("in_proj_", 1)[1]
            loaded[name] = torch.cat([state[f"{prefix}.{part}.{suffix}"] for part in ("query", "key", "value")])
        else:
            loaded[name] = state[mine]
    theirs.load_state_dict(loaded)
    assert sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in ours.parameters())
    real = TGT != PAD
    torch.testing.assert_close(theirs(SRC, TGT)[real], ours(SRC, TGT)[real], atol=1e-4, rtol=1e-4)


def test_the_operations_of_a_step_are_those_that_torch_counts() -> None:
    model = Transformer(**SIZES, **KIND, dropout=0.0)
    src, tgt = torch.full((2, 7), 4), torch.full((2, 5), 5)
    with FlopCounterMode(display=False) as counter:
        model(src, tgt).sum().backward()
    assert step_flops(SIZES, src=7, tgt=5, rows=2) == counter.get_total_flops()


def test_operations_on_padding_do_not_count() -> None:
    alone = [make_batch([[7] * 4], [[8] * 9]), make_batch([[7] * 6], [[8] * 2])]
    together = make_batch([[7] * 4, [7] * 6], [[8] * 9, [8] * 2])
    assert batch_flops(SIZES, together) == sum(batch_flops(SIZES, batch) for batch in alone)
    assert batch_flops(SIZES, alone[0]) == step_flops(SIZES, src=5, tgt=10, rows=1)


def test_tasks_take_turns_and_the_middle_of_what_they_return_counts() -> None:
    calls: list[str] = []
    values = {"a": iter([5.0, 1.0, 3.0]), "b": iter([0.0, 9.0, 7.0])}

    def task(name: str) -> float:
        calls.append(name)
        return next(values[name])

    assert medians(3, lambda: task("a"), lambda: task("b")) == [3.0, 7.0]
    assert calls == ["a", "b"] * 3


@pytest.mark.parametrize("max_length", [None, 5])
def test_the_plain_loop_translates_a_batch_as_the_search_does(
    module: TranslationModule, max_length: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = [source for source, _ in PAIRS[::9]] + ["two", "I want a red chair. " * 3]
    found = decoding(module.translator, sentences, max_length=max_length, singles=1, rounds=1)
    assert found["identical"] == 1
    assert found["greedy_ratio"] == pytest.approx(found["greedy_per_second"] / found["plain_greedy_per_second"])
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)  # whatever is measured takes a second
    found = decoding(module.translator, sentences, max_length=5, singles=1_000, rounds=1)
    assert found["single_per_second"] == found["greedy_per_second"] == len(sentences)
    (ids,) = plain_greedy(module.model, [[*module.translator.tokenizer.encode(sentences[-1:])[0], EOS]], 5)
    assert len(ids) < 5
