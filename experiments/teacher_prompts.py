"""A teacher without a prompt and behind those of its card, on the validation pairs of STSb-TR.

    python -m experiments.teacher_prompts TEACHER --json results/teacher_prompts.json

The surgery paper's table has its teacher without a prompt (docs/papers/surgery.md); the card of that teacher,
EmbeddingGemma, asks for one. Both texts of a pair get the same prompt. The difference to no prompt is paired by row.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sentence_transformers import SentenceTransformer

from benchmarks.markdown import markdown_table
from benchmarks.texts import SHARED
from distilvec.core.files import write_json
from distilvec.core.vectors import cosine_pairs
from distilvec.evaluation.evaluator import Sample
from distilvec.evaluation.significance import difference_interval, row_values

PAIRS = SHARED.parents[1] / "stsb_tr" / "stsb_tr.jsonl.gz"
PROMPTS = ("none", "STS", "query")  # by their names in the teacher's folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    with gzip.open(PAIRS, "rt", encoding="utf-8") as lines:
        pairs = [pair for pair in map(json.loads, lines) if pair["split"] == "validation"]
    model = SentenceTransformer(str(arguments.teacher), device="cpu", local_files_only=True)
    rows: dict[str, Any] = {}
    bare = None
    for name in PROMPTS:
        prompt = "" if name == "none" else model.prompts[name]
        sample = scored(model, pairs, prompt)
        bare = bare or sample
        change = difference_interval([row_values(sample) - row_values(bare)])
        rows[name] = {
            "prompt": prompt,
            "pearson": 100 * float(pearsonr(sample.predicted, sample.gold).statistic),
            "spearman": 100 * float(spearmanr(sample.predicted, sample.gold).statistic),
            "against_none": None if change is None else [change.difference, change.low, change.high],
        }
        write_json(arguments.json, {"pairs": len(pairs), "rows": rows})
        print(name, rows[name], flush=True)


def scored(model: SentenceTransformer, pairs: list[dict[str, Any]], prompt: str) -> Sample:
    """The cosines of the pairs behind this prompt, beside their gold scores."""
    texts = [pair[side] for side in ("sentence1", "sentence2") for pair in pairs]
    vectors = model.encode(texts, prompt=prompt, batch_size=32)
    similarities = cosine_pairs(vectors[: len(pairs)], vectors[len(pairs) :])
    return Sample("sts", "spearman", similarities, np.array([pair["score"] for pair in pairs]))


def prompts_table(figures: dict[str, Any]) -> str:
    """The table of docs/papers/surgery.md."""
    rows = []
    for name, row in figures["rows"].items():
        label, change = "no prompt", ""
        if name != "none":
            label, change = f"`{name}`", "{:+.2f} [{:+.2f}, {:+.2f}]".format(*row["against_none"])
        rows.append([label, f"{row['pearson']:.2f}", f"{row['spearman']:.2f}", change])
    return markdown_table(["its prompt before both texts", "Pearson", "Spearman", "Spearman less no prompt"], rows)


if __name__ == "__main__":
    main()
