"""The LightningModule: loss per target token, optimizer, learning rate, and what a checkpoint holds."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mt.data.batching import NONE, Batch
from mt.data.corpus import Corpus
from mt.model.build import build_model
from mt.tokenizer import Tokenizer
from mt.training.checkpoints import check_same
from mt.training.latent_semantics import latent_vectors
from mt.training.loss import Loss, cross_entropy
from mt.training.schedule import learning_rate_factor, progress
from mt.translator import FORMAT, Translator


class TranslationModule(L.LightningModule):
    """Trains a model on batches of pairs."""

    def __init__(
        self,
        *,
        model: dict[str, Any],
        tokenizer: Tokenizer,
        src: str,
        tgt: str,
        corpus: str,
        decoding: dict[str, Any],
        learning_rate: float,
        warmup_steps: int,
        weight_decay: float,
        beta2: float,
        label_smoothing: float,
    ) -> None:
        """model: build_model's arguments but vocab_size. corpus: its fingerprint. decoding: beam and length_penalty."""
        super().__init__()
        arguments = {"vocab_size": len(tokenizer), **model}
        self.model = build_model(**arguments)
        self.translator = Translator(self.model, tokenizer, src, tgt, **decoding)
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.weight_decay = weight_decay
        self.beta2 = beta2
        self.label_smoothing = label_smoothing
        self.content = {
            "format": FORMAT,
            "src": src,
            "tgt": tgt,
            "model": arguments,
            "decoding": decoding,
            "corpus": corpus,
            "tokenizer": torch.frombuffer(bytearray(tokenizer.model), dtype=torch.uint8),
        }
        self._step_sums = torch.zeros(3)  # smoothed, nll, tokens: of what waits for the next optimizer step
        self._random_states: tuple[Tensor, list[Tensor]] | None = None  # of the checkpoint that is resumed
        self._validation_sums = torch.zeros(3)  # smoothed, nll, tokens

    @classmethod
    def untrained(cls, settings: Mapping[str, Any], corpus: Corpus) -> "TranslationModule":
        """settings: as conf/train.yaml has them."""
        module = cls(
            model=settings["model"],
            tokenizer=corpus.tokenizer,
            src=settings["data"]["src"],
            tgt=settings["data"]["tgt"],
            corpus=corpus.fingerprint,
            decoding=settings["decoding"],
            **settings["optimizer"],
        )
        if settings["embedding_start"] == "latent_semantics":
            weight = module.model.embedding.token.weight
            module.model.embedding.start_near(latent_vectors(corpus.splits["train"], *weight.shape))
        return module

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW (Loshchilov & Hutter 2019); biases, norms and embeddings are not decayed."""
        decayed = [p for name, p in self.model.named_parameters() if p.dim() > 1 and "embedding" not in name]
        others = [p for name, p in self.model.named_parameters() if p.dim() <= 1 or "embedding" in name]
        groups = [
            {"params": decayed, "weight_decay": self.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        fused = self.trainer.precision != "16-mixed"  # fused, it would unscale the gradients after they are clipped
        return torch.optim.AdamW(groups, lr=self.learning_rate, betas=(0.9, self.beta2), fused=fused)

    def loss(self, batch: Batch) -> Loss:
        x = self.model.decode(self.model.encode(batch.src), batch.src, batch.tgt_in)
        return cross_entropy(x, self.model.embedding.token.weight, batch.tgt_out, self.label_smoothing)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        loss = self.loss(batch)
        if not loss.smoothed.isfinite():
            raise ValueError(self._not_finite(batch_index))
        self._step_sums = self._step_sums.to(self.device) + _sums(loss)
        return loss.smoothed

    def _is_logged(self) -> bool:
        """Whether this step is one of those that are written: what the others log would cost time and be dropped."""
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        return every > 0 and (self.trainer.global_step + 1) % every == 0

    def _not_finite(self, batch_index: int) -> str:
        """Where the training loss broke down. Nothing of it is kept: the weights are still those of the step before."""
        pairs = self.trainer.train_dataloader.dataset  # type: ignore[union-attr]
        rows = pairs.batches[batch_index]
        indices = rows[rows != NONE].tolist()
        first = pairs.tokenizer.decode(pairs.ids[indices[0]]["src_ids"])[:60]
        return (
            f"the loss is not finite in step {self.trainer.global_step + 1}, whose batch holds the training pairs "
            f"{', '.join(map(str, indices))} (the first: {first!r}): lower optimizer.learning_rate; "
            "best.ckpt and last.ckpt stay as they were"
        )

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        used = self.trainer.strategy.broadcast(progress(self.trainer))
        rate = self.learning_rate * learning_rate_factor(self.trainer.global_step, self.warmup_steps, used)
        for group in optimizer.param_groups:
            group["lr"] = rate
        if self._is_logged():
            self.log("train/learning_rate", rate)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Turn the gradient of a sum into that of a mean per target token, and bound its norm, in one go.

        The mean is over all micro-batches and devices.
        """
        smoothed, nll, tokens = self.trainer.strategy.reduce(self._step_sums, reduce_op="sum")
        self._step_sums = torch.zeros(3)
        # Lightning has divided each micro-batch by their number, and averaged over the devices.
        factor = self.trainer.accumulate_grad_batches * self.trainer.world_size / tokens
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients) * factor
        bound = (gradient_clip_val or math.inf) / norm
        torch._foreach_mul_(gradients, factor * bound.clamp(max=1.0))
        if self._is_logged():
            values = {"train/loss": smoothed / tokens, "train/nll": nll / tokens, "train/gradient_norm": norm}
            self.log_dict(values)
            # Lightning's name for where these stand on TensorBoard's axis
            self.log("step", self.trainer.global_step + 1.0)

    def on_validation_epoch_start(self) -> None:
        self._validation_sums = torch.zeros(3, device=self.device)

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        loss = self.loss(batch)
        if not loss.nll.isfinite():
            raise ValueError(
                f"the loss is not finite after step {self.trainer.global_step}: lower optimizer.learning_rate"
            )
        self._validation_sums += _sums(loss)

    def on_validation_epoch_end(self) -> None:
        smoothed, nll, tokens = self.trainer.strategy.reduce(self._validation_sums, reduce_op="sum")
        values = {"val/loss": smoothed / tokens, "val/nll": nll / tokens, "val/perplexity": (nll / tokens).exp()}
        self.log_dict(values)
        self.log("step", float(self.trainer.global_step))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mt"] = self.content
        checkpoint["random_state"] = torch.get_rng_state()  # what dropout draws from
        checkpoint["cuda_random_states"] = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """ValueError if the checkpoint is of another model, tokenizer, corpus or language pair."""
        check_same(_identity(checkpoint["mt"]), _identity(self.content))
        self._random_states = (checkpoint["random_state"], checkpoint["cuda_random_states"])
        groups = checkpoint["optimizer_states"][0]["param_groups"]
        for group, weight_decay in zip(groups, (self.weight_decay, 0.0), strict=True):
            group.update(weight_decay=weight_decay, betas=(0.9, self.beta2))  # this run's; the rate is set at each step

    def on_train_start(self) -> None:
        if self._random_states is not None:
            torch.set_rng_state(self._random_states[0])
            for device, state in zip(range(torch.cuda.device_count()), self._random_states[1], strict=False):
                torch.cuda.set_rng_state(state, device)


def _sums(loss: Loss) -> Float[Tensor, "3"]:
    return torch.stack([part.detach().float() for part in loss])


def _identity(content: dict[str, Any]) -> dict[str, Any]:
    """What a run has in common with the checkpoint that it resumes, by the names of the settings."""
    digest = hashlib.sha256(content["tokenizer"].numpy().tobytes()).hexdigest()
    languages = {f"data.{side}": content[side] for side in ("src", "tgt")}
    model = {f"{'data' if name == 'vocab_size' else 'model'}.{name}": v for name, v in content["model"].items()}
    return {**languages, **model, "corpus": content.get("corpus"), "tokenizer": digest[:16]}
