"""Which head aligns? Every cross-attention head against 150 hand-aligned sentences of `everyday`.

python scripts/inspect_heads.py [--checkpoint PATH] [--figure FILE.png] [--json]

Beside the alignment error rate: how widely a head looks, what share of it lies on the source's end, whether it reads
along, and what chrF loses on the same sentences when it is switched off.
"""

# ruff: noqa: E402
from mt.command import check_writable, command, end_by_signals

end_by_signals()

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from mt.inspection.alignment import aligned_pairs, baseline_aer
from mt.inspection.figures import picture_format
from mt.inspection.heads import score_heads
from mt.inspection.heads_report import heads_table, save_heads_figure
from mt.runs import best_checkpoint
from mt.training.scores import chrf_drops
from mt.translator import Translator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="a checkpoint or a run's folder; default: the newest run's best")
    parser.add_argument("--figure", metavar="FILE", help="a picture of the table; its ending says which kind")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.figure:
        picture_format(Path(args.figure))
        check_writable(args.figure)

    checkpoint = best_checkpoint(args.checkpoint)
    translator = Translator.load(checkpoint, args.device)
    print(f"checkpoint {checkpoint}", file=sys.stderr)
    aligned = aligned_pairs(translator.src, translator.tgt)
    board = score_heads(translator.model, translator.tokenizer, aligned)
    baseline = baseline_aer(translator.src, translator.tgt)
    drops = chrf_drops(translator, [pair.src for pair in aligned], [pair.tgt for pair in aligned])
    if args.figure:
        save_heads_figure(board, drops, baseline, Path(args.figure))
        print(f"figure {args.figure}", file=sys.stderr)
    if args.json:
        heads = [{**asdict(head), "chrf_drop": drop} for head, drop in zip(board.heads, drops, strict=True)]
        summary = {"best_aer": board.best.aer, "mean_aer": board.mean_aer, "baseline_aer": baseline}
        print(json.dumps({**summary, "heads": heads, "checkpoint": str(checkpoint)}))
    else:
        Console().print(heads_table(board, drops, baseline))


if __name__ == "__main__":
    with command():
        main()
