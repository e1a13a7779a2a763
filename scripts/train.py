"""Train a translator, test it, and say how to use it: python scripts/train.py --help"""

# ruff: noqa: E402
import sys

from mt.command import arrange_memory, end_by_signals, open_streams, outlive_readers, refusal, within_memory

end_by_signals()

import logging
import os
import shlex
import time
import warnings
from operator import itemgetter
from pathlib import Path
from typing import Any

import hydra
import lightning
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import TensorBoardLogger
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from mt.runs import BEST, LAST, checkpoint_of, run_folder
from mt.training.callbacks import Throughput
from mt.training.checkpoints import WholeFiles, load_to_resume
from mt.training.datamodule import TranslationData
from mt.training.module import TranslationModule
from mt.training.precision import check_precision, choose_precision
from mt.training.report import corpus_table, evaluate, print_report, write_summary
from mt.training.settings import check_settings
from mt.translator import Translator

OmegaConf.register_new_resolver("run_folder", run_folder, use_cache=True)


def train(cfg: DictConfig, run: Path, console: Console) -> None:
    # What can be wrong with the settings shows here, before the long work.
    for name in ("checkpoint", "throughput"):
        if not cfg.callbacks.get(name):
            raise ValueError(f"callbacks.{name} is needed for the test and the report")
    settings: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    check_settings(settings)
    resume = checkpoint_of(cfg.resume, LAST) if cfg.resume else None
    done, before = itemgetter("global_step", "precision")(load_to_resume(resume)) if resume else (None, None)
    if not resume and any((run / name).exists() for name in (BEST, LAST)):
        raise ValueError(f"{run} holds a run: resume={run} goes on with it, or name another folder")
    callbacks = {name: instantiate(callback) for name, callback in cfg.callbacks.items() if callback}
    for name, callback in callbacks.items():
        if not isinstance(callback, lightning.Callback):
            raise ValueError(f"callbacks.{name} is no callback of Lightning")
    precision, reason = cfg.precision, "as told"
    if cfg.precision == "auto":
        precision, reason = (before, "as before") if before else choose_precision(cfg.trainer.accelerator)
    trainer = instantiate(
        cfg.trainer,
        precision=precision,
        logger=TensorBoardLogger(
            save_dir=run,
            name="",
            version="",
            default_hp_metric=False,
            purge_step=None if done is None else done + 1,  # what a killed run logged after its checkpoint
        ),
        plugins=[WholeFiles()],
        callbacks=list(callbacks.values()),
        reload_dataloaders_every_n_epochs=1,  # each epoch has batches of its own
        use_distributed_sampler=False,  # the data module shares them out
        default_root_dir=run,
    )

    check_precision(precision, trainer.precision)
    console.quiet = not trainer.is_global_zero
    started = time.perf_counter()
    data = TranslationData.prepare(settings["data"], cfg.seed)
    corpus = data.corpus
    took = "from the cache" if corpus.cached else f"prepared in {time.perf_counter() - started:.0f} s"
    console.print(corpus_table(corpus.report, f"{cfg.data.src}-{cfg.data.tgt} pairs, {took}"))

    lightning.seed_everything(cfg.seed, verbose=False)
    start = {"embedding_start": "random"} if resume else {}  # all weights come from the checkpoint
    module = TranslationModule.untrained(settings | start, corpus)
    parameters = sum(p.numel() for p in module.parameters())
    console.print(f"model {parameters:,} parameters; precision {precision}: {reason}", highlight=False)
    console.print("to watch: tensorboard --samples_per_plugin images=1000,text=1000 --logdir runs", highlight=False)
    trainer.fit(module, data, ckpt_path=resume, weights_only=True)
    if not trainer.is_global_zero:
        return

    best = run / BEST
    translator = Translator.load(best, trainer.strategy.root_device)
    held_out = {name: pairs for name, pairs in corpus.splits.items() if name != "train"}
    results = {name: evaluate(translator, list(p["src"]), list(p["tgt"])) for name, p in held_out.items()}
    throughput = next(callback for callback in trainer.callbacks if isinstance(callback, Throughput))
    summary = write_summary(
        run / "summary.json",
        results,
        overrides=list(HydraConfig.get().overrides.task),
        parameters=parameters,
        train_seconds=throughput.seconds,
        tokens_per_second=throughput.tokens / throughput.seconds,
        steps=trainer.global_step,
        epochs=trainer.fit_loop.epoch_loop.batch_progress.total.completed / trainer.num_training_batches,
        precision=precision,
        checkpoint=str(best),
    )
    trainer.logger.log_hyperparams(
        {name: settings[name] for name in ("seed", "data", "model", "embedding_start", "optimizer", "decoding")},
        {f"test/{name}": summary["test"][name] for name in ("bleu", "chrf")},
        step=trainer.global_step,
    )
    print_report(console, summary, results["test"])
    checkpoint = shlex.quote(str(best))
    console.print(
        f"\nNow try:\n"
        f"python scripts/translate.py --checkpoint {checkpoint} 'Where is the station?'\n"
        f"python scripts/translate.py --checkpoint {checkpoint} --attention terminal 'Where is the station?'",
        highlight=False,
        soft_wrap=True,
    )


USERS_ERRORS = (
    ValueError,
    TypeError,
    OSError,
    MemoryError,
    HydraException,
    OmegaConfBaseException,
    MisconfigurationException,
)


def line(error: BaseException) -> str:
    hydras = isinstance(error, InstantiationException)  # around what says why
    reason = error.__cause__ if hydras and error.__cause__ else error
    return refusal(reason).partition(" Config search path")[0]


@hydra.main(config_path="../conf", config_name="train", version_base="1.3")
def main(cfg: DictConfig) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    arrange_memory()  # here, where each process of a sweep comes by
    try:
        with within_memory():
            train(cfg, Path(HydraConfig.get().runtime.output_dir), Console(markup=False, emoji=False))
    except USERS_ERRORS as error:
        if HydraConfig.get().mode != RunMode.MULTIRUN:
            sys.exit(line(error))
        print(f"{HydraConfig.get().job.override_dirname}: {line(error)}", file=sys.stderr)
        raise  # the others go on, then Hydra raises it again


if __name__ == "__main__":
    open_streams()
    outlive_readers()
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra's own errors come here, rather than in its many lines
    try:
        main()
    except USERS_ERRORS as error:
        sys.exit(line(error))
