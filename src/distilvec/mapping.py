"""How much of the tokens two tokenizers share on given texts: what `distilvec align` shows."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from distilvec.alignment import Aligner, mapping_rates
from distilvec.batch import Text
from distilvec.errors import DistilvecError
from distilvec.progress import Advance
from distilvec.teachers.local import resolve_model

CHUNK = 512  # texts aligned at once


def load_tokenizer(name: str, option: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model's folder or id; the model itself is not loaded. Of a SentenceTransformer it is its first module's.

    Errors: DistilvecError, naming the `option` that gave the name, where there is none.
    """
    source = resolve_model(name)
    errors = []
    places: list[str | Path] = [_first_module(Path(source))] if Path(source).is_dir() else [source]
    if "/" not in name and not Path(source).is_dir():
        places.append(f"sentence-transformers/{source}")
    for place in places:
        try:
            return AutoTokenizer.from_pretrained(place)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, TypeError) as error:
            errors.append(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
    raise DistilvecError(f"[{option}] no tokenizer in {name}: {errors[0]} Expected the folder or id of a model.")


def _first_module(folder: Path) -> Path:
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        return folder / modules[0]["path"]
    except (OSError, ValueError, LookupError, TypeError):
        return folder


def measure_mapping(aligner: Aligner, texts: Iterable[Text], advance: Advance = lambda done, note: None) -> dict[str, Any]:
    """Counts over all texts as in `Aligned.report`, the rates, `texts` and `texts_per_second` (tokenising included)."""
    report: Counter[str] = Counter()
    count, seconds = 0, 0.0
    for chunk in _chunks(texts):
        began = time.monotonic()
        report.update(aligner.align(chunk).report)
        seconds += time.monotonic() - began
        count += len(chunk)
        advance(count, "")
    if count == 0:
        raise DistilvecError("no text to align. Look at --texts and --column.")
    return {"texts": count, "texts_per_second": count / seconds, **mapping_rates(report), **report}


def _chunks(texts: Iterable[Text]) -> Iterator[list[Text]]:
    remaining = iter(texts)
    while chunk := list(islice(remaining, CHUNK)):
        yield chunk
