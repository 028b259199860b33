"""Texts for the benchmarks: a sample of real ones where they are, else generated ones of the same length distribution."""  # noqa: E501

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

SHARED = Path(__file__).parents[2] / "shared" / "data" / "english_text" / "english_text.jsonl.gz"
# Words a text in english_text at the quantiles 0, 0.1, ... 0.9, 0.95, 0.99, 1 (`python -m benchmarks.texts` prints
# them).
QUANTILES = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)
WORDS_AT = (1, 4, 5, 6, 7, 9, 11, 14, 20, 33, 43, 147, 649)
COMMON = (
    "the of and to in is that for it with as was on be by this are at from or an have not which one all but were they "
    "you has more "
    "their can when about time people into other some what there year work first long little world house part place "
    "old great case "
    "small number point government company group problem fact hand week water room area money story month lot right "
    "study book eye"
).split()


def sample_texts(count: int, path: Path | None = None, seed: int = 0) -> tuple[list[str], str]:
    """`count` distinct texts and a word on where they come from."""
    path = path or SHARED
    generator = np.random.default_rng(seed)
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts = sorted({" ".join(json.loads(line)["text"].split()) for line in file})
        return [texts[i] for i in generator.permutation(len(texts))[:count]], f"a sample of {path.name}"
    lengths = np.interp(generator.random(count), QUANTILES, WORDS_AT).astype(int) + 1
    return [
        " ".join([*generator.choice(COMMON, length), str(i)]) for i, length in enumerate(lengths)
    ], "generated, lengths as in english_text"


def main() -> None:
    """Print the quantiles of words a text."""
    texts, origin = sample_texts(10**9)
    print(origin, [int(q) for q in np.quantile([len(t.split()) for t in texts], QUANTILES)])


if __name__ == "__main__":
    main()
