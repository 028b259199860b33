"""What tokenizer surgery gives on real data: all-MiniLM-L6-v2 trimmed, with new tokenizers, and cut on both sides.

    python -m experiments.surgery trim --json FILE                   trimmed to English, untrained, by size
    python -m experiments.surgery turkish --json FILE                tokenizers of Turkish text: fertility before, after
    python -m experiments.surgery inference --json FILE              Turkish text before, after: texts, tokens a second
    python -m experiments.surgery students RUN [RUN ...] --json FILE finished runs of recipes/small_english.yaml
    python -m experiments.surgery sizes RUN [RUN ...] --json FILE    finished runs of its sweep over vocabulary sizes

Each part is added to FILE, results/surgery.json. trim: the distance (mean L2) of validation texts' vectors to the
teacher's and STS-B's Spearman correlation, for tokens chosen on the training texts. turkish: vocabularies of 8,000
tokens made on Turkish sentences and questions, compared with the teacher's on paragraphs (a part of the sentences was
split from them) and on STSb-TR's sentences.
inference: the teacher, and it with the Unigram vocabulary, encode the same texts of up to 256 tokens in turn; medians
of the rounds. students, sizes: what the runs recorded; students also encode 1,024 validation texts in turn with the
teacher.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.results import earlier_results
from benchmarks.stopwatch import machine
from distilvec.config import recipe as recipes
from distilvec.config.builtin import recipe_folder
from distilvec.config.schema import TeacherSection
from distilvec.config.student import VocabularySection
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.columns import make_columns, score_columns
from distilvec.evaluation.evaluator import EmbeddingCache
from distilvec.evaluation.suite import load_suite
from distilvec.losses.distance import l2_distance
from distilvec.models.load import load, load_tokenizer
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.student import untrained_student
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import load_teacher
from distilvec.verbs.transplant.transplant import readers_by_language
from distilvec.vocabulary.choose import choose
from distilvec.vocabulary.compare import compare_tokenizers
from distilvec.vocabulary.pieces import Pieces
from distilvec.vocabulary.transplant import transplant_tokens

TEACHER = "all-MiniLM-L6-v2"
DATA = Path(__file__).parents[2] / "shared" / "data"
SIZES = (None, 16_000, 8_000, 4_000, 2_300)  # None: everything that the texts use
KINDS = ("bpe", "unigram", "wordpiece")
TURKISH = 8_000
HELD_OUT = 2048
ROUNDS = 6  # of each side
ENCODED = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, *OF_RUNS])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    report = earlier_results(arguments.json, {})
    if arguments.part in PARTS:
        report[arguments.part] = PARTS[arguments.part]()
    else:
        report[arguments.part] = {**report.get(arguments.part, {}), **OF_RUNS[arguments.part](arguments.runs)}
    write_json(arguments.json, report)
    print(json.dumps(report[arguments.part], indent=1)[:4000])


def trimmed() -> dict[str, Any]:
    """Rows by size: tokens, parameters, distance, STS-B; the teacher's own figure first."""
    rows: list[dict[str, Any]] = []
    teacher = load_teacher(TeacherSection(model=TEACHER))
    tasks = [task for task in load_suite(recipe_folder() / "suites" / "english.yaml") if task.name == "stsb"]
    memo, texts, wanted = EmbeddingCache(), list[str](), None
    for size in SIZES:
        keys = ["student.layers=null", f"student.vocabulary.size={size or 'null'}"]
        job = resolve(recipes.load(recipe_folder() / "small_english.yaml", "8m", keys), Path("runs/surgery"))
        if wanted is None:
            texts = [str(text) for text in job.corpus.prompted(job.corpus.holdout_rows[:HELD_OUT])]
            wanted = vectors(teacher.model, texts)
            rows.append({"tokens": len(teacher.model.tokenizer), **figures(teacher.model, texts, wanted, tasks, memo)})
        student = untrained_student(job)
        rows.append({"tokens": len(student.tokenizer), **figures(student, texts, wanted, tasks, memo)})
        print(rows[-1], flush=True)
    return {"machine": machine(), "held_out": len(texts), "rows": rows}


def figures(
    model: SentenceTransformer, texts: list[str], wanted: torch.Tensor, tasks: list[Any], memo: EmbeddingCache
) -> dict[str, Any]:
    """What a model comes to without training."""
    scores = score_columns(tasks, make_columns({"student": ModelEmbedder(model, "trimmed")}), memo, [])[0]["student"]
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "distance": round(float(l2_distance(vectors(model, texts), wanted).mean()), 4),
        "stsb": round(float(scores[0].value), 2),
    }


def vectors(model: SentenceTransformer, texts: list[str]) -> torch.Tensor:
    """[texts, width]"""
    return torch.from_numpy(np.asarray(model.encode(texts, batch_size=64)))


def turkish() -> dict[str, Any]:
    """Each new tokenizer beside the teacher's on Turkish text."""
    folder = DATA / "turkish_text"
    texts = readers_by_language([f"tr={folder / name}.jsonl.gz" for name in ("sentences", "questions")])
    tests = {
        "paragraphs": list(readers_by_language([str(folder / "paragraphs.jsonl.gz")])["paragraphs"]()),
        "stsb_tr": list(readers_by_language([str(DATA / "stsb_tr" / "stsb_tr.jsonl.gz")])["stsb_tr"]()),
    }
    old = load_tokenizer(ModelName(TEACHER))
    found = {}
    for kind in KINDS:
        made = choose(VocabularySection(kind=kind, size=TURKISH), Pieces(old), texts).tokenizer
        found[kind] = compare_tokenizers(old, made, tests)
    return {"size": TURKISH, "kinds": found}


def inference() -> dict[str, Any]:
    """Texts and tokens a second, before and after, on Turkish sentences and paragraphs."""
    sentences, paragraphs = (str(DATA / "turkish_text" / f"{name}.jsonl.gz") for name in ("sentences", "paragraphs"))
    before = load_teacher(TeacherSection(model=TEACHER)).model
    asked = VocabularySection(kind="unigram", size=TURKISH)
    made = choose(asked, Pieces(before.tokenizer), readers_by_language([f"tr={sentences}"])).tokenizer
    models, found = {"before": before, "after": transplant_tokens(before, made)[0]}, dict[str, Any]()
    for name, path, count in (("sentences", sentences, 1024), ("paragraphs", paragraphs, 256)):
        texts = list(readers_by_language([f"tr={path}"], limit=count)["tr"]())
        medians = in_turn(models, texts)
        tokens = {
            side: sum(map(len, model.tokenizer(texts, truncation=True)["input_ids"])) for side, model in models.items()
        }
        found[name] = {
            "texts": len(texts),
            **{
                side: {
                    "texts_per_second": len(texts) / medians[side],
                    "tokens_per_second": tokens[side] / medians[side],
                }
                for side in models
            },
            "times_faster": medians["before"] / medians["after"],
        }
    return {"machine": machine(), "size": TURKISH, "on": found}


def in_turn(models: dict[str, SentenceTransformer], texts: list[str]) -> dict[str, float]:
    """Median seconds that each of two models takes to encode the texts; the order changes from round to round."""
    first, second = models
    seconds: dict[str, list[float]] = {side: [] for side in models}
    for turn in range(2 * ROUNDS):
        side = (first, second, second, first)[turn % 4]
        began = time.perf_counter()
        vectors(models[side], texts)
        seconds[side].append(time.perf_counter() - began)
    return {side: statistics.median(values) for side, values in seconds.items()}


def students(runs: list[Path]) -> dict[str, Any]:
    """The record of each finished run by its name, with tokens, megabytes, and how much faster than the teacher it
    encodes.
    """
    found = {}
    teacher = load_teacher(TeacherSection(model=TEACHER)).model
    for folder in runs:
        job = resolve(recipes.load(RunFolder(folder).recipe), folder)
        texts = [str(text) for text in job.corpus.prompted(job.corpus.holdout_rows[:ENCODED])]
        student = load(job.files.student, device="cpu")
        medians = in_turn({"teacher": teacher, "student": student}, texts)
        name, record = recorded(folder)
        size = sum(path.stat().st_size for path in job.files.student.rglob("*") if path.is_file())
        speed = {f"{side}_texts_per_second": len(texts) / value for side, value in medians.items()}
        found[name] = {**record, "megabytes": size / 1e6, "machine": machine(), "inference": speed}
    return found


def sizes(runs: list[Path]) -> dict[str, Any]:
    """The record of each finished run by its name."""
    return dict(recorded(folder) for folder in runs)


def recorded(folder: Path) -> tuple[str, dict[str, Any]]:
    """The name of a finished run's folder, and its record with the tokens of its vocabulary."""
    record = FinishedRun.open(folder).record.to_json()
    return folder.name, {**record, "tokens": len(load_tokenizer(ModelName(str(RunFolder(folder).student))))}


PARTS = {"trim": trimmed, "turkish": turkish, "inference": inference}
OF_RUNS = {"students": students, "sizes": sizes}

if __name__ == "__main__":
    main()
