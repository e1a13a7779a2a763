"""Pairs of sentences from files as they are found: TSV, CSV, JSON lines, Parquet, or two aligned plain-text files.

Lines end at a newline and nowhere else: not at a Unicode line separator, not inside an unmatched quotation mark
of a TSV. A line that can't be read is an `Unreadable`, so that it is counted and never shifts its neighbours.
"""

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

from mt.data.cleaning import SURROGATE

EVERYDAY = Path(__file__).parent / "everyday"
HELD_OUT = ("validation", "test")


@dataclass(frozen=True)
class Unreadable:
    reason: str
    where: str


Row = Sequence[str] | Unreadable
"""The columns of one line, in the order in which they were asked for."""


@dataclass(frozen=True)
class Source:
    """One split: its files, read one after the other; `aligned` files are read side by side, a column each."""

    files: tuple[str, ...]
    aligned: bool = False

    @classmethod
    def parse(cls, value: str | Sequence[str]) -> "Source":
        """value: a path, a glob, `everyday://train`, `hf://…`, or two paths of aligned plain-text files.

        ValueError, naming the file, where one does not exist.
        """
        if not isinstance(value, str):
            if not isinstance(value, Sequence) or not all(isinstance(path, str) for path in value):
                raise ValueError(f"{value!r} is neither a file's name nor a list of two")
            if len(value) != 2:
                raise ValueError(f"aligned plain-text files come in twos, not {len(value)}: {list(value)}")
            return cls(tuple(_existing(str(path)) for path in value), aligned=True)
        if value.startswith("everyday://"):
            split = value.removeprefix("everyday://")
            topics = [f for f in sorted(EVERYDAY.glob("*.tsv")) if f.stem not in (*HELD_OUT, "alignments")]
            chosen = topics if split == "train" else [EVERYDAY / f"{split}.tsv"]
            return cls(tuple(_existing(str(path)) for path in chosen))
        if value.startswith("hf://"):
            return cls((value,))
        if not Path(value).exists() and (found := sorted(glob(value))):
            return cls(tuple(found))
        return cls((_existing(value),))

    def identity(self) -> list[str]:
        """What tells these contents from others: a digest of every file and how it is read, or a pinned address."""
        kinds = ["aligned" if self.aligned else _kind(f) for f in self.files]
        digests = [f if f.startswith("hf://") else _digest(Path(f)) for f in self.files]
        return [f"{kind} {digest}" for kind, digest in zip(kinds, digests, strict=True)]

    def rows(self, columns: Mapping[str, str]) -> Iterator[Row]:
        """columns: language to column name, in the order of the file's columns where it has no header."""
        if self.aligned:
            if len(columns) != 2:
                raise ValueError(f"two aligned files have two columns; data.columns names {', '.join(columns)}")
            yield from _aligned(*self.files)
            return
        for file in self.files:
            yield from _READERS[_kind(file)](file, columns)


def _existing(path: str) -> str:
    if not Path(path).is_file():
        raise ValueError(f"no such file: {path}")
    return path


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _kind(file: str) -> str:
    name = file.lower().removesuffix(".gz")
    kind = name.rpartition(".")[2]
    if kind not in _READERS:
        raise ValueError(
            f"{file}: what kind of file is this? Known endings, with or without .gz: .{', .'.join(_READERS)}"
        )
    return kind


def _lines(file: str) -> Iterator[str | Unreadable]:
    """Lines without their end (LF or CRLF), and without a byte-order mark."""
    opened: BinaryIO
    with Path(file).open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
    with gzip.open(file, "rb") if is_gzip else Path(file).open("rb") as opened:  # type: ignore[assignment]
        try:
            for number, line in enumerate(opened, 1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                try:
                    yield line.rstrip(b"\r\n").decode()
                except UnicodeDecodeError:
                    yield Unreadable("not UTF-8", f"{file}:{number}")
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{file}: can't be read to its end: {error}") from None


def _tsv(file: str, columns: Mapping[str, str]) -> Iterator[Row]:
    for number, line in enumerate(_lines(file), 1):
        if isinstance(line, Unreadable):
            yield line
        elif len(cells := line.split("\t")) == len(columns):
            yield cells
        else:
            yield Unreadable(f"not {len(columns)} columns", f"{file}:{number}")


def _csv(file: str, columns: Mapping[str, str]) -> Iterator[Row]:
    bad: list[Unreadable] = []

    def text() -> Iterator[str]:
        for line in _lines(file):
            if isinstance(line, Unreadable):
                bad.append(line)
                line = ""  # so that the lines after it keep their numbers
            yield line + "\n"

    csv.field_size_limit(2**31 - 1)
    rows = csv.reader(text(), strict=True)  # strict: an unmatched quote is an error, not the rest of the file
    try:
        names = next(rows, [])
        if missing := set(columns.values()) - set(names):
            raise ValueError(f"{file}: no column {', '.join(sorted(missing))}; its columns: {', '.join(names)}")
        order = [names.index(name) for name in columns.values()]
        for row in rows:
            if bad:  # the record, which may go over several lines, is this line or holds it
                yield bad.pop()
            elif row and len(row) != len(names):
                yield Unreadable(f"not {len(names)} columns", f"{file}:{rows.line_num}")
            elif row:
                yield [row[i] for i in order]
            bad.clear()
    except csv.Error as error:
        raise ValueError(f"{file}:{rows.line_num}: {error}") from None


def _jsonl(file: str, columns: Mapping[str, str]) -> Iterator[Row]:
    for number, line in enumerate(_lines(file), 1):
        if isinstance(line, Unreadable):
            yield line
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        yield _cells(record, columns, f"{file}:{number}")


def _parquet(file: str, columns: Mapping[str, str]) -> Iterator[Row]:
    from pyarrow import ArrowException, parquet

    records: Iterable[Any]
    try:
        if file.startswith("hf://"):
            table = _from_hub(file)
            names, records = table.column_names, table
        else:
            is_gzip = file.lower().endswith(".gz")
            content = parquet.ParquetFile(io.BytesIO(gzip.decompress(Path(file).read_bytes())) if is_gzip else file)
            names = content.schema_arrow.names
            records = (record for batch in content.iter_batches() for record in batch.to_pylist())
        if missing := {name.partition(".")[0] for name in columns.values()} - set(names):
            raise ValueError(f"{file}: no column {', '.join(sorted(missing))}; its columns: {', '.join(names)}")
        for number, record in enumerate(records, 1):
            yield _cells(record, columns, f"{file}: row {number}")
    except (ArrowException, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{file}: {_first_line(error)}") from None


def _from_hub(file: str) -> Any:
    import datasets  # a second that the other kinds of file don't need

    try:
        return datasets.load_dataset("parquet", data_files=file, split="train")
    except Exception as error:  # whatever the hub's client and its network library raise
        offline = "without a network use data=everyday, or data=files data.train=FILE"
        raise ValueError(f"{file}: {_first_line(error)}; {offline}") from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _cells(record: Any, columns: Mapping[str, str], where: str) -> Row:
    """The columns of a record; the name translation.en means record["translation"]["en"]."""
    cells = []
    for name in columns.values():
        cell = record
        for part in name.split("."):
            cell = cell.get(part) if isinstance(cell, dict) else None
        cells.append(cell)
    if all(isinstance(cell, str) and not SURROGATE.search(cell) for cell in cells):
        return cells
    return Unreadable(f"no text in {' or '.join(columns.values())}", where)


def _aligned(left: str, right: str) -> Iterator[Row]:
    count = [0, 0]
    for pair in zip_longest(_lines(left), _lines(right)):
        for side, line in enumerate(pair):
            count[side] += line is not None
        if None in pair:
            continue
        bad = [line for line in pair if isinstance(line, Unreadable)]
        yield bad[0] if bad else pair  # type: ignore[misc]
    if count[0] != count[1]:
        raise ValueError(f"aligned files differ in length: {left} has {count[0]} lines, {right} has {count[1]}")


_READERS = {"tsv": _tsv, "csv": _csv, "jsonl": _jsonl, "json": _jsonl, "parquet": _parquet}


def everyday(split: str, src: str, tgt: str) -> tuple[list[str], list[str]]:
    """The sentences of a split of the bundled corpus; src and tgt are en and it, or it and en."""
    found = Source.parse(f"everyday://{split}").rows({"en": "en", "it": "it"})
    rows = [row for row in found if not isinstance(row, Unreadable)]
    src_column, tgt_column = (("en", "it").index(language) for language in (src, tgt))
    return [row[src_column] for row in rows], [row[tgt_column] for row in rows]


def read_lines(file: str) -> Iterable[str]:
    """The lines of a text file. ValueError at the first that is not UTF-8."""
    for line in _lines(file):
        if isinstance(line, Unreadable):
            raise ValueError(f"{line.where}: {line.reason}")
        yield line
