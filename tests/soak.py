"""Runs that are killed at random moments and resumed until they are done: python tests/soak.py [RUNS] [SEED]

Each has to end with the bits of a run that nobody disturbed, and to leave a readable checkpoint at every moment.
"""

import os
import random
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from forks import Fork, import_everything, start
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mt.data.readers import EVERYDAY
from mt.translator import Translator, load_checkpoint

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SETTINGS = shlex.split("""
    data=files data.train=train.tsv data.validation=validation.tsv data.test=test.tsv data.cache_dir=cache
    data.vocab_size=400 data.max_pieces=60 data.batch_tokens=150 data.joined=0.3 data.noise=0.3 data.sampling=0.2
    model.d_model=16 model.num_heads=2 model.d_ff=32 model.encoder_layers=1 model.decoder_layers=1 precision=32-true
    trainer.max_time=null trainer.max_steps=50 trainer.val_check_interval=13 trainer.accumulate_grad_batches=2
    trainer.log_every_n_steps=1 callbacks=early_stopping callbacks.early_stopping.patience=90
    callbacks.translations.num_scored=3 callbacks.attention.num_sentences=0 decoding.beam=1 optimizer.warmup_steps=5
""")


def train(folder: Path, *more: str) -> Fork:
    return start(folder, ["scripts/train.py", *SETTINGS, *more])


def state(run: Path) -> dict[str, Any]:
    """All that a finished run leaves behind, without its paths and times."""
    last, best = load_checkpoint(run / "last.ckpt"), load_checkpoint(run / "best.ckpt")
    callbacks = {name.partition("{")[0]: values for name, values in last["callbacks"].items()}
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag != "train/tokens_per_second"]
    return {
        "weights": last["state_dict"],
        "best weights": best["state_dict"],
        "optimizer": last["optimizer_states"],
        "random state": last["random_state"],
        "best score": [values.get("best_model_score") for values in last["callbacks"].values()],
        "early stopping": callbacks["EarlyStopping"],
        "curves": {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags},
    }


def difference(one: Any, other: Any, where: str = "") -> str | None:
    """Where two nests of values and tensors differ first, or None. NaN equals NaN: bits count."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        found = (difference(one[name], other[name], f"{where}/{name}") for name in one)
        return next(filter(None, found), None)
    if isinstance(one, list | tuple) and len(one) == len(other):
        found = (difference(a, b, f"{where}/{i}") for i, (a, b) in enumerate(zip(one, other, strict=True)))
        return next(filter(None, found), None)
    same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    return None if same else f"{where}: {one} and {other}"[:900]


def disturbed(folder: Path, number: signal.Signals, seconds: float, chance: random.Random) -> tuple[Path, list[str]]:
    """A finished run that was killed at least once, and what happened to it. AssertionError for what must not."""
    story = []
    resume: list[str] = []
    run = None
    for kill in (True, chance.random() < 0.5, False):
        before = set(folder.glob("runs/*"))
        began = time.perf_counter()
        fork = train(folder, *resume, f"data.num_workers={chance.choice((0, 0, 2))}")
        if kill:
            time.sleep(0.2 + chance.random() * 0.8 * seconds)
            os.kill(fork.pid, number)
        code, _, said = fork.wait()
        story.append(f"{code} after {time.perf_counter() - began:.1f} s")
        assert "Traceback" not in said, said
        assert code in ((0, -signal.SIGKILL) if number == signal.SIGKILL else (0, 128 + number)), f"{code}: {said}"
        run = run or next(iter(set(folder.glob("runs/*")) - before), None)
        saved = run is not None and (run / "last.ckpt").exists()
        if saved:
            Translator.load(run / "last.ckpt")
        assert saved or "stopped after" not in said, said
        resume, run = ([f"resume={run}"], run) if saved else ([], None)
        if code == 0:
            break
    assert code == 0 and run is not None, story
    return run, story


def soak(runs: int, seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = (EVERYDAY / "food.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        for split, part in (("train", pairs[:250]), ("validation", pairs[250:262]), ("test", pairs[262:274])):
            (folder / f"{split}.tsv").write_text("".join(part), encoding="utf-8")
        train(folder).wait()  # prepares the corpus
        whole_folder = Path(name) / "whole"
        began = time.perf_counter()
        code, _, said = train(folder, f"hydra.run.dir={whole_folder}").wait()
        seconds = time.perf_counter() - began
        assert code == 0, said
        undisturbed = state(whole_folder)
        curves = undisturbed.pop("curves")
        print(f"undisturbed: {seconds:.1f} s", flush=True)
        for i in range(runs):
            story = ["0"]
            while story[0].startswith("0"):  # it had ended before its signal came
                run, story = disturbed(folder, SIGNALS[i % len(SIGNALS)], seconds, chance)
            ended = state(run)
            for tag, curve in ended.pop("curves").items():
                whole = curves[tag]  # SIGKILL may strike between a validation's checkpoint and its line in the log
                lost = 1 if SIGNALS[i % 3] == signal.SIGKILL else 0
                assert curve == [point for point in whole if point in curve], (story, tag, curve)
                assert len(curve) >= len(whole) - lost * len(story), (story, tag, curve)
            found = difference(undisturbed, ended)
            assert found is None, (story, found)
            print(f"{i + 1}: {SIGNALS[i % len(SIGNALS)].name}: {', '.join(story)}: same bits", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    import_everything()
    soak(int(sys.argv[1]) if sys.argv[1:] else 30, int(sys.argv[2]) if sys.argv[2:] else 0)
