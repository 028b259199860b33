"""Share of the tokens that two tokenizers can pair on given texts: the numbers of `distilvec align`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from distilvec.alignment.align import Aligner, mapping_rates
from distilvec.config.schema import SourceSection
from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError

CHUNK = 512  # texts aligned at once


def measure_mapping(
    aligner: Aligner, texts: Iterable[Text], advance: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Return the counts of `Aligned.report` over all texts, the rates, `texts` and `texts_per_second`."""
    report: Counter[str] = Counter()
    count = 0
    seconds = 0.0
    remaining = iter(texts)
    while chunk := list(islice(remaining, CHUNK)):
        began = time.monotonic()
        report.update(aligner.align(chunk).report)
        seconds += time.monotonic() - began
        count += len(chunk)
        advance(count)
    if count == 0:
        raise DistilvecError("there is no text to align.", "Look at --texts and --column.", key="--texts")
    return {"texts": count, "texts_per_second": count / seconds, **mapping_rates(report), **report}


def unicode_texts(texts: Iterable[str], source: SourceSection) -> Iterator[str]:
    """Yield the same texts; refuse half of a surrogate pair, as tokenizers do."""
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DistilvecError(
                f"{source.label}, text {number}: character {error.start + 1} is half of a surrogate pair "
                f"(\\u{ord(text[error.start]):04x}), which is not valid Unicode.",
                "Remove it or convert the file.",
                key="--texts",
            ) from None
        yield text
