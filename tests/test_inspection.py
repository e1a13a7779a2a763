import io
import itertools
import re
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from rich.cells import cell_len
from rich.console import Console
from torch import Tensor, nn

from mt.command import refusal
from mt.inspection.attention_maps import AttentionMap, attention_maps, record_weights
from mt.inspection.figures import COLOURS, attention_figure, rgb, save_attention_figure, save_figure
from mt.inspection.terminal import terminal_map
from mt.model.attention import AttentionWeights
from mt.model.transformer import Transformer
from mt.special_tokens import BOS, EOS
from mt.tokenizer import Tokenizer

CROSS = "decoder.layers.0.cross_attention"
SRC, TGT = [10, 11, 12, 13, 14, 15], [20, 21, 22, 23]  # with EOS or BOS: S=7, T=5


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the cat drinks the milk", "il gatto beve il latte", "where is the station"], 280)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(
        vocab_size=280, attention="scaled_dot_product", positions="sinusoidal",
        d_model=12, num_heads=3, d_ff=16, encoder_layers=2, decoder_layers=2, dropout=0.5,
    )  # fmt: skip


def drawn(heads: int, queries: int, keys: int, eos: float = 0.0, name: str = CROSS) -> AttentionMap:
    """Random weights, a share of them moved to the last key."""
    weights = torch.randn(heads, queries, keys).mul(2).softmax(dim=-1) * (1 - eos)
    weights[:, :, -1] += eos
    names = [[f"{letter}{i}" for i in range(n - 1)] + ["</s>"] for letter, n in (("q", queries), ("k", keys))]
    return AttentionMap(name, weights, *names)


def shown(maps: list[AttentionMap], width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(terminal_map(maps, width))
    return out.getvalue().splitlines()


def test_rows_sum_to_1_and_do_not_feel_the_dropout_of_a_model_in_training(
    model: Transformer, tokenizer: Tokenizer
) -> None:
    trained = attention_maps(model.train(), tokenizer, SRC, TGT)
    for during, after in zip(trained, attention_maps(model.eval(), tokenizer, SRC, TGT), strict=True):
        torch.testing.assert_close(during.weights.sum(dim=-1), torch.ones(during.weights.shape[:2]))
        assert torch.equal(during.weights, after.weights)


def test_maps_come_encoder_first_then_decoder_then_cross_each_by_layer(
    model: Transformer, tokenizer: Tokenizer
) -> None:
    kinds = [
        "encoder.layers.{}.self_attention",
        "decoder.layers.{}.self_attention",
        "decoder.layers.{}.cross_attention",
    ]
    names = [m.name for m in attention_maps(model, tokenizer, SRC, TGT)]
    assert names == [kind.format(layer) for kind in kinds for layer in range(2)]
    assert all(name in dict(model.named_modules()) for name in names)


def test_a_decoder_row_is_named_for_the_piece_it_produced_and_a_column_for_the_piece_it_read(
    model: Transformer, tokenizer: Tokenizer
) -> None:
    source, produced, read = (tokenizer.pieces(ids) for ids in ([*SRC, EOS], [*TGT, EOS], [BOS, *TGT]))
    expected = {"encoder.self": (source, source), "decoder.self": (produced, read), "decoder.cross": (produced, source)}
    for m in attention_maps(model, tokenizer, SRC, TGT):
        assert (m.queries, m.keys) == expected[re.sub(r"\.layers\.\d|_attention", "", m.name)]
        assert m.weights.shape == (3, len(m.queries), len(m.keys))


def test_the_weight_of_a_future_piece_is_exactly_0(model: Transformer, tokenizer: Tokenizer) -> None:
    for m in attention_maps(model, tokenizer, SRC, TGT)[2:4]:
        assert torch.equal(m.weights > 0, torch.ones(3, 5, 5, dtype=torch.bool).tril())


def test_an_empty_sentence_has_maps_too(model: Transformer, tokenizer: Tokenizer) -> None:
    assert {m.weights.shape for m in attention_maps(model, tokenizer, [], [])} == {(3, 1, 1)}


def test_a_submodule_that_was_frozen_in_eval_mode_stays_so(model: Transformer, tokenizer: Tokenizer) -> None:
    model.train()
    model.encoder.eval()
    before = [module.training for module in model.modules()]
    attention_maps(model, tokenizer, SRC, TGT)
    assert [module.training for module in model.modules()] == before


def test_no_hook_stays_behind_even_after_an_exception(model: Transformer, tokenizer: Tokenizer) -> None:
    model.train()
    attention_maps(model, tokenizer, SRC, TGT)
    with pytest.raises(IndexError):
        attention_maps(model, tokenizer, SRC, [1000])
    assert not any(module._forward_hooks for module in model.modules())
    assert model.training and model.decoder.training
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


class Stepwise(nn.Module):
    """A decoder that attends once a step, as recurrent ones do: step t looks at source position t and no other."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        self.attention = nn.ModuleDict({"weights": AttentionWeights()})

    def forward(self, src: Int[Tensor, "B S"], tgt_in: Int[Tensor, "B T"]) -> Float[Tensor, "B T S"]:
        visible = torch.eye(src.shape[1], dtype=torch.bool)
        scores = torch.zeros(1, 1, 1, src.shape[1])
        steps = [self.attention["weights"](scores, visible[None, None, t]) for t in range(tgt_in.shape[1])]
        return torch.cat(steps, dim=2)[:, 0]


def test_a_model_that_attends_once_a_step_gives_one_row_a_step() -> None:
    weights = record_weights(Stepwise(), torch.tensor([[*SRC, EOS]]), torch.tensor([[BOS, *TGT]]))
    assert list(weights) == ["attention"]
    assert torch.equal(weights["attention"], torch.eye(7)[None, :5])


@pytest.mark.parametrize("heads", [1, 3, 4, 16])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 3), (40, 40), (80, 80), (3, 80), (80, 5)])
def test_a_figure_of_any_shape_is_drawn_within_bounds_and_left_nowhere_open(
    heads: int, queries: int, keys: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        height, width, _ = rgb(attention_figure(drawn(heads, queries, keys))).shape
    assert 100 < height <= 2100 and 100 < width <= 2100
    assert plt.get_fignums() == []


def test_a_weight_stands_in_its_heads_panel_in_the_row_of_its_query_and_the_column_of_its_key() -> None:
    weights = torch.zeros(3, 4, 6)
    weights[1, 2, 3] = 1
    queries, keys = ["qa", "qb", "qc", "qd"], ["ka", "kb", "kc", "kd", "ke", "kf"]
    figure = attention_figure(AttentionMap(CROSS, weights, queries, keys))
    *heads, scale = figure.axes[0].images
    assert torch.equal(torch.stack([torch.tensor(np.asarray(head.get_array())) for head in heads]), weights)

    picture = rgb(figure)
    dark = (picture == COLOURS(1.0, bytes=True)[:3]).all(axis=-1)
    dark[: int(max(scale.get_extent()[2:]))] = False
    y, x = (axis.mean() for axis in np.nonzero(dark))
    boxes = [(text.get_text(), text.get_window_extent()) for text in figure.texts]
    places = [(name, (box.x0 + box.x1) / 2, len(picture) - (box.y0 + box.y1) / 2) for name, box in boxes]
    assert dark.sum() > 300
    assert min((abs(y - name_y), name) for name, _, name_y in places if name in queries)[1] == "qc"
    assert min((abs(x - name_x), name) for name, name_x, _ in places if name in keys)[1] == "kd"
    above = [
        (abs(y - name_y) + abs(x - name_x), name) for name, name_x, name_y in places if name_y < y and "head" in name
    ]
    assert min(above)[1] == "head 2"


def test_every_piece_is_named_once_a_panel_row_or_the_figure_says_how_many_are() -> None:
    names = [text.get_text() for text in attention_figure(drawn(4, 20, 30)).texts]
    assert all(names.count(f"q{i}") == 2 for i in range(19)) and all(names.count(f"k{i}") == 2 for i in range(29))
    assert "one piece in 3 is named" in [text.get_text() for text in attention_figure(drawn(16, 80, 80)).texts]


@pytest.mark.parametrize(("heads", "pieces"), [(1, 3), (4, 21), (4, 40), (16, 3), (16, 40), (16, 80)])
def test_names_neither_touch_their_neighbours_nor_leave_the_picture(heads: int, pieces: int) -> None:
    figure = attention_figure(drawn(heads, pieces, pieces))
    boxes = [(text.get_text(), text.get_window_extent()) for text in figure.texts]
    height, width, _ = rgb(figure).shape
    assert all(min(box.x0, box.y0) >= 0 and box.x1 <= width and box.y1 <= height for _, box in boxes)
    rows = sorted((box.y0, box.y1) for name, box in boxes if name.startswith("q"))
    columns = sorted((box.x0, box.x1) for name, box in boxes if name.startswith("k"))
    for named in (rows, columns):  # a pixel or two of a box stay empty
        assert all(end <= start + 2 for (_, end), (start, _) in itertools.pairwise(named))


def test_a_piece_that_is_long_or_has_no_glyph_or_looks_like_a_formula_is_drawn_without_a_warning() -> None:
    pieces = ["▁perché", "😀", "猫", r"$\frac$", "a\nb", "\x1b[1m", "x" * 500, ""]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = attention_figure(AttentionMap(CROSS, torch.full((2, 8, 8), 1 / 8), pieces, pieces))
        assert rgb(figure).shape[1] < 800
    names = {text.get_text() for text in figure.texts}
    assert {"▁perché", "□", r"$\frac$", "a□b", "□[1m", "x" * 13 + "…", ""} <= names


def test_a_picture_in_tensorboard_is_the_one_that_is_saved(tmp_path: Path) -> None:
    figure = attention_figure(drawn(2, 5, 7))
    save_figure(figure, tmp_path / "map.png")
    assert np.array_equal((plt.imread(tmp_path / "map.png")[:, :, :3] * 255).round(), rgb(figure))


@pytest.mark.parametrize("ending", ["png", "SVG", "pdf", "jpg"])
def test_a_saved_figure_has_the_format_of_its_ending(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"città e gatti.{ending}"
    save_attention_figure([drawn(4, 5, 7), drawn(4, 5, 7)], path)
    assert {"png": b"PNG", "SVG": b"<svg", "pdf": b"%PDF", "jpg": b"JFIF"}[ending] in path.read_bytes()


@pytest.mark.parametrize("name", ["figure.xyz", "figure", "missing/figure.png", "folder.png"])
def test_a_path_that_cannot_be_written_is_one_plain_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises((ValueError, OSError)) as error:
        save_attention_figure([drawn(2, 3, 4)], tmp_path / name)
    assert str(tmp_path / name) in refusal(error.value) and "\n" not in refusal(error.value)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (4, 6), (12, 30), (40, 60), (5, 200)])
@pytest.mark.parametrize("eos", [0.0, 0.7])
def test_a_terminal_map_fits_its_width_and_names_every_produced_piece(queries: int, keys: int, eos: float) -> None:
    for width in (80, 40, 20):
        lines = shown([drawn(4, queries, keys, eos)], width)
        assert max(map(cell_len, lines)) <= width
        assert all(any(line.strip().startswith(f"q{i} ") for line in lines) for i in range(queries - 1))


def test_a_terminal_map_needs_no_colour_and_says_which_mean_it_shows() -> None:
    first, second = torch.zeros(2, 2, 3), torch.zeros(2, 2, 3)
    first[:, 0, 0] = first[:, 1, 1] = second[:, 0, 0] = second[:, 1, 2] = 1
    layers = [AttentionMap(CROSS, weights, ["il", "</s>"], ["the", "cat", "</s>"]) for weights in (first, second)]
    lines = shown([drawn(5, 3, 3, name="encoder.layers.0.self_attention"), *layers], 80)
    assert [line.split() for line in lines[:3]] == [
        ["the", "cat", "</s>"],
        ["il", "9", "·", "·"],
        ["</s>", "·", "4", "4"],
    ]
    assert "mean of 4 heads" in lines[3] and "100%, the largest" in lines[4] and "takes 25% of all weight" in lines[5]


def test_a_terminal_map_hides_an_eos_that_takes_most_of_the_weight_and_says_how_much_it_takes() -> None:
    weights = torch.tensor([[[0.3, 0.15, 0.55], [0.0, 0.05, 0.95]]])
    lines = shown([AttentionMap(CROSS, weights, ["il", "</s>"], ["the", "cat", "</s>"])], 80)
    assert [line.split() for line in lines[1:3]] == [["il", "9", "4", "55%"], ["</s>", "·", "1", "95%"]]
    assert "takes 75% of all weight: column hidden" in lines[5]


def test_a_terminal_map_counts_the_columns_it_leaves_out() -> None:
    lines = shown([drawn(2, 3, 100)], 80)
    row = next(line for line in lines if line.lstrip().startswith("q0 "))
    assert f"the last {100 - len(row.split()[1])} of 100 columns" in lines[-1]
    assert not any("left out" in line for line in shown([drawn(2, 3, 60)], 80))


def test_wide_invisible_and_control_characters_do_not_shift_a_terminal_map() -> None:
    pieces = ["猫", "😀", "\x1b[2J", "a\u0301", "\u200b", "[bold]", "</s>"]
    lines = shown([AttentionMap(CROSS, torch.full((1, 7, 7), 1 / 7), pieces, pieces)], 80)
    assert {cell_len(line) for line in lines[:8]} == {len(lines[0])}
    assert "\x1b" not in "".join(lines) and "[bold]" in lines[0] and "á" in lines[0]
