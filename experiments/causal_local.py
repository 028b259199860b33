"""Does DistillMoE help a small causal language model? A local stand-in for table 16: WordNet's definitions, no hub,
minutes a run.

    python -m experiments.causal_local --prepare runs/causal           the data and two tokenizers only
    python -m experiments.causal_local --json results/causal_local.json [--folder runs/causal] [--seeds 3]

Instructions are "Define the noun WORD.", responses WordNet's definitions. Rows are split by synset, so no response of
the training rows is one of the others. A Qwen3-type teacher (from its config) is trained on the responses first; then,
for every seed, a GPT-2-type student with another tokenizer: alone, and with the teacher (experiments/causal/dolly.yaml,
variants local-teacher, local-alone and local; `--set KEY=VALUE` changes the distilled students' recipe). In the JSON:

    rouge_l          ROUGE-L x 100 of greedy answers to the test rows: mean and every seed
    cross_entropy    nats a token of held-out responses, by the student's tokenizer (the teacher's own has another one)
    seconds          of training
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import statistics
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from distilvec.core.files import write_json
from experiments.causal.run import run_causal
from experiments.causal.schema import load_causal

SOURCE = Path(os.environ.get("DISTILVEC_DATA", "data")) / "wordnet_definitions/wordnet_definitions.jsonl.gz"
RECIPE = Path(__file__).parent / "causal" / "dolly.yaml"
PARTS = {"train": 4000, "holdout": 500, "test": 300}
KINDS = {"n": "noun", "noun": "noun", "v": "verb", "verb": "verb"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("runs/causal"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    if arguments.prepare:
        prepare(arguments.prepare)
    if arguments.json:
        prepare(arguments.folder)
        write_json(arguments.json, measure(arguments.folder, arguments.seeds, arguments.set))


def prepare(folder: Path) -> None:
    """Write train.jsonl, holdout.jsonl, test.jsonl and the tokenizers of teacher and student; what is there already
    stays.
    """
    if (folder / "student-tokenizer").exists():
        return
    with gzip.open(SOURCE, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    synsets: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        if row["pos"] in KINDS and row["word"].isalpha() and row["word"].islower():
            synsets.setdefault(row["synset"], []).append(row)
    drawn = sorted(synsets)
    random.Random(0).shuffle(drawn)
    folder.mkdir(parents=True, exist_ok=True)
    start, texts = 0, []
    for name, count in PARTS.items():
        chosen = [synsets[key][0] for key in drawn[start : start + count]]
        start += count
        pairs = [
            {"instruction": f"Define the {KINDS[row['pos']]} {row['word']}.", "response": row["definition"]}
            for row in chosen
        ]
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs), encoding="utf-8"
        )
        texts += [text for pair in pairs for text in pair.values()] if name == "train" else []
    train_tokenizer(texts, 2048, "<|endoftext|>").save_pretrained(folder / "teacher-tokenizer")
    train_tokenizer(texts, 1024, "</s>").save_pretrained(folder / "student-tokenizer")


def train_tokenizer(texts: list[str], size: int, end: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `size` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[end], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=end)


def measure(folder: Path, seeds: int, changes: list[str]) -> dict[str, Any]:
    """Train the teacher, then the students of every seed, and gather their figures."""
    place = folder.resolve()
    files = [
        f"data.train={place / 'train.jsonl'}",
        f"data.holdout={place / 'holdout.jsonl'}",
        f"data.tests={{test: {place / 'test.jsonl'}}}",
    ]

    def train(variant: str, name: str, *overrides: str) -> dict[str, Any]:
        kind = "teacher" if variant == "local-teacher" else "student"
        tokenizer = f"student.tokenizer={place / f'{kind}-tokenizer'}"
        recipe = load_causal(RECIPE, variant, [*files, tokenizer, *overrides])
        report = run_causal(recipe, folder / name)
        assert report is not None
        return report

    teacher = train("local-teacher", "teacher")
    model = f"teacher.model={place / 'teacher' / 'student'}"
    found: dict[str, list[dict[str, Any]]] = {"alone": [], "distilled": []}
    for seed in range(seeds):
        found["alone"].append(train("local-alone", f"alone-{seed}", f"train.seed={seed}"))
        found["distilled"].append(train("local", f"distilled-{seed}", f"train.seed={seed}", model, *changes))
    return {
        "data": {"source": SOURCE.name, **PARTS},
        "changes": changes,
        "teacher": _figures([teacher]),
        **{name: _figures(reports) for name, reports in found.items()},
    }


def _figures(reports: list[dict[str, Any]]) -> dict[str, Any]:
    values = {
        "rouge_l": [report["tests"]["test"]["rouge_l"] for report in reports],
        "cross_entropy": [report["held_out"]["cross_entropy"] for report in reports],
        "seconds": [report["seconds"] for report in reports],
    }
    means = {name: {"mean": round(statistics.mean(each), 4), "seeds": each} for name, each in values.items()}
    return {"parameters": reports[0]["parameters"], "steps": reports[0]["steps"], **means}


if __name__ == "__main__":
    main()
