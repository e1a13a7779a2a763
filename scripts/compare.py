"""Compare runs.

python scripts/compare.py runs/2026-11-29_18-30-00                  (a sweep's folder: all its runs)
python scripts/compare.py runs/FIRST runs/SECOND --figure chart.png

A run is named by the overrides in which it differs from the others; the table is Markdown.
"""

# ruff: noqa: E402
from mt.command import command, end_by_signals

end_by_signals()

import argparse
import sys
from pathlib import Path

from mt.inspection.figures import save_figure
from mt.training.comparison import comparison_figure, comparison_table, read_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=["runs"], help="folders of runs or sweeps; default: runs")
    parser.add_argument("--figure", metavar="FILE", help="a chart; its ending decides the format")
    args = parser.parse_args()

    runs = read_runs(args.runs)
    print(comparison_table(runs))
    if args.figure:
        save_figure(comparison_figure(runs), Path(args.figure))
        print(f"chart {args.figure}", file=sys.stderr)


if __name__ == "__main__":
    with command():
        main()
