"""A corpus behind the prompts of another teacher: the same texts and rows, with cache keys of their own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import Role
from distilvec.core.artifacts import Column, open_column, open_or_build
from distilvec.data.corpus import KEY_BYTES, Corpus, text_key

FORMAT = 1
_ROWS = 8192  # read together


def behind(corpus: Corpus, prompts: Mapping[Role, str], root: Path) -> Corpus:
    """The corpus with its texts behind these prompts; itself, where they are its own. Keys are kept in `root`, by content.

    Two rows of one text in different roles may have one key here: where the first teacher's prompts told them apart, these do not.
    Errors: DistilvecError if no disk space is left.
    """
    wanted = {role: prompts.get(role, "") for role in sorted(set(corpus.roles))}
    if all(corpus.prompts.get(role, "") == prompt for role, prompt in wanted.items()):
        return corpus
    mark = fingerprint(FORMAT, corpus.fingerprint, wanted)
    by_source = [wanted[role] for role in corpus.roles]

    def build(place: Path) -> dict[str, Any]:
        with Column(place / "keys.npy", f"V{KEY_BYTES}") as column:
            for start in range(0, len(corpus), _ROWS):
                rows = range(start, min(len(corpus), start + _ROWS))
                sources = corpus.sources[rows.start : rows.stop].tolist()
                texts = zip(sources, corpus.stored(rows), strict=True)
                column.append(
                    np.frombuffer(
                        b"".join(text_key(by_source[source], text) for source, text in texts), f"V{KEY_BYTES}"
                    )
                )
        return {"prompts": wanted}

    def load(folder: Path) -> Any:
        keys = open_column(folder / "keys.npy")
        if len(keys) != len(corpus):
            raise ValueError(f"keys.npy has {len(keys)} rows, the corpus {len(corpus)}")
        return keys

    found = copy.copy(corpus)
    found.prompts, found.fingerprint = dict(prompts), mark
    found.keys = open_or_build(root / mark, mark, "list of keys", KEY_BYTES * len(corpus), build, load)
    return found
