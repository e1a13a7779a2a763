import csv
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import datasets
import pytest

from mt.data.readers import Row, Source, Unreadable, read_lines

COLUMNS = {"en": "en", "it": "it"}
PAIRS = [
    ('He said "hello.', "Ha detto «ciao»."),
    ("one\u2028line", "una\u2028riga"),
    ("next\u0085line", "riga\u0085dopo"),
    ("form\x0cfeed", "salto\x0cpagina"),
    ("Perché? 👩‍🚀", "שלום"),
    ("a\x1cb\x1db\x0bc", "'quoted', \"twice\""),
]


def tsv(path: Path, pairs: Sequence[tuple[str, str]]) -> None:
    path.write_bytes("".join(f"{a}\t{b}\n" for a, b in pairs).encode())


def comma(path: Path, pairs: Sequence[tuple[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "it", "en"), *((i, b, a) for i, (a, b) in enumerate(pairs))])


def jsonl(path: Path, pairs: Sequence[tuple[str, str]]) -> None:
    path.write_text("".join(json.dumps({"en": a, "n": 1, "it": b}) + "\n" for a, b in pairs), encoding="utf-8")


def parquet(path: Path, pairs: Sequence[tuple[str, str]]) -> None:
    datasets.Dataset.from_dict({"it": [b for _, b in pairs], "en": [a for a, _ in pairs]}).to_parquet(path)


WRITERS = {"tsv": tsv, "csv": comma, "jsonl": jsonl, "json": jsonl, "parquet": parquet}


def rows(value: Path | str | list[str], columns: dict[str, str] = COLUMNS) -> list[Row]:
    return [
        row if isinstance(row, Unreadable) else tuple(row)
        for row in Source.parse(value if isinstance(value, list) else str(value)).rows(columns)
    ]


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("zipped", [False, True])
def test_every_kind_of_file_gives_its_pairs_line_by_line(tmp_path: Path, ending: str, zipped: bool) -> None:
    path = tmp_path / f"le mie coppie, così.{ending}"
    WRITERS[ending](path, PAIRS)
    if zipped:
        with gzip.open(path := path.with_name(f"{path.name}.gz"), "wb") as file:
            file.write(path.with_suffix("").read_bytes())
    assert rows(path) == PAIRS


@pytest.mark.parametrize("ending", WRITERS)
def test_a_path_that_looks_like_a_pattern_is_a_path_where_it_exists(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"pairs [1].{ending}"
    WRITERS[ending](path, PAIRS)
    assert rows(path) == PAIRS


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl"])
def test_a_byte_order_mark_and_carriage_returns_are_no_part_of_the_text(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"windows.{ending}"
    WRITERS[ending](path, [("one", "uno"), ("two", "due")])
    lines = path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + lines.removesuffix(b"\r\n"))
    assert rows(path) == [("one", "uno"), ("two", "due")]


def test_a_tsv_line_with_another_number_of_columns_or_no_utf8_is_named_and_shifts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"one\tuno\nmissing\na\tb\tc\n\nbad \xff\tx\ntwo\tdue\n")
    found = rows(path)
    assert [found[0], found[-1]] == [("one", "uno"), ("two", "due")]
    reasons = ["not 2 columns"] * 3 + ["not UTF-8"]
    assert found[1:-1] == [Unreadable(reason, f"{path}:{n}") for n, reason in enumerate(reasons, 2)]


def test_a_csv_line_with_another_number_of_columns_or_no_utf8_is_named_and_shifts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'en,it\none,uno\nbad \xff,x\nmissing\na,b,c\n"two, ""2""","due\nrighe"\n')
    found = rows(path)
    assert [row for row in found if not isinstance(row, Unreadable)] == [("one", "uno"), ('two, "2"', "due\nrighe")]
    assert {(row.reason, row.where) for row in found if isinstance(row, Unreadable)} == {
        ("not UTF-8", f"{path}:3"),
        ("not 2 columns", f"{path}:4"),
        ("not 2 columns", f"{path}:5"),
    }


def test_a_csv_with_a_nameless_index_column_as_pandas_writes_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",en,it\n0,one,uno\n1,two,due\n")
    assert rows(path) == [("one", "uno"), ("two", "due")]


def test_an_unmatched_quotation_mark_in_a_csv_never_swallows_lines_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('en,it\none,uno\n"two,due\n' + "three,tre\n" * 40)
    try:
        found = rows(path)
    except ValueError as error:
        assert f"{path}:" in str(error)
    else:
        assert len(found) == 42


def test_a_csv_without_the_columns_names_those_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("english,it\none,uno\n")
    with pytest.raises(ValueError, match=r"a\.csv: no column en; its columns: english, it"):
        rows(path)
    path.write_text("")
    with pytest.raises(ValueError, match=r"a\.csv: no column en, it"):
        rows(path)


def test_a_json_line_that_is_none_or_lacks_a_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    bad = ["{", "[]", "3", '{"en": "x"}', '{"en": "x", "it": null}', '{"en": "x", "it": 3}', "[" * 100_000]
    path.write_text("\n".join(['{"en": "one", "it": "uno"}', *bad, '{"en": "two", "it": "due"}']))
    found = rows(path)
    assert [found[0], found[-1]] == [("one", "uno"), ("two", "due")]
    assert found[1:-1] == [Unreadable("no text in en or it", f"{path}:{n}") for n in range(2, 2 + len(bad))]


def test_half_a_surrogate_pair_is_counted_rather_than_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"en": "one", "it": "uno"}\n{"en": "half \\ud83d", "it": "metà"}\n', encoding="utf-8")
    found = rows(path)
    assert found[0] == ("one", "uno")
    assert isinstance(found[1], Unreadable) and found[1].where == f"{path}:2"


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_column_inside_a_column_is_named_with_a_dot(tmp_path: Path, ending: str) -> None:
    nested = [{"translation": {"en": "one", "it": "uno"}}, {"translation": {"en": "two", "it": "due"}}]
    path = tmp_path / f"nested.{ending}"
    if ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, nested)))
    else:
        datasets.Dataset.from_list(nested).to_parquet(path)
    assert rows(path, {"it": "translation.it", "en": "translation.en"}) == [("uno", "one"), ("due", "two")]


def test_a_missing_value_of_a_parquet_file_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet(path, [("one", "uno"), ("two", None), ("three", "tre")])  # type: ignore[list-item]
    found = rows(path)
    assert [found[0], found[2]] == [("one", "uno"), ("three", "tre")]
    assert isinstance(found[1], Unreadable)
    nested = [{"translation": {"en": "one", "it": "uno"}}, {"translation": None}]
    datasets.Dataset.from_list(nested).to_parquet(path)
    found = rows(path, {"en": "translation.en", "it": "translation.it"})
    assert found[0] == ("one", "uno")
    assert isinstance(found[1], Unreadable)


def test_a_parquet_file_without_the_columns_names_those_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet(path, PAIRS)
    with pytest.raises(ValueError, match=r"a\.parquet: no column english; its columns: it, en"):
        rows(path, {"en": "english", "it": "it"})


def test_aligned_files_are_read_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes("\ufeffone\r\ntwo\u2028\r\n\r\n".encode() + b"\xff\r\nfive")
    with gzip.open(tmp_path / "a.it.gz", "wb") as file:
        file.write(b"uno\ndue\t2\ntre\nquattro\ncinque\n")
    found = rows([str(tmp_path / "a.en"), str(tmp_path / "a.it.gz")])
    bad = Unreadable("not UTF-8", f"{tmp_path / 'a.en'}:4")
    assert found == [("one", "uno"), ("two\u2028", "due\t2"), ("", "tre"), bad, ("five", "cinque")]


def test_aligned_files_of_different_lengths_are_refused_with_both_counts(tmp_path: Path) -> None:
    for name, count in (("a", 3), ("b", 5)):
        (tmp_path / name).write_text("line\n" * count)
    with pytest.raises(ValueError, match=r"a has 3 lines, .*b has 5"):
        rows([str(tmp_path / "a"), str(tmp_path / "b")])
    with pytest.raises(ValueError, match="twos, not 3"):
        Source.parse([str(tmp_path / "a")] * 3)


def test_a_glob_is_its_files_in_the_order_of_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a"):
        tsv(tmp_path / f"{name}.tsv", [(f"{name} in", f"{name} out")])
    monkeypatch.chdir(tmp_path)
    for pattern in (str(tmp_path / "*.tsv"), "*.tsv"):
        assert rows(pattern) == [("a in", "a out"), ("b in", "b out")]


def cut(path: Path) -> None:
    path.write_bytes(gzip.compress(bytes(range(256)) * 999)[:-20])


def flipped(path: Path) -> None:
    content = bytearray(gzip.compress(b"one\tuno\n" * 999))
    content[12:40] = bytes(28)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("missing.tsv", lambda path: None, "no such file"),
        ("*.tsv", lambda path: None, "no such file"),
        ("a.docx", lambda path: path.write_bytes(b"PK"), r"Known endings.*\.tsv.*\.parquet"),
        ("noending", lambda path: path.write_bytes(b"a\tb\n"), "Known endings"),
        ("cut.tsv.gz", cut, "can't be read to its end"),
        ("flipped.tsv.gz", flipped, "can't be read to its end"),
        ("cut.parquet.gz", cut, r"cut\.parquet"),
        ("flipped.parquet.gz", flipped, r"flipped\.parquet"),
        ("empty.parquet", lambda path: path.write_bytes(b""), r"empty\.parquet"),
        ("page.parquet", lambda path: path.write_text("<html>404</html>"), r"page\.parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_that_names_it(
    tmp_path: Path, name: str, write: Callable[[Path], object], message: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(ValueError, match=message) as error:
        rows(tmp_path / name)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("address", ["hf://datasets/nobody/nothing@0123abc/train.parquet", "hf://datasets/x/y/a.zip"])
def test_a_hub_address_without_a_network_is_one_line_that_says_what_works_offline(address: str) -> None:
    with pytest.raises(ValueError) as error:
        rows(address)
    assert address in str(error.value)
    assert "\n" not in str(error.value)
    assert "data=everyday" in str(error.value) or "Known endings" in str(error.value)


def test_the_bundled_corpus_has_its_splits_and_no_others() -> None:
    assert all(len(rows(f"everyday://{split}")) > 10 for split in ("train", "validation", "test"))
    with pytest.raises(ValueError, match="no such file"):
        Source.parse("everyday://nothing")


def test_read_lines_ends_a_line_at_a_newline_alone_and_names_the_line_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("one\u2028still\u0085one\x0c\r\n\ntwo".encode())
    assert list(read_lines(str(path))) == ["one\u2028still\u0085one\x0c", "", "two"]
    path.write_bytes(b"one\n\xff\n")
    with pytest.raises(ValueError, match=r"a\.txt:2: not UTF-8"):
        list(read_lines(str(path)))
