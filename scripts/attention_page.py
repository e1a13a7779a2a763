"""A run's attention through training, as one HTML page that needs no other file and no network.

python scripts/attention_page.py runs/NAME [--output FILE.html]
"""

import argparse
import sys
from pathlib import Path

from mt.inspection.film import attention_page, read_film


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: attention.html in the run's folder")
    args = parser.parse_args()
    page = args.output or args.run / "attention.html"
    page.write_text(attention_page(args.run.resolve().name, read_film(args.run)), encoding="utf-8")
    print(page)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"attention_page.py: {error}")
