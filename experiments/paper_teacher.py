"""Tokenizer surgery with the teacher of its paper: what the prompt, the tokenizer and the training texts change.

    python -m experiments.paper_teacher WORKSPACE --teacher GEMMA_FOLDER --json results/paper_teacher.json

EmbeddingGemma gets other tokenizers (`distilvec transplant`, mean composition): the tokens that Turkish sentences use,
the paper's hybrid towards 131,072 tokens with 65,536 for Turkish, and 32,000 of its own; beside them, the start of
`distilvec distill GEMMA turkish.txt --language tr --size 120M`. A tokenizer's model is scored, trained with
`offline_cosine` in one pass over 12,000 texts at the paper's rate, and scored again, once on the teacher's vectors
without a prompt and once with its STS prompt built in; then with 12 evenly spread layers, and in two passes. Scores
are of the validation pairs of STSb-TR, without a prompt and behind the STS prompt, of TQuAD without a prompt, and the
share of the teacher's ten nearest among 3,000 training texts that is found for 500 sentences that no run has seen.
Differences are paired by row.

Every row is stored in WORKSPACE as soon as it is there, so that the same command goes on; `--rows` names those to
make, and several calls may share a WORKSPACE. The file keeps its rows of another WORKSPACE. Nothing made of this
teacher may be published (its terms).
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr

import distilvec
from benchmarks.markdown import markdown_table
from benchmarks.results import workspace_parser
from benchmarks.stopwatch import machine
from distilvec.config.builtin import recipe_folder
from distilvec.config.student import VocabularySection
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.evaluation.columns import make_columns, score_columns
from distilvec.evaluation.evaluator import EmbeddingCache, Sample
from distilvec.evaluation.overlap import overlap_by_query
from distilvec.evaluation.significance import difference_interval, mean_interval, row_values
from distilvec.evaluation.suite import load_suite
from distilvec.evaluation.tasks import TaskFailure
from distilvec.models.load import load_model
from distilvec.pipeline import evaluate
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.verbs.transplant.transplant import readers_by_language, transplant_folder
from experiments.testbed_student import DATA

SOURCES = {"ud-boun", "ud-imst", "ud-kenet", "ud-penn", "ud-pud", "enelpi-qa-sentences", "lingua-leipzig"}  # no TQuAD
ENGLISH = {"ud-ewt", "wiki-split"}
TURKISH, OTHERS, NEW = 8000, 4000, 500
CANDIDATES = 3000  # Turkish training texts among which neighbours are found
PROMPT = "STS"
RATE = 5e-5  # the paper's
PARTS_OF_A_BATCH = {"train.batch_size": 8, "train.gradient_accumulation_steps": 4}  # 32 long texts at once take 19 GB
NO_PROMPTS: dict[str, Any] = {"query_prompt": "", "document_prompt": ""}
STARTS: dict[str, VocabularySection] = {
    "trim": VocabularySection(kind="trim", letters="seen"),
    "hybrid": VocabularySection(kind="hybrid", target="tr", share=65_536, size=131_072, compose="mean"),
    "own": VocabularySection(kind="bpe", size=32_000, compose="mean"),
}


@dataclass(frozen=True)
class Row:
    """A start and what it is trained on; without texts the start itself. With a size, the start of `distill --size`."""

    start: str | None
    texts: str | None = None
    built_in: bool = False
    size: str | None = None
    layers: int | None = None
    epochs: int = 1

    @property
    def run(self) -> str:
        """The name of the run's folder."""
        prompt = "-prompt" if self.built_in else ""
        layers = f"-{self.layers}-layers" if self.layers else ""
        epochs = f"-{self.epochs}-epochs" if self.epochs > 1 else ""
        return f"{self.start}-{self.texts}{prompt}{layers}{epochs}"


TITLES = {
    "teacher": "the teacher",
    "trim": "Turkish tokens of its own (trim)",
    "hybrid": "hybrid",
    "own": "32,000 tokens of Turkish",
    "size": "`--language tr --size 120M`, not trained",
    "trim-turkish": "trim, trained on Turkish",
    "trim-prompt": "trim, trained, STS prompt built in",
    "trim-12-layers": "trim, 12 of 24 layers, trained on Turkish",
    "hybrid-mixed": "hybrid, trained on several languages",
    "hybrid-mixed-prompt": "hybrid, the same, STS prompt built in",
    "hybrid-turkish": "hybrid, trained on Turkish",
    "own-turkish": "32,000, trained on Turkish",
    "own-turkish-prompt": "32,000, the same, STS prompt built in",
    "own-turkish-long": "32,000, trained on Turkish in two passes",
}
ROWS = {
    "teacher": Row(None),
    "trim": Row("trim"),
    "hybrid": Row("hybrid"),
    "own": Row("own"),
    "size": Row(None, "turkish", size="120M"),
    "trim-turkish": Row("trim", "turkish"),
    "trim-prompt": Row("trim", "turkish", built_in=True),
    "trim-12-layers": Row("trim", "turkish", layers=12),
    "hybrid-mixed": Row("hybrid", "mixed"),
    "hybrid-mixed-prompt": Row("hybrid", "mixed", built_in=True),
    "hybrid-turkish": Row("hybrid", "turkish"),
    "own-turkish": Row("own", "turkish"),
    "own-turkish-prompt": Row("own", "turkish", built_in=True),
    "own-turkish-long": Row("own", "turkish", epochs=2),
}

CONTRASTS = {  # what changes from the second row to the first
    "32,000 new tokens for the teacher's": ("own", "teacher"),
    "the hybrid for the teacher's tokens": ("hybrid", "teacher"),
    "32,000 tokens: trained on Turkish": ("own-turkish", "own"),
    "32,000 tokens: two passes for one": ("own-turkish-long", "own-turkish"),
    "hybrid: trained on several languages": ("hybrid-mixed", "hybrid"),
    "32,000 tokens: vectors with the STS prompt for those without": ("own-turkish-prompt", "own-turkish"),
    "hybrid: vectors with the STS prompt for those without": ("hybrid-mixed-prompt", "hybrid-mixed"),
    "trim: trained on Turkish": ("trim-turkish", "trim"),
    "trim: trained on vectors with the STS prompt": ("trim-prompt", "trim"),
    "trim: 12 layers, trained, for 24, untrained": ("trim-12-layers", "trim"),
}


@dataclass(frozen=True)
class Texts:
    """Texts of the tokenizers by language, of the two trainings, and sentences that no training has."""

    turkish: list[str]
    others: dict[str, list[str]]
    new: list[str]

    @classmethod
    def read(cls) -> Texts:
        """Read them from the files of docs/data.md."""
        turkish = [row["text"] for row in read("turkish_text/sentences.jsonl.gz") if row["source"] in SOURCES]
        turkish = mixed_up(turkish)
        others: dict[str, list[str]] = {}
        for row in read("multilingual/lingua_sentences.jsonl.gz"):
            if row["lang"] != "tr":
                others.setdefault(row["lang"], []).append(row["text"])
        others["en"] += [row["text"] for row in read("english_text/english_text.jsonl.gz") if row["source"] in ENGLISH]
        return cls(turkish[NEW:], {language: mixed_up(texts) for language, texts in others.items()}, turkish[:NEW])

    @property
    def trainings(self) -> dict[str, list[str]]:
        """The same Turkish texts in both, then more of them or texts of the other languages."""
        in_turn = [texts[number] for number in range(OTHERS) for texts in self.others.values() if number < len(texts)]
        return {
            "turkish": self.turkish[: TURKISH + OTHERS],
            "mixed": [*self.turkish[:TURKISH], *in_turn[:OTHERS]],
        }


def read(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of docs/data.md."""
    with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def mixed_up(texts: Sequence[str]) -> list[str]:
    """Return distinct texts on one line each, in a drawn order."""
    distinct = list(dict.fromkeys(" ".join(text.split()) for text in texts))
    random.Random(0).shuffle(distinct)
    return distinct


def main() -> None:
    parser = workspace_parser(__doc__, "--teacher")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vars(evaluate)["judge_run"] = lambda job: None  # which embeds all texts twice; the rows have their own judgement
    work = Work(arguments.workspace, str(arguments.teacher.resolve()), Texts.read())
    for name in arguments.rows:
        row = work.row(name)
        print(name, {key: value for key, value in row.items() if key != "samples"}, flush=True)
        write_json(arguments.json, results(arguments.workspace, stored_results(arguments.json)))
    made = stored_results(arguments.json)
    print(f"{table(made)}\n\n{contrasts_table(made)}")


@dataclass(frozen=True)
class Work:
    """The folder with everything that is made once."""

    folder: Path
    teacher: str
    texts: Texts

    def row(self, name: str) -> dict[str, Any]:
        """Return the stored scores of a row, which are made where they are missing."""
        stored = self.folder / "rows" / f"{name}.json"
        if not stored.exists():
            model = self.model(ROWS[name])
            stored.parent.mkdir(parents=True, exist_ok=True)
            write_json(stored, {**self.trained(name), **self.scores(model)})
        row: dict[str, Any] = json.loads(stored.read_text(encoding="utf-8"))
        return row

    def model(self, row: Row) -> str:
        """Return the folder of the row's model, made where it is missing."""
        if row.size is not None:
            return self.made_smaller(row.size, self.written("turkish", self.texts.trainings["turkish"]))
        if row.start is None:
            return self.teacher
        start = self.folder / "starts" / row.start
        if not start.exists():
            transplant_folder(self.teacher, STARTS[row.start], readers_by_language(self.files(row.start)), start)
        if row.texts is None:
            return str(start)
        file = self.written(row.texts, self.texts.trainings[row.texts])
        prompts: dict[str, Any] = {"built_in_prompt": PROMPT} if row.built_in else NO_PROMPTS
        run = distilvec.distill(
            self.teacher,
            file,
            student=start,
            method="offline_cosine",
            epochs=row.epochs,
            out=self.run_folder(row),
            overrides={
                "student.layers": row.layers,  # evenly spread
                "student.dense": "keep",
                "train.learning_rate": RATE,
                "evaluation.parts": [],
                **PARTS_OF_A_BATCH,
            },
            **prompts,
        )
        return str(run.student_folder)

    def made_smaller(self, size: str, file: Path) -> str:
        """Return the folder of the student that `distill --language tr --size SIZE` starts from."""
        run = distilvec.distill(
            self.teacher,
            file,
            language="tr",
            size=size,
            epochs=0,
            out=self.folder / "runs" / size,
            overrides={"evaluation.parts": []},
            **NO_PROMPTS,
        )
        return str(run.student_folder)

    def run_folder(self, row: Row) -> Path:
        """Return the folder of a row's run."""
        return self.folder / "runs" / row.run

    def files(self, start: str) -> list[str]:
        """Return LANGUAGE=FILE of the texts that a tokenizer is made on: others only for the hybrid vocabulary."""
        languages = {"tr": self.texts.turkish, **(self.texts.others if start == "hybrid" else {})}
        return [f"{language}={self.written(language, texts)}" for language, texts in languages.items()]

    def written(self, name: str, texts: Sequence[str]) -> Path:
        """Return a file with a text on each line."""
        file = self.folder / "texts" / f"{name}.txt"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(texts), encoding="utf-8")
        return file

    def trained(self, name: str) -> dict[str, Any]:
        """Return what the run of a row recorded, nothing for a row without a run."""
        if ROWS[name].start is None or ROWS[name].texts is None:
            return {}
        record = FinishedRun.open(self.run_folder(ROWS[name])).record
        assert record.training is not None
        return {"training": asdict(record.training)}

    def scores(self, folder: str) -> dict[str, Any]:
        """Return the scores of a model, with the values by row that differences are made of."""
        model = load_model(ModelName(folder))
        prompt = load_model(ModelName(self.teacher)).prompts[PROMPT]
        without = ModelEmbedder(model, folder, prompts={"query": "", "document": ""})
        behind = ModelEmbedder(model, folder, prompts={"query": prompt, "document": prompt})
        bare = self.samples(without, ["stsb_tr", "tquad"])
        prompted = self.samples(behind, ["stsb_tr"])
        known = self.teacher_vectors("known", self.texts.turkish[:CANDIDATES])
        new = self.teacher_vectors("new", self.texts.new)
        vectors = without.embed_prompted(self.texts.new)
        used = {token for text in self.texts.turkish for token in model.tokenizer(text)["input_ids"]}
        return {
            "tokens": len(model.tokenizer),
            "used_tokens": len(used),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "bare": bare["stsb_tr"].predicted.tolist(),
            "prompted": prompted["stsb_tr"].predicted.tolist(),
            "gold": bare["stsb_tr"].gold.tolist(),
            "tquad": bare["tquad"].predicted.tolist(),
            "overlap": overlap_by_query(new, known, vectors, known).tolist(),
        }

    def samples(self, embedder: ModelEmbedder, names: Sequence[str]) -> dict[str, Sample]:
        """Return the row-by-row scores of tasks of recipes/suites/turkish.yaml."""
        tasks = [task for task in load_suite(recipe_folder() / "suites" / "turkish.yaml") if task.name in names]
        problems: list[TaskFailure] = []
        samples = score_columns(tasks, make_columns({"student": embedder}), EmbeddingCache(), problems)[1]
        assert not problems, problems
        return samples["student"]

    def teacher_vectors(self, name: str, texts: Sequence[str]) -> np.ndarray:
        """Return the teacher's vectors of texts without a prompt."""
        file = self.folder / f"teacher-{name}.npy"
        if not file.exists():
            embedder = ModelEmbedder(load_model(ModelName(self.teacher)), self.teacher)
            np.save(file, embedder.embed_prompted(texts))
        return np.load(file)


def stored_results(file: Path) -> dict[str, Any]:
    """Return what the results file has, without rows where it is missing."""
    if not file.exists():
        return {"rows": {}, "contrasts": {}}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def results(workspace: Path, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results `before` with the rows that are there and what changes between two of them."""
    stored = {name: workspace / "rows" / f"{name}.json" for name in ROWS}
    rows = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in stored.items() if path.exists()}
    if "teacher" not in rows:  # the others are compared with it
        return dict(before)
    made = {name: figures(row, rows["teacher"]) for name, row in rows.items()}
    changes = {
        name: contrast(rows[first], rows[second])
        for name, (first, second) in CONTRASTS.items()
        if first in rows and second in rows
    }
    return {
        "machine": machine(),
        "rows": in_order(ROWS, {**before["rows"], **made}),
        "contrasts": in_order(CONTRASTS, {**before["contrasts"], **changes}),
    }


def in_order(names: Iterable[str], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was found of the names, in their order."""
    return {name: found[name] for name in names if name in found}


def contrast(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return what the scores of a row are above those of another one."""
    return {
        **{way: difference(sample(first, way), sample(second, way)) for way in ("bare", "prompted")},
        "tquad": points(np.array(first["tquad"]) - np.array(second["tquad"])),
    }


def figures(row: Mapping[str, Any], teacher: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of a row, with their differences to the teacher used without and with its prompt."""
    known = {name: row[name] for name in ("tokens", "used_tokens", "parameters", "training") if name in row}
    of_teacher = {way: sample(teacher, way) for way in ("bare", "prompted")}
    scores = {}
    for way in ("bare", "prompted"):
        own = sample(row, way)
        scores[way] = {
            "pearson": 100 * float(pearsonr(own.predicted, own.gold).statistic),
            "spearman": 100 * float(spearmanr(own.predicted, own.gold).statistic),
            **{f"less_{name}_teacher": difference(own, other) for name, other in of_teacher.items()},
        }
    tquad, overlap = np.array(row["tquad"]), np.array(row["overlap"])
    return {
        **known,
        **scores,
        "tquad": 100 * float(tquad.mean()),
        "overlap": [float(number) for number in mean_interval(overlap)],
    }


def sample(row: Mapping[str, Any], way: str) -> Sample:
    return Sample("sts", "spearman", np.array(row[way]), np.array(row["gold"]))


def difference(first: Sample, second: Sample) -> list[float]:
    """Return the difference of two models' Spearman correlations in points, with the ends of its interval."""
    return points(row_values(first) - row_values(second))


def points(values: np.ndarray) -> list[float]:
    """Return the mean of differences by row in points, with the ends of its interval."""
    change = difference_interval([values])
    assert change is not None
    return [change.difference, change.low, change.high]


def table(results: Mapping[str, Any]) -> str:
    """Return the table of docs/papers/surgery.md."""
    lines = []
    for name, row in results["rows"].items():
        bare, prompted = row["bare"], row["prompted"]
        lines.append(
            [
                TITLES[name],
                f"{row['tokens']:,}",
                f"{row['used_tokens']:,}",
                f"{row['parameters'] / 1e6:.0f} M",
                f"{row['overlap'][0]:.3f}",
                f"{bare['spearman']:.2f}",
                f"{prompted['spearman']:.2f}",
                "" if name == "teacher" else signed(bare["less_bare_teacher"]),
                "" if name == "teacher" else signed(bare["less_prompted_teacher"]),
                f"{row['tquad']:.1f}",
            ]
        )
    head = ["model", "tokens", "of them in the Turkish texts", "parameters", "overlap@10", "no prompt", "STS prompt"]
    head += ["no prompt, less the teacher without", "less the teacher with its prompt", "TQuAD"]
    return markdown_table(head, lines, columns="l" + "r" * (len(head) - 1))


def contrasts_table(results: Mapping[str, Any]) -> str:
    """Return the table of single changes."""
    head = ["change", "STSb-TR, no prompt", "STSb-TR, STS prompt", "TQuAD"]
    rows = []
    for name, changes in results["contrasts"].items():
        rows.append([name, *(signed(changes[way]) for way in ("bare", "prompted", "tquad"))])
    return markdown_table(head, rows, columns="lrrr")


def signed(change: Sequence[float]) -> str:
    return "{:+.2f} [{:+.2f}, {:+.2f}]".format(*change)


if __name__ == "__main__":
    main()
