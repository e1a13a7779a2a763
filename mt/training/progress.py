"""A progress bar over the whole run, with the time left."""

import time
from typing import Any

import lightning as L
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from mt.training.schedule import progress

SHOWN = {"train/loss": "loss", "val/loss": "val loss", "val/chrf": "chrF", "val/bleu": "BLEU"}


class TimeLeft(L.Callback):
    """On a terminal a bar, elsewhere a line at each validation."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._start = (0.0, 0.0)

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._start = (time.perf_counter(), progress(trainer))
        if self._console.is_terminal and trainer.is_global_zero:
            columns = (BarColumn(), TextColumn("{task.percentage:3.0f} % {task.description}"))
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task("", total=1.0)
            self._bar.start()

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if self._bar is not None and trainer.global_step % 5 == 0:
            self._bar.update(self._task, completed=progress(trainer), description=self._line(trainer))

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self._bar is None and trainer.is_global_zero:
            self._console.print(f"{progress(trainer):4.0%} {self._line(trainer)}", highlight=False)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _line(self, trainer: L.Trainer) -> str:
        share, (began, at) = progress(trainer), self._start
        left = (time.perf_counter() - began) * (1 - share) / max(share - at, 1e-9)
        minutes, seconds = divmod(max(0, round(left)), 60)
        metrics = trainer.callback_metrics
        values = "  ".join(f"{name} {metrics[key]:.2f}" for key, name in SHOWN.items() if key in metrics)
        return f"step {trainer.global_step}  {values}  {minutes}:{seconds:02d} left"
