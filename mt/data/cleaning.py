"""What a sentence is once it is cleaned, which pairs are left out and why, and which split a sentence belongs to."""

import hashlib
import re
import unicodedata

_NOT_WORD = re.compile(r"[\W_]+")
SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can spell and UTF-8 cannot


def normalise(sentence: str) -> str:
    """NFC, runs of white space (line separators of every kind included) to one space, and no half characters."""
    return " ".join(SURROGATE.sub("\ufffd", unicodedata.normalize("NFC", sentence)).split())


def key(sentence: str) -> str:
    """The sentence without case and punctuation: two with the same key count as the same sentence."""
    return _NOT_WORD.sub(" ", sentence.casefold()).strip() or sentence


def why_dropped(src: str, tgt: str, max_ratio: float) -> str | None:
    """The reason to leave a normalised training pair out, or None.

    Too unequal: (longer + 10) / (shorter + 10) > max_ratio, in characters; the 10 lets short sentences differ.
    """
    if not src or not tgt:
        return "empty side"
    if src == tgt:
        return "both sides the same"
    longer, shorter = max(len(src), len(tgt)), min(len(src), len(tgt))
    if (longer + 10) / (shorter + 10) > max_ratio:
        return "too unequal"
    return None


def fraction(text: str) -> float:
    """A number in [0, 1) that depends on the text alone: the same in every run, on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big") / 2**56
