"""Long texts in pieces that end with sentences where they can."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SENTENCE_END = re.compile(r"[.!?…؟।۔][\"'”’»)\]]*(?=\s)|[。！？][”’」』]*")  # noqa: RUF001
_WORD_END = re.compile(r"(?<=\S)(?=\s)")
_WORD = re.compile(r"\S")


def pieces(text: str, longest: int) -> Iterator[str]:
    """Yield the parts of a text, of at most `longest` characters and about one length; a short text as it is.

    The length of the rest over the least number of parts is a share. A cut is made where a sentence ends, nearest to a
    share and not before half of one; where none ends, behind a word; without white space, after `longest` characters.
    Nothing but white space at the cuts and around the text is lost.
    """
    text, start = text.strip(), 0
    while (left := len(text) - start) > longest:
        share = left / -(-left // longest)
        for end_of in (_SENTENCE_END, _WORD_END):  # one character more: a word ends before white space
            found = end_of.finditer(text, start + int(share / 2), start + longest + 1)
            ends = [one.end() for one in found if one.end() <= start + longest]
            if ends:
                break
        cut = min(ends, key=lambda end: abs(end - start - share), default=start + longest)
        yield text[start:cut].rstrip()
        start = next((one.start() for one in _WORD.finditer(text, cut)), len(text))
    yield text[start:]
