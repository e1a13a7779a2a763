"""The learning rate over a run: a linear warm-up in steps, then linearly down to zero as the budget is used up."""

import lightning as L
from lightning.pytorch.callbacks import Timer


def learning_rate_factor(step: int, warmup_steps: int, progress: float) -> float:
    """Factor on the peak learning rate for optimizer step `step`, counted from 0; progress: see below."""
    return min(1.0, (step + 1) / max(1, warmup_steps)) * max(0.0, 1.0 - progress)


def progress(trainer: L.Trainer) -> float:
    """Share of the run's steps, epochs or minutes that is used up, whichever is furthest; at least 1 when it is over.

    Each process reads its own clock: what must be the same on all of them takes that of the first.
    A run that is given minutes so ends with small steps on a slow machine as well as on a fast one.
    """
    shares = [0.0]
    if trainer.max_steps > 0:
        shares.append(trainer.global_step / trainer.max_steps)
    if trainer.max_epochs is not None and trainer.max_epochs > 0:
        batches = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        shares.append((trainer.current_epoch + batches / trainer.num_training_batches) / trainer.max_epochs)
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Timer) and (remaining := callback.time_remaining()) is not None:
            shares.append(callback.time_elapsed() / (callback.time_elapsed() + remaining))
    return max(shares)
