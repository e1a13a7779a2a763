"""Training through Lightning: what it learns, how it stops and goes on, and what it leaves behind."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mt.data.batching import NONE, make_batch
from mt.data.corpus import Corpus, prepare
from mt.model.attention_variants import ATTENTION
from mt.special_tokens import PAD
from mt.training.callbacks import StopWhenUsedUp, Throughput, Translations, spread
from mt.training.checkpoints import LastCheckpoint
from mt.training.datamodule import TranslationData
from mt.training.latent_semantics import latent_vectors
from mt.training.module import TranslationModule
from mt.training.schedule import learning_rate_factor
from mt.translator import Translator, load_checkpoint

PAIRS = [
    ("The red house is big.", "La casa rossa è grande."),
    ("Where is the station?", "Dov'è la stazione?"),
    ("I would like a glass of water.", "Vorrei un bicchiere d'acqua."),
    ("My sister reads a book.", "Mia sorella legge un libro."),
    ("We don't know.", "Non lo sappiamo."),
    ("It is raining today!", "Oggi piove!"),
]
MODEL = {
    "architecture": "transformer", "attention": "scaled_dot_product", "positions": "sinusoidal",
    "d_model": 48, "num_heads": 3, "d_ff": 96, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0,
}  # fmt: skip
RECURRENT = {"architecture": "recurrent", "attention": "additive", "d_model": 48, "num_heads": 1, "dropout": 0.0}
LOGGED = ("train/loss", "train/gradient_norm", "val/loss", "val/perplexity", "val/chrf")
OTHERS = [
    *({**MODEL, "attention": name} for name in ATTENTION if name != MODEL["attention"]),
    *({**MODEL, "positions": name} for name in ("learned", "none")),
    {**RECURRENT, "attention": "none"},
]


def prepared(folder: Path, pairs: list[tuple[str, str]]) -> Corpus:
    held_out = [("Yes.", "Sì."), ("Good night.", "Buona notte."), ("Thank you very much.", "Grazie mille.")]
    for name, split in (("train", pairs), ("validation", held_out[:2]), ("test", held_out[2:])):
        (folder / f"{name}.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in split), encoding="utf-8")
    return prepare(
        **{name: str(folder / f"{name}.tsv") for name in ("train", "validation", "test")},
        columns=["en", "it"],
        src="en",
        tgt="it",
        vocab_size=330,
        max_pieces=60,
        max_ratio=6.0,
        held_out=1,
        cache_dir=str(folder / "cache"),
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepared(tmp_path_factory.mktemp("corpus"), PAIRS)


def make(
    corpus: Corpus,
    folder: Path,
    batch_tokens: int = 60,
    dropout: float = 0.0,
    model: dict[str, Any] = MODEL,
    embedding_start: str = "latent_semantics",
    **trainer: Any,
) -> Any:
    """A trainer, a module and its data, as scripts/train.py puts them together."""
    L.seed_everything(7, verbose=False)
    settings = {
        "data": {"src": "en", "tgt": "it"},
        "model": {**model, "dropout": dropout},
        "embedding_start": embedding_start,
        "decoding": {"beam": 2, "length_penalty": 1.0},
        "optimizer": {
            "learning_rate": 5e-3, "warmup_steps": 10, "weight_decay": 0.0, "beta2": 0.98, "label_smoothing": 0.1,
        },
    }  # fmt: skip
    module = TranslationModule.untrained(settings, corpus)
    data = TranslationData(
        corpus,
        batch_tokens=batch_tokens,
        one_translation=True,
        joined=dropout,
        noise=dropout,
        sampling=dropout,
        num_workers=0,
        seed=7,
    )
    checkpoint = L.pytorch.callbacks.ModelCheckpoint(
        dirpath=folder, filename="best", monitor="val/chrf", mode="max", enable_version_counter=False
    )
    last = L.pytorch.callbacks.ModelCheckpoint(dirpath=folder, filename="last", enable_version_counter=False)
    callbacks = [checkpoint, last, StopWhenUsedUp(), Throughput(), Translations(num_scored=1, num_shown=1)]
    options = {
        "max_epochs": -1,
        "accelerator": "cpu",
        "gradient_clip_val": 1.0,
        "logger": False,
        "check_val_every_n_epoch": None,
        "val_check_interval": 10_000,
    } | trainer
    trainer_ = L.Trainer(
        callbacks=callbacks,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        use_distributed_sampler=False,
        enable_model_summary=False,
        reload_dataloaders_every_n_epochs=1,
        **options,
    )
    return trainer_, module, data


def weights(module: TranslationModule) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.model.state_dict().items()}


@pytest.mark.parametrize(
    "model",
    [MODEL, RECURRENT, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)],
    ids=lambda m: f"{m['architecture']}-{m['attention']}-{m.get('positions')}",
)
def test_six_pairs_are_learnt_by_heart_and_translated_from_the_reloaded_checkpoint(
    corpus: Corpus, tmp_path: Path, model: dict[str, Any]
) -> None:
    trainer, module, data = make(corpus, tmp_path, model=model, max_steps=350)
    trainer.fit(module, data)
    translator = Translator.load(tmp_path / "last.ckpt")
    assert [t.text for t in translator.translate([src for src, _ in PAIRS])] == [tgt for _, tgt in PAIRS]
    assert [t.text for t in translator.translate([src for src, _ in PAIRS], beam=1)] == [tgt for _, tgt in PAIRS]


def test_embeddings_start_where_the_settings_say_and_nothing_else_differs(corpus: Corpus, tmp_path: Path) -> None:
    latent, random = (
        weights(make(corpus, tmp_path, embedding_start=start)[1]) for start in ("latent_semantics", "random")
    )
    name = "embedding.token.weight"
    directions = latent_vectors(corpus.splits["train"], *latent[name].shape)
    seen = directions.any(dim=1)
    assert (torch.cosine_similarity(latent[name], directions, dim=1)[seen] > 0.9).all()
    assert torch.cosine_similarity(random[name], directions, dim=1)[seen].abs().mean() < 0.3
    assert torch.allclose(latent.pop(name)[~seen], random.pop(name)[~seen])
    assert all(torch.equal(latent[other], random[other]) for other in random)


@pytest.mark.parametrize("validate_every", [10_000, 1])
@pytest.mark.parametrize("stop", [3, 4, 5])
def test_a_run_that_stopped_goes_on_to_the_bits_of_one_that_never_did(
    corpus: Corpus, tmp_path: Path, stop: int, validate_every: int
) -> None:
    """Three batches an epoch: stops within an epoch, at its end, and after it; with dropout, noise and sampling.

    The checkpoint is of the middle of a step's bookkeeping, or the one that is kept after a validation.
    """
    options = {"dropout": 0.2, "max_steps": 9, "accumulate_grad_batches": 2, "val_check_interval": validate_every}
    trainer, module, data = make(corpus, tmp_path / "whole", **options)
    trainer.fit(module, data)
    undisturbed = weights(module)
    saved = tmp_path / ("stopped.ckpt" if validate_every > 1 else "part/last.ckpt")

    class Stop(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            if trainer.global_step == stop:
                if validate_every > 1:
                    trainer.save_checkpoint(saved)
                trainer.should_stop = True

    trainer, module, data = make(corpus, tmp_path / "part", **options)
    trainer.callbacks.append(Stop())
    trainer.fit(module, data)
    assert trainer.global_step == load_checkpoint(saved)["global_step"] == stop
    torch.manual_seed(99)
    trainer, module, data = make(corpus, tmp_path / "rest", **options)
    trainer.fit(module, data, ckpt_path=saved, weights_only=True)
    assert trainer.global_step == 9
    for name, tensor in weights(module).items():
        assert torch.equal(tensor, undisturbed[name]), name


@pytest.mark.parametrize("share", [None, 0.5])
@pytest.mark.parametrize(("batch_tokens", "batches"), [(10_000, 1), (40, 4)])
def test_a_step_follows_the_mean_per_token_of_all_its_micro_batches_within_the_bound(
    corpus: Corpus, tmp_path: Path, batch_tokens: int, batches: int, share: float | None
) -> None:
    """share: the bound on the gradient's norm, as a share of it."""
    _, module, _ = make(corpus, tmp_path)
    split = corpus.splits["train"]
    batch = make_batch(list(split["src_ids"]), list(split["tgt_ids"]))
    logits = module.model(batch.src, batch.tgt_in)
    loss = F.cross_entropy(logits.transpose(1, 2), batch.tgt_out, ignore_index=PAD, label_smoothing=0.1)
    gradients = torch.autograd.grad(loss, list(module.model.parameters()))
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()

    options = {"max_steps": 1, "accumulate_grad_batches": batches, "log_every_n_steps": 1}
    trainer, module, data = make(corpus, tmp_path, batch_tokens, gradient_clip_val=share and share * norm, **options)
    assert len(data.batches("train", batch_tokens, 0)) == batches
    before = weights(module)
    module.learning_rate = 10.0  # 1 in the first of ten steps of warm-up: a step is the gradient
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=1.0)
    trainer.fit(module, data)
    for (name, parameter), gradient in zip(module.model.named_parameters(), gradients, strict=True):
        step = before[name] - parameter.detach()
        torch.testing.assert_close(step, (share or 1.0) * gradient, rtol=1e-3, atol=1e-6, msg=name)
    logged = [float(trainer.callback_metrics[f"train/{name}"]) for name in ("loss", "gradient_norm")]
    assert logged == pytest.approx([loss.item(), norm], rel=1e-4)


def test_a_run_that_ends_within_a_step_leaves_a_checkpoint_to_go_on_from(corpus: Corpus, tmp_path: Path) -> None:
    class Stop(L.Callback):
        def on_train_batch_end(
            self, trainer: L.Trainer, module: L.LightningModule, out: Any, batch: Any, i: int
        ) -> None:
            trainer.should_stop = i == 2  # two micro-batches made a step, the third waits for the fourth

    options = {"max_time": "00:00:05:00", "accumulate_grad_batches": 2}
    trainer, module, data = make(corpus, tmp_path, 40, **options)
    trainer.callbacks += [LastCheckpoint(dirpath=tmp_path, filename="newest", enable_version_counter=False), Stop()]
    trainer.fit(module, data)
    assert load_checkpoint(tmp_path / "newest.ckpt")["global_step"] == trainer.global_step == 1
    trainer, module, data = make(corpus, tmp_path, 40, max_steps=3, accumulate_grad_batches=2)
    trainer.fit(module, data, ckpt_path=tmp_path / "newest.ckpt", weights_only=True)
    assert trainer.global_step == 3


def test_a_run_that_stopped_at_an_epochs_end_makes_all_of_a_next_one_with_more_batches(tmp_path: Path) -> None:
    """An epoch's translations are drawn anew, so its number of batches changes."""
    words = ("Go.", "Stop.", "Eat.", "Sleep.")
    told = [pair for word in words for pair in ((word, word[:2]), (word, f"Adesso, per favore, {word} E subito via."))]
    corpus = prepared(tmp_path, [*PAIRS, *told])
    data = make(corpus, tmp_path / "plan")[2]
    batches = [len(data.batches("train", 60, epoch)) for epoch in range(30)]
    longer = next(epoch for epoch in range(1, 30) if batches[epoch] > batches[epoch - 1])
    saved, stop = tmp_path / "stopped.ckpt", sum(batches[:longer])

    class Stop(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            if trainer.global_step == stop:
                trainer.save_checkpoint(saved)

    trainer, module, data = make(corpus, tmp_path / "whole", max_epochs=longer + 2)
    trainer.callbacks.append(Stop())
    trainer.fit(module, data)
    undisturbed, steps = weights(module), trainer.global_step
    assert steps == sum(batches[: longer + 2])
    trainer, module, data = make(corpus, tmp_path / "rest", max_epochs=longer + 2)
    trainer.fit(module, data, ckpt_path=saved, weights_only=True)
    assert trainer.global_step == steps
    assert all(torch.equal(tensor, undisturbed[name]) for name, tensor in weights(module).items())


def test_an_epoch_holds_each_source_sentence_once_with_a_translation_drawn_anew(tmp_path: Path) -> None:
    told = [("Come here!", "Vieni qui!"), ("come here", "Venga qui."), ("Come here!", "Venite qui!")]
    corpus = prepared(tmp_path, [*PAIRS, *told])
    data = make(corpus, tmp_path / "run")[2]

    def epoch(number: int | None, split: str = "train") -> list[str]:
        rows = np.concatenate(data.batches(split, 60, number))
        return [corpus.splits[split][i]["tgt"] for i in rows[rows != NONE].tolist()]

    commands = {tgt for _, tgt in told}
    epochs = [epoch(number) for number in range(12)]
    assert all(len(found) == len(PAIRS) + 1 and len(set(found) & commands) == 1 for found in epochs)
    assert set().union(*epochs) >= commands, "each of them some time"
    assert epoch(3) == epochs[3]
    assert sorted(epoch(None, "validation")) == ["Buona notte.", "Sì."], "what is measured is all of it"
    data.one_translation, data.joined = False, 0.5
    assert sorted(epoch(0)) == sorted(tgt for _, tgt in [*PAIRS, *told])


def test_what_is_shown_is_spread_over_the_sentences_whatever_stands_first() -> None:
    assert spread(range(2_001), 5) == [200, 600, 1_000, 1_400, 1_800]
    assert spread("abc", 3) == spread("abc", 9) == ["a", "b", "c"]
    assert spread("abc", 1) == ["b"] and spread("abc", 0) == spread("", 4) == []


class Diary(L.Callback):
    """Leaves in a file of each process what it saw: its training batches and the metrics at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[list[list[int]]] = []

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, index: int) -> None:
        self.seen.append(batch.src.tolist())

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        metrics = {name: float(trainer.callback_metrics[name]) for name in LOGGED}
        (self.folder / f"{trainer.global_rank}.json").write_text(json.dumps([self.seen, metrics]), encoding="utf-8")


def test_two_processes_share_an_epoch_and_step_like_one_that_accumulates_their_batches(
    corpus: Corpus, tmp_path: Path
) -> None:
    diaries = {}
    for processes in (2, 1):
        folder = tmp_path / str(processes)
        options = {"devices": 2, "strategy": "ddp_fork"} if processes == 2 else {"accumulate_grad_batches": 2}
        options |= {"max_epochs": 2, "val_check_interval": 1, "log_every_n_steps": 1}
        trainer, module, data = make(corpus, folder, 40, **options)
        trainer.callbacks.append(Diary(folder))
        trainer.fit(module, data)
        diaries[processes] = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    (first, first_metrics), (second, second_metrics) = diaries[2]
    ((alone, metrics),) = diaries[1]
    assert [batch for both in zip(first, second, strict=True) for batch in both] == alone
    assert len(alone) == 2 * 4 and sum(map(len, alone)) == 2 * len(PAIRS)
    assert first_metrics == second_metrics == pytest.approx(metrics, rel=1e-4)
    two, one = (load_checkpoint(tmp_path / name / "last.ckpt")["state_dict"] for name in ("2", "1"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


def test_resuming_with_another_corpus_model_or_language_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    trainer, module, data = make(corpus, tmp_path, max_steps=1)
    trainer.fit(module, data)
    for name, other, said in (
        ("corpus", "deadbeef", f"corpus: checkpoint {corpus.fingerprint}, this run deadbeef"),
        ("tgt", "de", "data.tgt: checkpoint it, this run de"),
        ("model", {**module.content["model"], "d_ff": 7}, f"model.d_ff: checkpoint {MODEL['d_ff']}, this run 7"),
    ):
        trainer, module, data = make(corpus, tmp_path / "again", max_steps=2)
        module.content = {**module.content, name: other}
        with pytest.raises(ValueError, match=f"^can't resume: {said}$"):
            trainer.fit(module, data, ckpt_path=tmp_path / "last.ckpt", weights_only=True)


def test_a_resumed_run_has_the_optimizer_it_is_told(corpus: Corpus, tmp_path: Path) -> None:
    trainer, module, data = make(corpus, tmp_path, max_steps=1)
    trainer.fit(module, data)
    trainer, module, data = make(corpus, tmp_path / "again", max_steps=2)
    module.weight_decay, module.beta2, module.learning_rate = 0.5, 0.9, 1e-4
    trainer.fit(module, data, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    groups = trainer.optimizers[0].param_groups
    assert [(group["weight_decay"], group["betas"]) for group in groups] == [(0.5, (0.9, 0.9)), (0.0, (0.9, 0.9))]
    assert all(0 < group["lr"] <= 1e-4 for group in groups)


def test_a_training_loss_that_is_not_finite_stops_the_run_and_names_step_and_sentences(
    corpus: Corpus, tmp_path: Path
) -> None:
    trainer, module, data = make(corpus, tmp_path, max_steps=9)

    class Poison(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Any, batch_index: int) -> None:
            if trainer.global_step == 4:
                with torch.no_grad():
                    module.model.embedding.token.weight[5] = torch.nan

    trainer.callbacks.append(Poison())
    with pytest.raises(ValueError, match=r"not finite in step 5, whose batch holds the training pairs \d") as error:
        trainer.fit(module, data)
    assert any(repr(src) in str(error.value) for src, _ in PAIRS)


def test_a_checkpoint_holds_plain_values_and_no_pickled_code(corpus: Corpus, tmp_path: Path) -> None:
    trainer, module, data = make(corpus, tmp_path, max_steps=1)
    trainer.fit(module, data)
    content = load_checkpoint(tmp_path / "last.ckpt")["mt"]
    assert content["model"] == {"vocab_size": 330, **MODEL}
    assert (content["src"], content["tgt"], content["corpus"]) == ("en", "it", corpus.fingerprint)


def test_the_learning_rate_warms_up_and_falls_to_zero() -> None:
    assert learning_rate_factor(0, 10, 0.0) == pytest.approx(0.1)
    assert learning_rate_factor(9, 10, 0.0) == 1.0
    assert learning_rate_factor(500, 10, 0.25) == pytest.approx(0.75)
    assert learning_rate_factor(500, 10, 1.0) == 0.0


def test_a_worker_says_nothing_where_its_run_is_killed_while_taking_a_batch_over() -> None:
    program = """if True:
        import os, socket, sys, time
        from multiprocessing.resource_sharer import DupFd
        from mt.training.datamodule import end_with_the_run
        if sys.argv[1:]:
            end_with_the_run(0)
        address = DupFd(os.open(os.devnull, os.O_RDONLY))._id[0]
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        connection.close()
        time.sleep(0.5)
    """
    said = [
        subprocess.run([sys.executable, "-c", program, *given], capture_output=True, text=True, timeout=100).stderr
        for given in ([], ["quiet"])
    ]
    assert "Traceback" in said[0] and said[1] == ""


def test_the_perplexity_of_a_loss_beyond_all_bounds_is_infinite(
    module: TranslationModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: dict[str, Any] = {}
    trainer = SimpleNamespace(strategy=SimpleNamespace(reduce=lambda sums, reduce_op: sums), global_step=1)
    monkeypatch.setattr(TranslationModule, "trainer", trainer)
    monkeypatch.setattr(module, "log_dict", logged.update)
    monkeypatch.setattr(module, "log", lambda *_: None)
    for nll, perplexity in ((2.0, math.exp(2)), (800.0, math.inf)):
        module._validation_sums = torch.tensor([3 * nll, 4 * nll, 4.0])
        module.on_validation_epoch_end()
        assert [float(value) for value in logged.values()] == pytest.approx([0.75 * nll, nll, perplexity])
