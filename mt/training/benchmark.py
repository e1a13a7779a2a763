"""What a processor gives, and what training and translating make of it, beside the usual code for the same network.

Whatever is compared is run in turns, and the median counts: what disturbs the machine for a while disturbs both.
Every function returns plain numbers, as they stand in the JSON of scripts/benchmark.py.
"""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader

from mt.data.batching import Batch, pad
from mt.model.encoder_decoder import EncoderDecoder
from mt.model.evaluating import evaluating
from mt.search import default_max_length
from mt.special_tokens import BOS, EOS, NEVER, PAD
from mt.training.datamodule import TranslationData, loader
from mt.training.module import TranslationModule
from mt.training.precision import check_precision
from mt.training.usual_code import seconds_of_training
from mt.translator import Translator

WARM_UP = 2  # steps that are not counted
PLAIN_ROWS = 64  # sentences that the plain loop translates at a time
MIB = 2**20 if sys.platform == "darwin" else 2**10  # of the unit in which the system gives a process's peak memory


def medians(rounds: int, *tasks: Callable[[], float]) -> list[float]:
    """What each task returns, in the median of rounds in which they take turns."""
    measured = [[task() for task in tasks] for _ in range(rounds)]
    return [statistics.median(values) for values in zip(*measured, strict=True)]


def matrix_products(model: dict[str, Any], rows: int, rounds: int) -> dict[str, float]:
    """GFLOP/s of the model's matrix products, each shape as often as it occurs, in float32 and in bf16.

    model: Transformer's arguments; rows: pieces in a batch.
    """
    d_model, d_ff, layers = model["d_model"], model["d_ff"], model["encoder_layers"] + model["decoder_layers"]
    shapes = [(d_model, d_model)] * (4 * layers + 4 * model["decoder_layers"])
    shapes += [(d_model, d_ff), (d_ff, d_model)] * layers + [(d_model, model["vocab_size"])]

    def gigaflops(dtype: torch.dtype) -> float:
        inputs = {n: torch.randn(rows, n, dtype=dtype) for n, _ in shapes}
        weights = {shape: torch.randn(shape, dtype=dtype) for shape in shapes}
        start = time.perf_counter()
        for n, m in shapes:
            inputs[n] @ weights[n, m]
        return sum(2 * rows * n * m for n, m in shapes) / (time.perf_counter() - start) / 1e9

    float32, bfloat16 = medians(rounds, partial(gigaflops, torch.float32), partial(gigaflops, torch.bfloat16))
    return {"float32_gigaflops": float32, "bfloat16_gigaflops": bfloat16}


def step_flops(model: dict[str, Any], src: int, tgt: int, rows: int) -> int:
    """Floating-point operations of the matrix products of a training step: `rows` pairs of src and tgt pieces.

    A product of (n, m) and (m, k) has 2 n m k; the gradients of its two factors are two more of that size.
    """
    d_model, d_ff = model["d_model"], model["d_ff"]
    encoder = src * (4 * d_model**2 + 2 * d_model * d_ff + 2 * src * d_model)
    decoder = tgt * (6 * d_model**2 + 2 * d_model * d_ff + 2 * (tgt + src) * d_model) + src * 2 * d_model**2
    layers = model["encoder_layers"] * encoder + model["decoder_layers"] * decoder
    return 3 * 2 * rows * (layers + tgt * d_model * model["vocab_size"])


def batch_flops(model: dict[str, Any], batch: Batch) -> int:
    """`step_flops` of the pieces alone: what is spent on padding is not counted."""
    lengths = zip((batch.src != PAD).sum(dim=1).tolist(), (batch.tgt_out != PAD).sum(dim=1).tolist(), strict=True)
    return sum(step_flops(model, src, tgt, 1) for src, tgt in lengths)


class StepClock(L.Callback):
    """Seconds of a fit after its first steps."""

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *args: Any) -> None:
        if trainer.global_step == WARM_UP:
            self.start = time.perf_counter()
        self.end = time.perf_counter()


def training(
    module: TranslationModule,
    data: TranslationData,
    *,
    precision: str,
    gigaflops: float,
    steps: int,
    rounds: int,
) -> dict[str, float]:
    """Target pieces a second: this project through Lightning, the usual code in float32 in a plain loop.

    Both see the same batches, which lie ready in memory. The usual code has a process of its own, whose allocator is as
    the system has it (see `mt.command.arrange_memory`).

    gigaflops: what the matrix products alone would reach, for the bound.
    """
    model: dict[str, Any] = module.content["model"]  # type: ignore[assignment]
    planned = data.batches("train", data.batch_tokens, 0)
    batches = list(loader(data.pairs(planned[: WARM_UP + steps], 0)))
    counted = batches[WARM_UP:]
    if not counted:
        raise ValueError(f"an epoch of {len(batches)} batches is too short to measure: take more pairs")
    pieces = target_pieces(counted)

    def ours() -> float:
        clock = StepClock()
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            precision=precision,  # type: ignore[arg-type]
            max_steps=len(batches),
            gradient_clip_val=1.0,
            callbacks=[clock],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        check_precision(precision, trainer.precision)
        trainer.fit(module, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
        return pieces / (clock.end - clock.start)

    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other_process:

        def usual() -> float:
            settings = (module.learning_rate, module.label_smoothing, WARM_UP)
            return pieces / other_process.submit(seconds_of_training, model, batches, *settings).result()

        usual(), ours()  # into caches, and past the other process's start
        tokens_per_second, usual_tokens_per_second = medians(rounds, ours, usual)
    bound = pieces * gigaflops * 1e9 / sum(batch_flops(model, batch) for batch in counted)
    return {
        "tokens_per_second": tokens_per_second,
        "usual_tokens_per_second": usual_tokens_per_second,
        "ratio": tokens_per_second / usual_tokens_per_second,
        "bound_tokens_per_second": bound,
        "bound_fraction": tokens_per_second / bound,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB,
    }


def input_pipeline(data: TranslationData, budget: int, number: int) -> dict[str, float]:
    """Target pieces a second that come out of the loader, in at most `number` batches, and what of them is padding.

    The work that is done once an epoch counts with the share of the epoch that is read.
    """
    start = time.perf_counter()
    planned = data.batches("train", budget, 0)
    planning = (time.perf_counter() - start) * min(1.0, number / len(planned))
    start = time.perf_counter()
    batches = list(loader(data.pairs(planned[:number], 0), num_workers=data.num_workers))
    seconds = planning + time.perf_counter() - start
    cells = torch.cat([side.flatten() for batch in batches for side in (batch.src, batch.tgt_out)])
    return {
        "tokens_per_second": target_pieces(batches) / seconds,
        "padding": (cells == PAD).float().mean().item(),
    }


def target_pieces(batches: Sequence[Batch]) -> int:
    return sum(int((batch.tgt_out != PAD).sum()) for batch in batches)


@torch.inference_mode()
def plain_greedy(model: EncoderDecoder, sources: Sequence[Sequence[int]], max_length: int | None) -> list[list[int]]:
    """Greedy translations of a batch with everything computed anew at every step. sources: ids with EOS."""
    src = pad(sources)
    bounds = torch.tensor([max_length or default_max_length(len(ids)) for ids in sources])
    tgt = torch.full_like(src[:, :1], BOS)
    ended = torch.zeros(len(src), dtype=torch.bool)
    while not ended.all():
        logits = model(src, tgt)[:, -1]
        logits[:, NEVER] = -torch.inf
        last = logits.argmax(dim=-1).masked_fill(bounds == tgt.shape[1], EOS).masked_fill(ended, PAD)
        tgt = torch.cat([tgt, last[:, None]], dim=1)
        ended |= last == EOS
    return [[i for i in row if i not in (PAD, EOS)] for row in tgt[:, 1:].tolist()]


def decoding(
    translator: Translator, sentences: Sequence[str], *, max_length: int | None, singles: int, rounds: int
) -> dict[str, float]:
    """Sentences a second: greedy and with a beam of 4, all at once and the first `singles` one by one.

    The plain loop has sentences of like length in its batches, too. identical: the share of the sentences of which it
    finds the same translation.
    """
    singles = min(singles, len(sentences))
    ids = [[*row, EOS] for row in translator.tokenizer.encode(sentences)]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    plain: dict[int, list[int]] = {}

    def translate(beam: int) -> float:
        start = time.perf_counter()
        translator.translate(sentences, beam=beam, max_length=max_length)
        return len(sentences) / (time.perf_counter() - start)

    def plainly() -> float:
        start = time.perf_counter()
        with evaluating(translator.model):
            for first in range(0, len(order), PLAIN_ROWS):
                rows = order[first : first + PLAIN_ROWS]
                found = plain_greedy(translator.model, [ids[i] for i in rows], max_length)
                plain.update(zip(rows, found, strict=True))
        return len(sentences) / (time.perf_counter() - start)

    def one_by_one(beam: int) -> float:
        start = time.perf_counter()
        for sentence in sentences[:singles]:
            translator.translate([sentence], beam=beam, max_length=max_length)
        return singles / (time.perf_counter() - start)

    greedy, beam4, usual, single, single_beam4 = medians(
        rounds, partial(translate, 1), partial(translate, 4), plainly, partial(one_by_one, 1), partial(one_by_one, 4)
    )
    found = translator.translate(sentences, beam=1, max_length=max_length)
    return {
        "greedy_per_second": greedy,
        "beam4_per_second": beam4,
        "plain_greedy_per_second": usual,
        "single_per_second": single,
        "single_beam4_per_second": single_beam4,
        "greedy_ratio": greedy / usual,
        "beam4_cost": greedy / beam4,
        "identical": sum(t.best.ids == plain[i] for i, t in enumerate(found)) / len(found),
    }


def startup(command: Sequence[str], rounds: int) -> dict[str, float]:
    """Seconds from starting a Python command to its end, beside those of `import torch`."""

    def seconds(arguments: Sequence[str]) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return time.perf_counter() - start

    bare = ["-c", "import torch"]
    seconds(bare)  # into the system's file cache
    translate, torch_alone = medians(rounds, partial(seconds, command), partial(seconds, bare))
    return {"seconds": translate, "import_torch_seconds": torch_alone, "ratio": translate / torch_alone}
