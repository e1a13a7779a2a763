"""From files to tokenised splits: read, clean, split by content, take out leaks, learn the pieces, and keep the result.

The result lies in a folder named after everything it depends on, so a second run reads nothing and tokenises nothing,
and another setting never meets it.
"""

import hashlib
import json
import math
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
from datasets.arrow_writer import ArrowWriter
from datasets.utils import tqdm
from jaxtyping import Int

from mt.command import naming
from mt.data.cleaning import fraction, key, normalise, why_dropped
from mt.data.readers import HELD_OUT, Source, Unreadable
from mt.tokenizer import Tokenizer

FORMAT = 4  # of the cache: raised when what is written there changes its meaning
SPLITS = ("train", *HELD_OUT)
LONGEST_HELD_OUT = 511  # pieces a side: one immense line would be a batch that no memory holds
TOKENIZER_PAIRS = 100_000  # are enough to learn pieces from; SentencePiece's own sample differs from process to process
PAIRS_A_PROCESS = 50_000  # below that, starting another process costs more than it saves

Report = dict[str, dict[str, Any]]
"""split → {"read": int, "kept": int, "dropped": {reason: int}, "first": {reason: file:line}}"""


@dataclass(frozen=True)
class Corpus:
    splits: dict[str, datasets.Dataset]
    """Columns src, tgt (normalised text), src_ids, tgt_ids (without BOS and EOS), and source, a number that pairs
    share whose source sentences are the same, case and punctuation aside. On disk, not in memory."""
    tokenizer: Tokenizer
    report: Report
    fingerprint: str
    """Of the contents and all settings: what a resumed run must find again."""
    cached: bool


def lengths(split: datasets.Dataset, column: str) -> Int[np.ndarray, "N"]:
    """Pieces of every sentence of the column src_ids or tgt_ids."""
    return pc.list_value_length(split.data.column(column)).to_numpy()


def prepare(
    *,
    train: str | Sequence[str] | None,
    validation: str | Sequence[str] | None,
    test: str | Sequence[str] | None,
    columns: Sequence[str | Sequence[str]],
    src: str,
    tgt: str,
    vocab_size: int,
    max_pieces: int,
    max_ratio: float,
    held_out: int,
    cache_dir: str,
) -> Corpus:
    """Splits ready for batching, from the cache where they lie there already.

    train, validation, test: see `Source.parse`; a split that is None is taken out of train by content, about
    `held_out` pairs. columns: languages in the order of the file's columns, or [language, name] where the column has
    another name. max_pieces, max_ratio: longer or more unequal training pairs are left out. ValueError for whatever
    is wrong with files or settings.
    """
    if train is None:
        raise ValueError("data.train names no file")
    if isinstance(columns, str) or not columns:
        raise ValueError(f"data.columns={columns!r} is not a list of languages")
    for column in columns:
        if not isinstance(column, str) and len(column) != 2:
            raise ValueError(f"data.columns: {list(column)} is neither a language nor [language, name]")
    names = dict((column, column) if isinstance(column, str) else (column[0], column[1]) for column in columns)
    for language in (src, tgt):
        if language not in names:
            raise ValueError(f"language {language!r} has no column; data.columns knows {', '.join(names)}")
    if src == tgt:
        raise ValueError(f"data.src and data.tgt are both {src!r}")
    given = {"train": train, "validation": validation, "test": test}
    sources = {split: Source.parse(value) for split, value in given.items() if value is not None}
    settings = {
        "format": FORMAT,
        "sources": {split: source.identity() for split, source in sources.items()},
        "columns": list(names.items()),
        "languages": [src, tgt],
        "cleaning": [max_pieces, max_ratio, held_out],
        "vocab_size": vocab_size,
    }
    fingerprint = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    folder = Path(cache_dir).expanduser() / fingerprint
    cached = folder.is_dir()
    if not cached:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with naming(folder.parent), tempfile.TemporaryDirectory(dir=folder.parent, prefix="preparing-") as work:
            splits, report = _clean_splits(sources, names, src, tgt, max_ratio, held_out, Path(work) / "read")
            tokenizer = Tokenizer.train(_sentences(splits["train"]), vocab_size)
            done = Path(work) / "done"
            for name in list(splits):
                longest = max_pieces if name == "train" else LONGEST_HELD_OUT
                split = _tokenise(splits.pop(name), tokenizer, longest, report[name])  # its file is not kept in memory
                _keep(split, name, report)
                split.save_to_disk(done / name)
            (done / "tokenizer.model").write_bytes(tokenizer.model)
            (done / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
            try:
                done.rename(folder)
            except OSError:  # another run was faster: its folder holds the same
                if not folder.is_dir():
                    raise
    return Corpus(
        splits={name: datasets.load_from_disk(str(folder / name)) for name in SPLITS},
        tokenizer=Tokenizer((folder / "tokenizer.model").read_bytes()),
        report=json.loads((folder / "report.json").read_text(encoding="utf-8")),
        fingerprint=fingerprint,
        cached=cached,
    )


def _clean_splits(
    sources: Mapping[str, Source],
    columns: Mapping[str, str],
    src: str,
    tgt: str,
    max_ratio: float,
    held_out: int,
    work: Path,
) -> tuple[dict[str, datasets.Dataset], Report]:
    report: Report = {name: {"read": 0, "kept": 0, "dropped": Counter(), "first": {}} for name in SPLITS}
    order = [list(columns).index(src), list(columns).index(tgt)]
    splits = {
        name: _read(source, columns, order, max_ratio if name == "train" else None, report[name], work / name)
        for name, source in sources.items()
    }
    for name, split in splits.items():
        _keep(split, name, report)
    missing = [name for name in HELD_OUT if name not in splits]
    if missing:
        splits.update(_split_by_content(splits.pop("train"), missing, held_out, _origin(report["train"])))
        for name in missing:
            report[name]["read"] = len(splits[name])
            report["train"]["dropped"][f"now {name}"] = len(splits[name])
    seen: dict[str, str] = {}
    for name in reversed(SPLITS):
        splits[name] = _without_leaks(splits[name], seen, report[name])
        if name != "train":
            for column in ("src_key", "tgt_key"):
                seen = dict.fromkeys(splits[name][column], f"stands in {name}") | seen
    for name, split in splits.items():
        _keep(split, name, report)
    return splits, report


def _keep(split: datasets.Dataset, name: str, report: Report) -> None:
    """Note what is left of a split. ValueError, with the reasons, if that is nothing."""
    report[name]["kept"] = len(split)
    if not len(split):
        raise ValueError(f"no {name} pair is left of {_origin(report[name])}")


def _origin(split: dict[str, Any]) -> str:
    """How many were read, and why how many are gone."""
    reasons = ", ".join(f"{n} {reason}" for reason, n in split["dropped"].items())
    return f"{split['read']} read ({reasons or ('nothing left out' if split['read'] else 'the file is empty')})"


def _read(
    source: Source,
    columns: Mapping[str, str],
    order: list[int],
    max_ratio: float | None,
    report: dict[str, Any],
    work: Path,
) -> datasets.Dataset:
    """The readable, cleaned pairs of a source. max_ratio None: a held-out split loses only what can't be used."""
    dropped: Counter[str] = report["dropped"]
    digests = array("Q")  # eight bytes a pair, where a set of strings would take ten times as many

    def why(a: str, b: str) -> str | None:
        if max_ratio is None:
            return None if a and b else "empty side"
        return why_dropped(a, b, max_ratio)

    def rows() -> Iterator[dict[str, str]]:
        for row in source.rows(columns):
            report["read"] += 1
            if isinstance(row, Unreadable):
                dropped[row.reason] += 1
                report["first"].setdefault(row.reason, row.where)
                continue
            a, b = (normalise(row[column]) for column in order)
            if reason := why(a, b):
                dropped[reason] += 1
                continue
            digests.append(int.from_bytes(hashlib.blake2b(f"{a}\t{b}".encode(), digest_size=8).digest(), "big"))
            yield {"src": a, "tgt": b, "src_key": key(a), "tgt_key": key(b)}

    features = datasets.Features(dict.fromkeys(("src", "tgt", "src_key", "tgt_key"), datasets.Value("string")))
    work.mkdir(parents=True)
    with ArrowWriter(features=features, path=str(work / "pairs.arrow")) as writer:
        for row in tqdm(rows(), desc=f"reading {work.name}", unit=" pairs"):
            writer.write(row)
        writer.finalize()
    pairs = datasets.Dataset.from_file(str(work / "pairs.arrow"))
    if max_ratio is None:
        return pairs
    first = np.unique(np.frombuffer(digests, dtype=np.uint64), return_index=True)[1]
    if len(first) < len(pairs):
        dropped["identical pair"] = len(pairs) - len(first)
        pairs = pairs.select(np.sort(first))
    return pairs


def _split_by_content(
    train: datasets.Dataset, missing: Sequence[str], held_out: int, origin: str
) -> dict[str, datasets.Dataset]:
    """Take about held_out pairs out for each missing split: those whose source sentence's hash falls in its share.

    The shares lie at the two ends of the range of hashes: when a corpus grows, no sentence moves from one to the other.
    """
    if held_out < 1:
        raise ValueError(f"data.held_out={held_out} is less than 1")
    share = held_out / max(1, len(train))
    if share * len(missing) > 0.5:
        most = len(train) // (2 * len(missing))
        raise ValueError(
            f"{len(train)} pairs, of {origin}, are too few to take {held_out} for each of {', '.join(missing)}: "
            + (f"set data.held_out to at most {most}, or " if most else "")
            + "name files for them"
        )
    places = np.fromiter((fraction(src_key) for (src_key,) in _values(train, "src_key")), np.float64, len(train))
    chosen = dict(zip(missing, (places < share, places >= 1 - share), strict=False))
    chosen["train"] = ~np.logical_or.reduce(list(chosen.values()))
    if empty := [name for name, mask in chosen.items() if not mask.any()]:
        raise ValueError(
            f"data.held_out={held_out} leaves no pair for {empty[0]} of {len(train)}: change it, or name files"
        )
    return {name: train.select(np.flatnonzero(mask)) for name, mask in chosen.items()}


def _without_leaks(split: datasets.Dataset, taken: Mapping[str, str], report: dict[str, Any]) -> datasets.Dataset:
    """Leave out the pairs of which either side stands in a split that was taken before: key → reason."""
    kept = np.ones(len(split), dtype=np.bool_)
    for i, keys in enumerate(_values(split, "src_key", "tgt_key")):
        if reason := taken.get(keys[0]) or taken.get(keys[1]):
            report["dropped"][reason] += 1
            kept[i] = False
    return split if kept.all() else split.select(np.flatnonzero(kept))


def _values(split: datasets.Dataset, *columns: str) -> Iterator[tuple[str, ...]]:
    for batch in split.select_columns(list(columns)).iter(batch_size=10_000):
        yield from zip(*(batch[column] for column in columns), strict=True)


def _sentences(split: datasets.Dataset) -> Iterator[str]:
    """Both sides of all pairs, or of at most TOKENIZER_PAIRS that are evenly spread."""
    step = max(1, math.ceil(len(split) / TOKENIZER_PAIRS))
    for pair in _values(split.select(range(0, len(split), step)), "src", "tgt"):
        yield from pair


def _tokenise(split: datasets.Dataset, tokenizer: Tokenizer, longest: int, report: dict[str, Any]) -> datasets.Dataset:
    """Add src_ids, tgt_ids and source; leave out what has more pieces than `longest`."""
    ids = datasets.List(datasets.Value("int32"))
    processes = min(os.cpu_count() or 1, len(split) // PAIRS_A_PROCESS)
    split = split.map(
        _encode,
        fn_kwargs={"model": tokenizer.model},
        batched=True,
        num_proc=processes if processes > 1 else None,
        remove_columns=["src_key", "tgt_key"],
        features=datasets.Features(
            {
                **dict.fromkeys(("src", "tgt"), datasets.Value("string")),
                **dict.fromkeys(("src_ids", "tgt_ids"), ids),
                "source": datasets.Value("float64"),
            }
        ),
        desc="tokenising",
    )
    kept = np.flatnonzero(np.maximum(lengths(split, "src_ids"), lengths(split, "tgt_ids")) <= longest)
    if len(kept) == len(split):
        return split
    report["dropped"][f"more than {longest} pieces"] = len(split) - len(kept)
    return split.select(kept)


def _encode(batch: Mapping[str, list[str]], model: bytes) -> dict[str, list[Any]]:
    tokenizer = _tokenizer(model)
    return {
        "src_ids": tokenizer.encode(batch["src"]),
        "tgt_ids": tokenizer.encode(batch["tgt"]),
        "source": [fraction(src_key) for src_key in batch["src_key"]],
    }


@lru_cache(maxsize=1)
def _tokenizer(model: bytes) -> Tokenizer:
    """One a process, rather than one a batch."""
    return Tokenizer(model)
