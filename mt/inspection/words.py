"""Words: how a sentence splits into them, which pieces make up each, and attention maps between them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import one_hot

from mt.inspection.attention_maps import AttentionMap
from mt.tokenizer import SPACE

WORD = re.compile(r"\w+'(?:s|t|m|d|re|ve|ll)\b|\w+'?")
"""An English contraction is one word, an Italian elision ends its word: the rule of the everyday alignments."""
_WORD_OR_MARK = re.compile(rf"{WORD.pattern}|[^\w\s]+")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPECIAL = {"<pad>", "<unk>", "<s>", "</s>"}


class Words(NamedTuple):
    names: list[str]
    """In order: words, runs of marks, and special pieces, each of which is one of its own."""
    of: list[int]
    """The word of every piece."""


def words(sentence: str) -> list[str]:
    """Marks don't count."""
    return WORD.findall(sentence)


def words_of(pieces: Sequence[str]) -> Words:
    """A piece belongs to the word that its first letter stands in. pieces: as `Tokenizer.pieces` names them."""
    names: list[str] = []
    of: list[int] = []
    start = 0
    while start < len(pieces):
        if pieces[start] in _SPECIAL:
            of.append(len(names))
            names.append(pieces[start])
            start += 1
            continue
        end = next((i for i in range(start, len(pieces)) if pieces[i] in _SPECIAL), len(pieces))
        part = _words_of_text([_bytes(piece) for piece in pieces[start:end]])
        of += [len(names) + word for word in part.of]
        names += part.names
        start = end
    return Words(names, of)


def _words_of_text(pieces: list[bytes]) -> Words:
    """Places are counted in bytes, because a piece may be a single byte of a character, even without the others."""
    text = b"".join(pieces).decode("utf-8", "surrogateescape")
    found = list(_WORD_OR_MARK.finditer(text))
    ends = [len(text[: match.end()].encode("utf-8", "surrogateescape")) for match in found]
    of, place = [], 0
    for piece in pieces:
        first_letter = place + len(piece) - len(piece.lstrip(b" "))
        of.append(next((word for word, end in enumerate(ends) if first_letter < end), max(0, len(ends) - 1)))
        place += len(piece)
    names = [match[0].encode("utf-8", "surrogateescape").decode("utf-8", "replace") for match in found]
    return Words(names or [""], of)


def _bytes(piece: str) -> bytes:
    if byte := _BYTE.fullmatch(piece):
        return bytes.fromhex(byte[1])
    return piece.replace(SPACE, " ").encode()


def merge(attention_map: AttentionMap) -> AttentionMap:
    """The map between words: the weights of a key's pieces are added, the rows of a query's pieces averaged."""
    queries, keys = words_of(attention_map.queries), words_of(attention_map.keys)
    rows = one_hot(torch.tensor(queries.of), len(queries.names)).float()
    columns = one_hot(torch.tensor(keys.of), len(keys.names)).float()
    weights = (rows / rows.sum(dim=0)).T @ attention_map.weights @ columns
    return AttentionMap(attention_map.name, weights, queries.names, keys.names)
