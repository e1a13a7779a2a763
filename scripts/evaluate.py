"""BLEU and chrF of a checkpoint on aligned files.

python scripts/evaluate.py --src test.en --ref test.it [--checkpoint PATH] [--beam N] [--json]

A line of the reference file may hold several references, separated by tabs.
"""

# ruff: noqa: E402
import sys

from mt.command import command, end_by_signals

end_by_signals()

import argparse
import json
from dataclasses import asdict

from rich.console import Console

from mt.data.readers import read_lines
from mt.runs import best_checkpoint
from mt.training.scores import score
from mt.translator import Translator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", required=True, help="source sentences, one a line")
    parser.add_argument("--ref", required=True, help="their references, one a line; several separated by tabs")
    parser.add_argument("--checkpoint", help="a checkpoint or a run's folder; default: the newest run's best")
    parser.add_argument("--beam", type=int, help="default: what the checkpoint was tested with")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args()

    sources = list(read_lines(args.src))
    references = [[cell for cell in line.split("\t") if cell.strip()] for line in read_lines(args.ref)]
    if len(sources) != len(references):
        raise ValueError(f"{args.src} has {len(sources)} lines, {args.ref} has {len(references)}")
    if empty := [number for number, row in enumerate(references, 1) if not row]:
        raise ValueError(f"{args.ref}:{empty[0]}: no reference")
    checkpoint = best_checkpoint(args.checkpoint)
    translator = Translator.load(checkpoint, args.device)
    print(f"checkpoint {checkpoint}", file=sys.stderr)
    scores = score([t.text for t in translator.translate(sources, beam=args.beam)], references)
    if args.json:
        print(json.dumps({**asdict(scores), "checkpoint": str(checkpoint)}))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"BLEU {scores.bleu:.1f}   {scores.bleu_signature}")
    console.print(f"chrF {scores.chrf:.1f}   {scores.chrf_signature}")
    console.print(f"{scores.sentences:,} sentences")


if __name__ == "__main__":
    with command():
        main()
