"""How fast this machine trains and translates, and what is left to gain: speeds beside those of the usual code.

python scripts/benchmark.py                                 minutes: the bundled corpus, the small model
python scripts/benchmark.py --quick --json                  half a minute, one JSON object
python scripts/benchmark.py --data pairs.tsv.gz --checkpoint runs/NAME
python scripts/benchmark.py model=tiny data.batch_tokens=4096

Further arguments are overrides, as train.py takes them. Everything runs on the processor.
"""

# ruff: noqa: E402
from mt.command import command, end_by_signals

end_by_signals()

import argparse
import json
import logging
import tempfile
import warnings
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from mt.runs import BEST, checkpoint_of
from mt.training.benchmark import decoding, input_pipeline, matrix_products, startup, training
from mt.training.benchmark_report import Results, results_table
from mt.training.datamodule import TranslationData
from mt.training.module import TranslationModule
from mt.training.precision import choose_precision
from mt.training.settings import check_settings
from mt.translator import Translator

ROOT = Path(__file__).resolve().parents[1]
BUDGET = 4_096  # of the batches whose padding is measured
CUT = 12  # pieces: an untrained model's translations end nowhere


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE", help="pairs to train on and translate; default: the bundled corpus")
    parser.add_argument(
        "--checkpoint", metavar="PATH", help="decode with it, and start it; default: a model that is hardly trained"
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("overrides", nargs="*", metavar="NAME=VALUE")
    args = parser.parse_args()
    rounds, steps, sentences, singles = (1, 3, 50, 5) if args.quick else (5, 30, 1_000, 100)

    files = ["data=files", f"data.train='{args.data}'"] if args.data else []
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("train", ["model=small", *files, *args.overrides])
    names = ["seed", "data", "model", "embedding_start", "optimizer", "decoding", "trainer"]
    settings: Any = OmegaConf.to_container(OmegaConf.masked_copy(cfg, names), resolve=True)
    check_settings(settings)
    if (architecture := settings["model"]["architecture"]) != "transformer":
        raise ValueError(f"model.architecture={architecture}: what there is to measure against is torch's transformer")
    trained = Translator.load(checkpoint_of(args.checkpoint, BEST)) if args.checkpoint else None

    data = TranslationData.prepare(settings["data"], cfg.seed)
    corpus = data.corpus
    module = TranslationModule.untrained(settings, corpus)
    precision, _ = choose_precision("cpu") if cfg.precision == "auto" else (cfg.precision, "")
    sizes = {"vocab_size": len(corpus.tokenizer), **settings["model"]}
    matmul = matrix_products(sizes, cfg.data.batch_tokens, 10 * rounds)
    step = training(
        module,
        data,
        precision=precision,
        gigaflops=max(matmul.values()),
        steps=steps,
        rounds=rounds,
    )
    own, large = (input_pipeline(data, budget, 10 * steps) for budget in (cfg.data.batch_tokens, BUDGET))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = args.checkpoint or Path(folder) / BEST
        if not args.checkpoint:
            torch.save({"state_dict": module.state_dict(), "mt": module.content}, checkpoint)
        script = str(ROOT / "scripts/translate.py")
        start = startup([script, "--checkpoint", str(checkpoint), "Where is the station?"], rounds)
    results: Results = {
        "machine": {"threads": torch.get_num_threads(), "torch": torch.__version__, "precision": precision},
        "matmul": matmul,
        "memory": {"peak_mib": step.pop("peak_mib")},
        "training": step,
        "input": {
            "tokens_per_second": own["tokens_per_second"],
            "share_of_step": step["tokens_per_second"] / own["tokens_per_second"],
            "padding": large["padding"],
            "own_padding": own["padding"],
        },
        "decoding": decoding(
            trained or module.translator,
            [*corpus.splits["test"]["src"], *corpus.splits["validation"]["src"]][:sentences],
            max_length=None if trained else CUT,
            singles=singles,
            rounds=rounds,
        ),
        "startup": start,
    }
    if args.json:
        print(json.dumps(results))
    else:
        Console(highlight=False).print(results_table(results))


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    with command(TypeError, BrokenProcessPool, HydraException, OmegaConfBaseException):
        main()
