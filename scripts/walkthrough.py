"""Attention step by step, in numbers, for a sentence of yours.

python scripts/walkthrough.py                                       (random numbers: before any training)
python scripts/walkthrough.py "The dog sleeps under the table." --html walkthrough.html
python scripts/walkthrough.py --checkpoint [PATH]                   (a trained model's own matrices, and "bank")
"""

# ruff: noqa: E402
from mt.command import check_writable, command, end_by_signals

end_by_signals()

import argparse
import io
import itertools
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.constrain import Constrain
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from torch import Tensor

from mt.data.cleaning import normalise
from mt.data.readers import EVERYDAY
from mt.inspection.attention_maps import attention_maps
from mt.inspection.terminal import COLOURS
from mt.inspection.walkthrough import (
    cosines,
    dot_products,
    parting,
    spread,
    trained_example,
    untrained_example,
    weighted_values,
    words_in_context,
)
from mt.inspection.words import merge
from mt.model.attention_variants import CosineAttention
from mt.runs import best_checkpoint
from mt.translator import Translator

SENTENCE, KNOWN = "Life is short, eat dessert first.", "The dog sleeps under the table."  # KNOWN: by the bundled corpus
RIVER, MONEY = "We sat on the bank of the river.", "I have to go to the bank to get some money."


def step(console: Console, title: str, text: str) -> None:
    """A line of text that begins with a space stays a line of its own; the others flow."""
    console.print()
    console.rule(f"[bold]{title}", align="left", style="dim")
    for indented, lines in itertools.groupby(text.strip().splitlines(), lambda line: line.startswith(" ")):
        console.print(Constrain(("\n" if indented else " ").join(lines), 100))


def matrix(console: Console, rows: list[str], columns: list[str], values: Tensor, *, weights: bool = False) -> None:
    """As many columns as fit; where values are weights, darker is more, and each row's sum stands at its end."""
    names = [name if len(name) <= 16 else name[:15] + "…" for name in rows]
    room = console.width - max(map(len, names)) - 3 - 7  # the last 7 are the sum's
    shown = columns[: max(1, room // 7)]
    if len(shown) < len(columns):
        shown = shown[:-1]
    table = Table(box=None, padding=(0, 0), pad_edge=False)
    table.add_column()
    for name in shown:
        table.add_column(Text(name if len(name) <= 6 else name[:5] + "…", style="bold"), justify="right", min_width=7)
    if len(shown) < len(columns):
        table.add_column(f"+{len(columns) - len(shown)}", style="dim", justify="right", min_width=5)
    if weights:
        table.add_column("sum", style="dim", justify="right", min_width=7)
    for name, row in zip(names, values.tolist(), strict=True):
        cells = [Text(name + " ", style="bold")]
        for value in row[: len(shown)]:
            text = "-∞" if value == -torch.inf else f"{value:.2f}"
            colour = COLOURS[min(8, int(9 * value))] if weights and value >= 0.1 else ""
            style = f"{'#ffffff' if value < 0.5 else '#000000'} on {colour}" if colour else ""
            cells.append(Text(f"{text:>6} ", style=style))
        cells += [Text("…")] if len(shown) < len(columns) else []
        cells += [Text(f"{sum(row):.2f}")] if weights else []
        table.add_row(*cells)
    console.print(table)


def shape(x: Tensor) -> str:
    return " × ".join(map(str, x.shape))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentence", nargs="?")
    parser.add_argument(
        "--checkpoint",
        nargs="?",
        const="",
        metavar="PATH",
        help="a file or a run's folder; no PATH: the newest run",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page instead of the terminal's text")
    args = parser.parse_args()
    if args.sentence is None:
        args.sentence = SENTENCE if args.checkpoint is None else KNOWN
    typed = args.sentence.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # an ASCII locale's
    args.sentence = normalise(typed)
    if not args.sentence:
        raise ValueError("the sentence is empty")
    console = Console(highlight=False, emoji=False)
    if args.html:
        check_writable(args.html)
        console = Console(highlight=False, emoji=False, record=True, width=100, file=io.StringIO())

    # The sentence and its numbers: random ones, or those that training found.
    trained = args.checkpoint is not None
    if trained:
        translator = Translator.load(best_checkpoint(args.checkpoint or None))
        model, tokenizer = translator.model, translator.tokenizer
        (translation,) = translator.translate([args.sentence])
        (ids,) = tokenizer.encode([args.sentence])
        example = trained_example(model, tokenizer, ids, translation.best.ids)
        origin = f"Every number is a trained model's. It translates: [bold]{escape(translation.text)}[/]"
    else:
        example = untrained_example(args.sentence)
        origin = "The numbers are random, as before training: follow the steps, not the meaning. "
        origin += "With --checkpoint they are a trained model's."
    pieces, x = example.pieces, example.vectors
    d_model, dimensions = x.shape[1], [f"d{i}" for i in range(1, x.shape[1] + 1)]
    first = escape(pieces[0])
    console.print(Panel(f"[bold]Attention, step by step[/]\n{escape(args.sentence)}\n{origin}"))

    step(
        console,
        "Before attention",
        """
A recurrent network reads word by word, and hands on one vector. Whatever the first word said has to survive every
step to the last, and so does its gradient, which shrinks on the way. Attention lets every word look at every other
in a single step, however far away. (Train them and compare: python scripts/train.py variant=recurrent, or
variant=recurrent_without_attention.)""",
    )

    spaces = " ▁ stands for a space, </s> for the end." if trained else ""
    step(
        console,
        "1  Sentence, pieces, numbers",
        f"A model computes with numbers, so every piece has one: its row in a table.{spaces}",
    )
    console.print(Text("  ".join(f"{piece} {i}" for piece, i in zip(pieces, example.ids, strict=True)), style="bold"))

    step(
        console,
        "2  Embeddings",
        f"The table's rows: a vector of {d_model} numbers a piece, {shape(x)} for the sentence. Call it x.",
    )
    matrix(console, pieces, dimensions, x)

    step(
        console,
        "3  Similarity",
        f"""
Which pieces have to do with each other? Multiply two vectors number by number and add up: the dot product. It is
large where both point the same way. All with all: {shape(dot_products(x))}.""",
    )
    matrix(console, pieces, pieces, dot_products(x))
    console.print("\nThe cosine is the same with all lengths made 1: from -1 to 1, and 1 with oneself.")
    matrix(console, pieces, pieces, cosines(x, x))

    step(
        console,
        "4  Why divide by √d",
        """
A dot product of d random numbers spreads like √d. The softmax of step 5 turns large differences into all or
nothing, and where one weight is 1 no gradient flows. Divided by √d, the spread is 1 whatever d is.
Random queries, each with eight keys:""",
    )
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for name in ("d", "spread of q·k", "of q·k / √d", "largest weight", "with / √d"):
        table.add_column(name, justify="right")
    for s in map(spread, (4, 16, 64, 256)):
        values = (s.deviation, s.deviation_scaled, s.largest_weight, s.largest_weight_scaled)
        table.add_row(str(s.width), *(f"{value:.2f}" for value in values))
    console.print(table)

    scores = dot_products(x) / d_model**0.5
    weights = scores.softmax(dim=-1)
    step(
        console,
        "5  Softmax: scores become shares",
        "eˢ for every score s, divided by the row's sum: nothing is negative, and every row sums to 1.\n"
        "Row = the piece that looks, column = the piece it looks at.",
    )
    matrix(console, pieces, pieces, weights, weights=True)

    chosen = int(weights.amax(dim=-1).argmin())  # the piece that looks at more than itself
    looking, terms = escape(pieces[chosen]), weighted_values(weights[chosen], x)
    step(
        console,
        f"6  The weighted sum, for “{looking}” alone",
        "z = a₁v₁ + a₂v₂ + …: the vector of every piece j, times the share aⱼ. Here the vectors v are x itself.",
    )
    labels = [f"{a:.2f}·{p}" for a, p in zip(weights[chosen].tolist(), pieces, strict=True)]
    matrix(console, [*labels, "z (sum)"], dimensions, torch.cat([terms, terms.sum(dim=0)[None]]))
    z = torch.einsum("st,td->sd", weights, x)
    product = f"{shape(weights)} by {shape(x)} gives {shape(z)}"
    difference = f"{(z[chosen] - terms.sum(dim=0)).abs().max():.1g}"
    console.print(f"\nFor all pieces at once it is one product of matrices, weights times x: {product}.")
    console.print(f"Its row for “{looking}” differs from the sum above by {difference}.")

    call, heads = example.encoder, example.encoder.heads()
    width = heads.q.shape[-1]
    what = "x (with its positions, normalised: what the encoder's first layer reads)" if trained else "x"
    score = f"q·k / √{width}"
    if isinstance(call.attention, CosineAttention):
        score = "g · cosine(q, k)"
    step(
        console,
        "7  What is learned: W_q, W_k, W_v",
        f"""
So far a piece is most similar to itself, and nothing could be learned. Three matrices give each piece three roles:
  query q = x W_q   what I am looking for
  key   k = x W_k   what I can be found by
  value v = x W_v   what I say when I am found
Training finds the matrices (and a bias each). One head: {what} is {shape(call.queries)}, W_q is {shape(heads.w_q[0])},
so q is {shape(heads.q[0])}. Scores {score}, softmax, and the shares of head 1 are:""",
    )
    matrix(console, call.query_names, call.key_names, heads.weights[0], weights=True)
    if isinstance(call.attention, CosineAttention):
        gains = call.attention.gain.detach()
        cosine, last = heads.scores[0, 0, -1] / gains[0], escape(call.key_names[-1])
        learned = ", ".join(f"{gain:.1f}" for gain in gains.tolist())
        console.print(
            f"\nArticles score with q·k / √{width}. This model scores with g · cosine(q, k), another cure for large "
            f"scores: none leaves -g to g. Each head learns its g (here {learned}): the larger, the sharper. "
            f"Head 1, “{first}” with “{last}”: cosine {cosine:.2f} · {gains[0]:.1f} = {heads.scores[0, 0, -1]:.2f}. "
            "All else is the same. The articles' own: python scripts/train.py model.attention=scaled_dot_product"
        )
    if trained:
        console.print("\nTraining starts with W_k = W_q: in this first layer a piece may still look mostly at itself.")
    console.print(f"\nIts result, shares times v, is {shape(heads.contexts[0])}. For “{first}”:")
    roles = torch.stack([heads.q[0, 0], heads.k[0, 0], heads.v[0, 0], heads.contexts[0, 0]])
    matrix(console, ["q", "k", "v", "result"], dimensions[:width], roles)

    count = len(heads.q)
    step(
        console,
        f"8  {count} heads at once",
        f"Each head has matrices of its own, and may look for something else. h heads, s and k positions, "
        f"d = {d_model}, e = {width}:",
    )
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for name in ("", "einsum", "shapes"):
        table.add_column(name)
    table.add_row("q, k, v", "sd,hde->hse", f"{shape(call.queries)}, {shape(heads.w_q)} → {shape(heads.q)}")
    table.add_row("scores", "hse,hke->hsk", f"{shape(heads.q)}, {shape(heads.k)} → {shape(heads.scores)}")
    table.add_row("results", "hsk,hke->hse", f"{shape(heads.weights)}, {shape(heads.v)} → {shape(heads.contexts)}")
    console.print(table)
    console.print("\nWhat each head looks at most:")
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column()
    for i in range(count):
        table.add_column(f"head {i + 1}")
    for name, row in zip(call.query_names, heads.weights.transpose(0, 1), strict=True):
        table.add_row(
            Text(name, style="bold"), *(Text(f"{call.key_names[int(a.argmax())]} {a.max():.0%}") for a in row)
        )
    console.print(table)

    step(
        console,
        "9  Side by side, and W_o",
        f"""
The {count} results of a piece stand side by side, {count} · {width} = {d_model} numbers again, and a last learned
matrix W_o, {d_model} × {d_model}, mixes them: {shape(heads.concatenated)} → {shape(heads.output)}.""",
    )
    matrix(console, call.query_names, dimensions, heads.output)
    same(console, heads.output, call.output())

    call, heads = example.decoder, example.decoder.heads()
    step(
        console,
        "10  The decoder's mask",
        f"""
The decoder writes the translation from left to right. In training it is given the whole of it, so it must not look
at what it is to predict: the score of every later piece becomes -∞ before the softmax, its share exactly 0.
Without it, training would teach the decoder to copy the next piece, which it has not got when it translates.
Scores of head 1, {score}, then shares:""",
    )
    matrix(console, call.query_names, call.key_names, heads.scores[0])
    console.print()
    matrix(console, call.query_names, call.key_names, heads.weights[0], weights=True)
    same(console, heads.output, call.output())

    call, heads = example.cross, example.cross.heads()
    step(
        console,
        "11  Cross-attention: the translation looks at the source",
        f"""
The same once more, with queries from the translation and keys and values from the encoder's output:
q is {shape(heads.q)}, k and v are {shape(heads.k)}, the shares {shape(heads.weights)}. The mean of all heads.
A row has read the piece before its arrow, and looks for what it is to write after it:""",
    )
    steps = [f"{a}→{b}" for a, b in zip(call.query_names, [*call.query_names[1:], "</s>"], strict=True)]
    matrix(console, steps, call.key_names, heads.weights.mean(dim=0), weights=True)
    same(console, heads.output, call.output())

    if trained:
        text = (EVERYDAY / "two_senses.tsv").read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if not line.startswith((RIVER, MONEY))]
        others = words_in_context(model, tokenizer, [line.partition("\t")[0] for line in lines])
        banks = [w for w in words_in_context(model, tokenizer, [RIVER, MONEY]) if w.word == "bank"]
        plain = cosines(banks[0].plain[None], banks[1].plain[None]).item()
        vectors = torch.stack([bank.context for bank in banks])
        step(
            console,
            "12  One word, two meanings",
            f"""
“bank” has one embedding: the cosine between the two is {plain:.2f}. In the encoder each takes in its sentence, and
comes out as a vector of its own. The cosine between these is {cosines(vectors, vectors)[0, 1]:.2f}:""",
        )
        matrix(console, ["river", "money"], dimensions, vectors)
        console.print(
            f"\nWhat each looks at, and what it is nearer to than the other is, of the words of {len(lines)} other "
            "sentences (by how much its cosine is above the other's: 0.1 is next to nothing):"
        )
        for bank, other, italian in zip(banks, banks[::-1], translator.translate([RIVER, MONEY]), strict=True):
            (ids,) = tokenizer.encode([bank.sentence])
            console.print(Text.assemble("\n", (bank.sentence, "bold"), f"  →  {italian.text}"))
            for layer, seen in enumerate(
                (m for m in attention_maps(model, tokenizer, ids, italian.best.ids) if m.name.startswith("encoder")), 1
            ):
                words = merge(seen)
                row = words.queries.index("bank")
                shares = words.weights[:, row].mean(dim=0)
                most = [i for i in shares.argsort(descending=True).tolist() if i != row][:3]
                top = ", ".join(f"{words.keys[i]} {shares[i]:.0%}" for i in most)
                console.print(Text(f"  layer {layer}: looks at itself {shares[row]:.0%}, {top} (mean of the heads)"))
            close = ", ".join(f"{w.word} +{nearer:.2f}" for nearer, w in parting(bank, other, others, 6))
            console.print(Text(f"  nearer to: {close}"))
    console.print()
    if args.html:
        Path(args.html).write_text(console.export_html(inline_styles=True), encoding="utf-8")
        print(f"page {args.html}", file=sys.stderr)


def same(console: Console, ours: Tensor, models: Tensor) -> None:
    difference = f"{(ours - models).abs().max():.1g}"
    whose = "The model's own attention (mt/model/attention.py), with the same matrices"
    console.print(f"\n[bold]{whose}, differs by at most {difference}.[/]")


if __name__ == "__main__":
    with command():
        main()
