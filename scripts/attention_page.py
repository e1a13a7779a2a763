"""A run's attention through training, as one HTML page that needs no other file and no network.

python scripts/attention_page.py [runs/NAME] [--output FILE.html]
"""

# ruff: noqa: E402
from mt.command import command, end_by_signals

end_by_signals()

import argparse
from pathlib import Path

from mt.inspection.film import attention_page, read_film
from mt.runs import newest_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="a run's folder; default: the newest run's")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: attention.html in the run's folder")
    args = parser.parse_args()
    run = args.run or newest_checkpoint().parent
    page = args.output or run / "attention.html"
    page.write_text(attention_page(run.resolve().name, read_film(run)), encoding="utf-8")
    print(page)


if __name__ == "__main__":
    with command():
        main()
