"""Translate sentences.

python scripts/translate.py "I would like a glass of water."
python scripts/translate.py --input english.txt --output italian.txt
echo "Where is the station?" | python scripts/translate.py --beam 8 --nbest 3 --json
python scripts/translate.py                                (a prompt, on a terminal)
"""

# ruff: noqa: E402
import sys

from mt.command import check_writable, command, end_by_signals, naming

end_by_signals()

import argparse
import codecs
import itertools
import json
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from mt.runs import best_checkpoint
from mt.translator import LONGEST, Explanation, Translation, Translator


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", nargs="*", help="default: --input, or standard input, a sentence a line")
    parser.add_argument("--input", metavar="FILE", help="a sentence a line, UTF-8")
    parser.add_argument("--output", metavar="FILE", help="default: standard output")
    parser.add_argument("--checkpoint", metavar="PATH", help="a file or a run's folder; default: the newest run's best")
    parser.add_argument("--beam", type=int, metavar="N", help="hypotheses kept at every step, 1 (greedy) to 64")
    parser.add_argument("--length-penalty", type=float, metavar="A", help="score = log-probability / length ** A")
    parser.add_argument("--nbest", type=int, default=1, metavar="N", help="translations of each sentence, a line each")
    parser.add_argument("--max-length", type=int, metavar="N", help="pieces; default: twice the source's and 10")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="sentences at a time (default 128)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, mps")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--attention",
        metavar="terminal|FILE",
        help="what each piece of one sentence's translation looked at: here, as a picture (.png, .svg, ...) "
        "or as a page with every head and the alternatives (.html)",
    )
    parser.add_argument("--explain", action="store_true", help="why each word, and why the translation ended")
    args = parser.parse_args()
    if args.sentences and args.input:
        parser.error("sentences or --input, not both")
    if not args.sentences and output_is_input(args):
        parser.error("the output would overwrite the input")
    return args


LONGEST_LINE = 4_000_000  # bytes: a million characters of any script


def output_is_input(args: argparse.Namespace) -> bool:
    """However it is named: as a file, a link to it, or by the shell's < and > (which has emptied it by then)."""
    try:
        source = Path(args.input).stat() if args.input else os.fstat(sys.stdin.fileno())
        target = Path(args.output).stat() if args.output else os.fstat(sys.stdout.fileno())
    except OSError:  # one of them isn't there yet, or is no file
        return False
    return stat.S_ISREG(source.st_mode) and os.path.samestat(source, target)


def source_lines(args: argparse.Namespace) -> Iterator[str]:
    """Opened at once: a missing input shows before the output is emptied."""
    if args.sentences:
        return (s.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for s in args.sentences)
    return decoded(Path(args.input).open("rb") if args.input else sys.stdin.buffer)


def decoded(file: BinaryIO) -> Iterator[str]:
    """Lines end at a newline and nowhere else; what is not UTF-8 becomes the replacement character, and is told."""
    with file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
            if len(line) > LONGEST_LINE:
                raise ValueError(f"{file.name}:{number}: a line of more than {LONGEST_LINE} bytes")
            content = line.rstrip(b"\r\n").removeprefix(codecs.BOM_UTF8 if number == 1 else b"")
            text = content.decode(errors="replace")
            if text.encode() != content:
                print(
                    f"line {number:,} is not UTF-8: what can't be read became \N{REPLACEMENT CHARACTER}",
                    file=sys.stderr,
                )
            yield text


def only(lines: Iterator[str]) -> Iterator[str]:
    first = list(itertools.islice(lines, 2))
    if len(first) != 1:
        raise ValueError(f"--attention takes exactly one sentence, not {'several' if first else 'none'}")
    return iter(first)


def check_place(where: str) -> None:
    """Before anything is translated."""
    if where == "terminal":
        return
    if Path(where).suffix.lower() != ".html":
        from mt.inspection.figures import picture_format

        picture_format(Path(where))
    check_writable(where)


def lines_of(translation: Translation, explanation: Explanation | None, args: argparse.Namespace) -> str:
    if args.json:
        nbest = [{"translation": text, "score": h.score, "cut": h.cut} for text, h in translation.hypotheses]
        content = {"source": translation.source, **nbest[0], "nbest": nbest, "parts": translation.parts}
        if explanation:
            content["explanation"] = {
                "words": [asdict(word) for word in explanation.words],
                "parting": explanation.parting and asdict(explanation.parting),
                "ending": explanation.ending,
            }
        return json.dumps(content, ensure_ascii=False)
    texts = [text for text, _ in translation.hypotheses]
    return "\n".join([*texts, *[""] * (args.nbest - len(texts))])  # a blank line has one translation


def show_explanation(explanation: Explanation, file: TextIO) -> None:
    from rich.console import Console

    from mt.inspection.terminal import explanation_table

    Console(file=file).print(explanation_table(explanation.words, explanation.notes))


def show_attention(translator: Translator, translation: Translation, where: str, options: dict[str, Any]) -> None:
    if where == "terminal":
        from rich.console import Console

        from mt.inspection.terminal import terminal_map

        console = Console()
        console.print(terminal_map(translator.attention_maps(translation), console.width))
    elif Path(where).suffix.lower() == ".html":
        from mt.inspection.film import attention_page, frame

        scenes = translator.scenes(translation.source, **options)
        with naming(where):
            Path(where).write_text(attention_page(translation.source, [frame(None, scenes, None)]), encoding="utf-8")
        print(f"attention {where}", file=sys.stderr)
    else:
        from mt.inspection.figures import save_attention_figure

        save_attention_figure(translator.attention_maps(translation), Path(where))
        print(f"attention {where}", file=sys.stderr)


def main() -> None:
    args = arguments()
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    interactive = not args.sentences and not args.input and sys.stdin.isatty()
    lines = iter(read_line, "") if interactive else source_lines(args)
    if args.attention:
        check_place(args.attention)
        lines = lines if interactive else only(lines)
    checkpoint = best_checkpoint(args.checkpoint)
    translator = Translator.load(checkpoint, args.device)
    print(f"checkpoint {checkpoint}", file=sys.stderr)
    options = {name: getattr(args, name) for name in ("beam", "length_penalty", "nbest", "max_length", "batch_size")}
    translator.translate([], **options)  # what is wrong with them shows before a file is opened

    if interactive:
        print("A sentence a line; an empty one, or Ctrl-D, ends.", file=sys.stderr)
    results: Iterator[tuple[Translation, Explanation | None]]
    if args.explain:
        results = ((e.translation, e) for e in (translator.explain(line, **options) for line in lines))
    elif interactive or args.attention:
        results = ((translator.translate([line], **options)[0], None) for line in lines)
    else:
        results = ((translation, None) for translation in translator.translate_stream(lines, **options))

    in_parts = 0
    progress = sys.stderr.isatty() and not interactive and bool(args.output or not sys.stdout.isatty())
    with naming(args.output or "standard output"), output(args) as out:
        for number, (translation, explanation) in enumerate(results, 1):
            out.write(f"{lines_of(translation, explanation, args)}\n")  # in one piece: a signal can't cut it
            if explanation and not args.json:
                show_explanation(explanation, out)
            out.flush()
            in_parts += translation.parts > 1
            if progress:
                print(f"\r{number:,} lines", end="", file=sys.stderr)
            if args.attention:
                show_attention(translator, translation, args.attention, options)
    if progress:
        print(file=sys.stderr)
    if in_parts:
        print(f"{in_parts} longer than {LONGEST} pieces: translated in parts", file=sys.stderr)


def output(args: argparse.Namespace) -> AbstractContextManager[TextIO]:
    return Path(args.output).open("w", encoding="utf-8", newline="\n") if args.output else nullcontext(sys.stdout)


def read_line() -> str:
    seen = sys.stdout.isatty()  # or the prompt would stand in the file that the output goes to
    if not seen:
        print("> ", end="", file=sys.stderr, flush=True)
    try:
        return input("> " if seen else "").strip()
    except EOFError:
        return ""


if __name__ == "__main__":
    with command():
        main()
