"""What the tests share: one thread, no network, shapes checked by beartype, a tiny model that has learnt something."""

# ruff: noqa: E402

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}  # read when they are first imported

from pathlib import Path
from typing import TypeVar

import pytest
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as mypy has it
install_import_hook("mt", f"{__name__}.typechecker")  # before anything imports mt

from mt.data.batching import make_batch
from mt.model.attention_variants import ATTENTION
from mt.model.encoder_decoder import EncoderDecoder
from mt.model.recurrent import Recurrent
from mt.model.transformer import Transformer
from mt.tokenizer import Tokenizer
from mt.training.loss import cross_entropy
from mt.training.module import TranslationModule

torch.set_num_threads(1)

SUBJECTS = {
    "I want": "Voglio", "You sell": "Vendi", "He paints": "Dipinge", "We carry": "Portiamo", "They wash": "Lavano",
    "Do you see": "Vedi", "Anna hides": "Anna nasconde", "My brother repairs": "Mio fratello ripara",
    "Yesterday I lost": "Ieri ho perso", "Tomorrow we will buy": "Domani compreremo",
}  # fmt: skip
OBJECTS = {
    "a red chair": "una sedia rossa", "the old boat": "la vecchia barca", "two boxes": "due scatole",
    "a small mirror": "un piccolo specchio", "the garden door": "la porta del giardino", "an umbrella": "un ombrello",
    "the blue bicycle": "la bicicletta blu", "some paper": "della carta", "his guitar": "la sua chitarra",
    "the kitchen table": "il tavolo della cucina",
}  # fmt: skip
PAIRS = [
    (f"{subject} {thing}{mark}", f"{soggetto} {cosa}{mark}")
    for subject, soggetto in SUBJECTS.items()
    for (thing, cosa) in OBJECTS.items()
    for mark in ["?" if subject.startswith("Do") else "."]
]

LEARNT = PAIRS[:40]
VOCAB_SIZE = 380
TINY = {
    "architecture": "transformer", "attention": "scaled_dot_product", "positions": "sinusoidal",
    "d_model": 24, "num_heads": 3, "d_ff": 48, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.02,
}  # fmt: skip


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([sentence for pair in PAIRS for sentence in pair], VOCAB_SIZE)


SIZES = {"d_model": 12, "num_heads": 3, "d_ff": 20, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.4}


@pytest.fixture
def model() -> Transformer:
    """B=2 T=5 S=7 D=12 H=3 and V=19 are pairwise distinct in the tests that use it."""
    torch.manual_seed(0)
    return unlike(Transformer(vocab_size=19, attention="scaled_dot_product", positions="sinusoidal", **SIZES).eval())


Model = TypeVar("Model", bound=EncoderDecoder)


def unlike(model: Model) -> Model:
    """With weights of which none is a copy of another, as they are at a model's start: a mix-up shows."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.xavier_uniform_(parameter)
    return model


@pytest.fixture(
    params=[
        *(("transformer", attention, "sinusoidal") for attention in ATTENTION),
        *(("transformer", "scaled_dot_product", positions) for positions in ("learned", "none")),
        *(("recurrent", attention, "none") for attention in ("additive", "scaled_dot_product", "none")),
    ],
    ids="-".join,
)
def any_model(request: pytest.FixtureRequest) -> EncoderDecoder:
    """`model` and everything that can stand in its place, with the same sizes."""
    architecture, attention, positions = request.param
    torch.manual_seed(0)
    if architecture == "transformer":
        return unlike(Transformer(vocab_size=19, attention=attention, positions=positions, **SIZES).eval())
    return Recurrent(vocab_size=19, attention=attention, d_model=12, num_heads=3, dropout=0.4).eval()


@pytest.fixture(scope="session")
def module(tokenizer: Tokenizer) -> TranslationModule:
    """Has learnt the pairs of LEARNT, in some three seconds."""
    torch.manual_seed(1)
    module = TranslationModule(
        model=TINY, tokenizer=tokenizer, src="en", tgt="it", corpus="tests",
        decoding={"beam": 3, "length_penalty": 1.0},
        learning_rate=1e-2, warmup_steps=1, weight_decay=0.0, beta2=0.98, label_smoothing=0.1,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(module.parameters(), lr=module.learning_rate, betas=(0.9, module.beta2))
    batch = make_batch(*(tokenizer.encode([pair[side] for pair in LEARNT]) for side in (0, 1)))
    model = module.model.train()
    for _ in range(120):
        x = model.decode(model.encode(batch.src), batch.src, batch.tgt_in)
        loss = cross_entropy(x, model.embedding.token.weight, batch.tgt_out, 0.1)
        optimizer.zero_grad()
        (loss.smoothed / loss.tokens).backward()
        optimizer.step()
    return module.eval()


@pytest.fixture
def checkpoint(module: TranslationModule, tmp_path: Path) -> Path:
    """Written as Lightning does it: the state, and what the module adds to it."""
    content = {"epoch": 0, "global_step": 100, "state_dict": module.state_dict(), "optimizer_states": [{}]}
    module.on_save_checkpoint(content)
    torch.save(content, tmp_path / "best.ckpt")
    return tmp_path / "best.ckpt"
