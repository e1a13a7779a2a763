"""Checkpoints that outlast a run: written whole or not at all, and once more when the run is told to stop."""

import io
import os
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint

from mt.translator import Translator, load_checkpoint


class WholeFiles(TorchCheckpointIO):
    """Writes beside the old checkpoint, then renames: a crash or a full disk leaves the old one as it was."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """OSError, naming the file, where it can't be written."""
        path = Path(path)
        part = path.with_name(f"{path.name}.part")
        content = io.BytesIO()
        torch.save(checkpoint, content)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(content.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise OSError(f"{path} can't be written: {error.strerror}") from None


MODES = {"val/loss": "min", "val/nll": "min", "val/perplexity": "min", "val/bleu": "max", "val/chrf": "max"}


def mode_of(metric: str) -> str:
    """Whether the least or the most of a metric is the best. ValueError for one that isn't known here."""
    if metric not in MODES:
        raise ValueError(f"monitor={metric} is none of {', '.join(MODES)}")
    return MODES[metric]


class Checkpoint(ModelCheckpoint):
    """Lightning's, which would forget the best score of a run whose folder was renamed, and the run's precision.

    monitor: of MODES, keeps the best by it; None: the newest.
    """

    def __init__(self, monitor: str | None = None, **options: Any) -> None:
        super().__init__(monitor=monitor, mode=mode_of(monitor) if monitor else "min", **options)

    def on_save_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(trainer, module, checkpoint)
        checkpoint["precision"] = trainer.precision  # measured anew, it might come out otherwise

    def on_load_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """ValueError if the run had another metric: its best checkpoint would be overwritten by whatever comes next."""
        before = [state["monitor"] for state in checkpoint["callbacks"].values() if state.get("monitor")]
        if self.monitor not in (None, *before):
            name = "callbacks.checkpoint.monitor"
            check_same({name: ", ".join(before)}, {name: self.monitor})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        best = Path(str(self.dirpath)) / Path(state_dict["best_model_path"]).name
        if state_dict["dirpath"] != self.dirpath and best.is_file():
            moved = dict.fromkeys(("best_model_path", "kth_best_model_path"), str(best))
            best_k = {str(best): score for score in state_dict["best_k_models"].values()}
            state_dict = {**state_dict, **moved, "best_k_models": best_k, "dirpath": self.dirpath}
        super().load_state_dict(state_dict)


class EarlyStopping(L.pytorch.callbacks.EarlyStopping):
    """Lightning's, which takes the mode from the metric. monitor: of MODES."""

    def __init__(self, monitor: str, **options: Any) -> None:
        super().__init__(monitor, mode=mode_of(monitor), **options)


class LastCheckpoint(Checkpoint):
    """The newest state after each validation, and before a run ends by Ctrl-C or SIGTERM.

    A signal waits for the end of its step, and of the validation that may follow, so that what is written goes on to
    the same bits. A second one doesn't wait. The process ends with 128 + the signal's number.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._signal = 0
        self._ending = False  # the checkpoint of the end is written
        self._late = False  # that of the last validation is not, yet
        self._handlers: dict[int, Any] = {}

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        super().on_train_start(trainer, module)
        self._handlers = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._signal:
            sys.exit(128 + number)
        self._signal = number
        print("\nstopping after this step; once more to stop at once", file=sys.stderr)

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *args: Any) -> None:
        super().on_train_batch_end(trainer, module, *args)
        loop, fetcher, stopping = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher, self._stopping(trainer)
        assert fetcher is not None
        if loop._should_accumulate() or loop._should_check_val_fx(fetcher):
            return
        if stopping or self._late:
            self._save(trainer)
        self._ending = stopping

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        stopping = self._stopping(trainer)
        if trainer.fit_loop.epoch_loop._should_accumulate():
            self._late = True  # a checkpoint has no place for gradients: at the end of the step
            return
        super().on_validation_end(trainer, module)
        self._ending = stopping

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if self._ending:  # by now the step's values are logged, too
            self._stop(trainer)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        super().on_train_end(trainer, module)
        if self._late:  # the run ends within a step, whose gradients are dropped
            self._save(trainer)
        if self._ending:
            self._stop(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(Path(str(self.dirpath)) / f"{self.filename}.ckpt")
        self._late = False

    def _stopping(self, trainer: L.Trainer) -> bool:
        """The same on all devices, whichever of them got the signal."""
        return trainer.strategy.reduce_boolean_decision(bool(self._signal), all=False)

    def _stop(self, trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            folder = shlex.quote(f"resume={self.dirpath}")
            print(f"stopped after step {trainer.global_step}; to go on: {folder}", file=sys.stderr)
        sys.exit(128 + (self._signal or signal.SIGTERM))

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        super().on_exception(trainer, module, exception)
        self._restore()

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        super().teardown(trainer, module, stage)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


def load_to_resume(path: Path) -> dict[str, Any]:
    """`load_checkpoint`, of one that holds a run's whole state. ValueError, naming what is missing."""
    Translator.load(path)  # says what is wrong with its weights
    state = load_checkpoint(path)
    needed = {
        "epoch": int,
        "global_step": int,
        "loops": dict,
        "callbacks": dict,
        "optimizer_states": list,
        "lr_schedulers": list,
        "pytorch-lightning_version": str,
        "precision": str,
        "TranslationData": dict,
        "random_state": torch.Tensor,
        "cuda_random_states": list,
    }
    for name, kind in needed.items():
        if not isinstance(state.get(name), kind):
            raise ValueError(f"{path}: can't resume: it holds no {name}")
    return state


def check_same(saved: dict[str, Any], mine: dict[str, Any]) -> None:
    """ValueError that names what differs between a checkpoint and the run that is to resume it."""
    names = [name for name in {**mine, **saved} if saved.get(name) != mine.get(name)]
    if names:
        found = "; ".join(f"{name}: checkpoint {saved.get(name)}, this run {mine.get(name)}" for name in names)
        raise ValueError(f"can't resume: {found}")
