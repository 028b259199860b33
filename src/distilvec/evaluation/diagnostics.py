"""Diagnostics of a student: gates of its experts, metrics of its head on a labelled task, its own tokenizer.

Gates and outputs of experts come from a sample of the texts that the student is scored on, by task, class and length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from sentence_transformers import SentenceTransformer
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support
from torch import Tensor

from distilvec.config.schema import Role
from distilvec.core.batch import Text
from distilvec.core.info import UNLIMITED
from distilvec.core.log import progress
from distilvec.core.task_head import TaskHead
from distilvec.data.corpus import Corpus
from distilvec.data.examples import Examples, Labelled
from distilvec.evaluation.evaluator import Sample, Score, row_keys
from distilvec.evaluation.metrics import class_labels, correlations
from distilvec.evaluation.significance import share_interval
from distilvec.evaluation.tasks import ClassificationTask, RetrievalTask, Task
from distilvec.models.load import evaluating
from distilvec.models.tokenizers import plain_copy, tokenizer_hash
from distilvec.students.task_head import predict_logits
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.train.monitors import gate_statistics

Array = np.ndarray[Any, Any]
MOST_TEXTS, MOST_OF_A_GROUP, LEAST_OF_A_GROUP = 400, 100, 10  # texts whose gates are computed
MOST_CLASSES = 12  # a task of more classes is one group
LENGTHS = (0, 8, 16, 32, 64, 128, 256, 512, 2**31)  # tokens: bounds of the bins, upper ones within
LANGUAGE_TEXTS = 2000  # of a language, for the comparison of tokenizers
SEED = 0  # of every draw
_BATCH = 32


@dataclass(frozen=True)
class GateShares:
    """Mean gates of a group of texts.

    entropy: 1 for equal gates, 0 for one expert per text
    decided: share of texts whose largest gate exceeds 0.9
    spread: standard deviation over texts, averaged over experts
    """

    name: str
    rows: int
    gates: list[float]
    entropy: float
    decided: float
    spread: float


@dataclass(frozen=True)
class LengthGates:
    """Mean gates of texts of `first` to `last` tokens, as `GateShares`."""

    first: Annotated[int, Field(alias="from")]
    last: Annotated[int, Field(alias="to")]
    rows: int
    gates: list[float]
    entropy: float
    decided: float
    spread: float

    @property
    def shares(self) -> GateShares:
        """The gates as those of a named group."""
        name = f"{self.first:,} to {self.last:,} tokens"
        return GateShares(name, self.rows, self.gates, self.entropy, self.decided, self.spread)


@dataclass(frozen=True)
class ExpertsReport:
    """The routing of a student with a mixture of experts."""

    count: int
    rows: int
    gates: list[float]
    entropy: float
    decided: float
    spread: float
    groups: list[GateShares]
    lengths: list[LengthGates]
    cosines: list[list[float]]


@dataclass(frozen=True)
class Group:
    """Texts of a task, of a retrieval task's queries, or of one class.

    `role` names the prompt to prepend; None: texts have it already, and may be pairs.
    """

    name: str
    texts: Sequence[Text]
    role: Role | None = None


@dataclass(frozen=True)
class Mixture:
    """Gates [n, experts], expert outputs [n, experts, dim], their mixture [n, dim] on the CPU; tokens per text."""

    gates: Tensor
    outputs: Tensor
    mixed: Tensor
    lengths: Array


def task_groups(tasks: Iterable[Task]) -> list[Group]:
    """Texts of each task; queries and documents of a retrieval task are two groups."""
    groups = []
    for task in tasks:
        if isinstance(task, RetrievalTask):
            groups.append(Group(f"{task.name}, queries", task.queries, "query"))
            groups.append(Group(f"{task.name}, documents", task.documents, "document"))
        else:
            texts = task.test_texts if isinstance(task, ClassificationTask) else [*task.first, *task.second]
            groups.append(Group(task.name, texts, task.role))
    return groups


def labelled_groups(examples: Examples, test: Labelled) -> list[Group]:
    """Test texts of the task a student was trained on, by class if there are at most 12 and a text has one of them."""
    if examples.info.kind == "multilabel" or not 1 < len(examples.classes) <= MOST_CLASSES:
        return [Group(f"{examples.name}, test split", [text for parts in test.inputs for text in parts])]
    texts: list[list[Text]] = [[] for _ in examples.classes]
    for parts, label in zip(test.inputs, test.labels.tolist(), strict=True):
        texts[label] += parts
    texts_by_class = zip(examples.classes, texts, strict=True)
    return [Group(f"{examples.name}: {name}", class_texts) for name, class_texts in texts_by_class]


def sample(group: Group, count: int) -> list[Text]:
    """At most `count` of a group's distinct texts, drawn by seed; blank ones are left out."""
    texts = sorted({text for text in group.texts if "".join(text).strip()}, key=str)
    order = np.random.default_rng(SEED).permutation(len(texts))[:count]
    return [texts[number] for number in sorted(order.tolist())]


def experts_report(student: ModelEmbedder, groups: Sequence[Group]) -> ExpertsReport | None:
    """Describe the routing of a student; None without at least two experts, or without texts."""
    count = max(LEAST_OF_A_GROUP, min(MOST_OF_A_GROUP, MOST_TEXTS // max(1, len(groups))))
    drawn = [(group, texts) for group in groups if (texts := sample(group, count))]
    # by name: a saved student has its own copy of the class
    if not drawn or not any(type(module).__name__ == "Experts" and module.experts > 1 for module in student.model):
        return None
    prompts = student.prompts
    prompted: list[Text] = []
    for group, texts in drawn:
        for text in texts:
            if group.role is not None and isinstance(text, str):
                text = prompts.get(group.role, "") + text
            prompted.append(text)
    mixture = run_mixture(student.model, prompted)
    ends = np.cumsum([len(texts) for _, texts in drawn]).tolist()
    rows = [slice(first, last) for first, last in pairwise([0, *ends])]
    bins = np.searchsorted(LENGTHS, mixture.lengths)
    unit = torch.nn.functional.normalize(mixture.outputs, dim=-1)
    longest = int(mixture.lengths.max())
    by_group = []
    for (group, _), part in zip(drawn, rows, strict=True):
        by_group.append(_gate_shares(group.name, mixture.gates[part]))
    by_length = []
    for n in sorted(set(bins.tolist())):
        shares = _gate_shares("", mixture.gates[bins == n])
        first, last = LENGTHS[n - 1] + 1, min(LENGTHS[n], longest)
        by_length.append(
            LengthGates(first, last, shares.rows, shares.gates, shares.entropy, shares.decided, shares.spread)
        )
    all_texts = _gate_shares("", mixture.gates)
    return ExpertsReport(
        count=mixture.gates.shape[1],
        rows=all_texts.rows,
        gates=all_texts.gates,
        entropy=all_texts.entropy,
        decided=all_texts.decided,
        spread=all_texts.spread,
        groups=by_group,
        lengths=by_length,
        cosines=torch.einsum("nad,nbd->ab", unit, unit).div(len(unit)).numpy().round(4).tolist(),
    )


def run_mixture(model: SentenceTransformer, texts: Sequence[Text]) -> Mixture:
    """Run a model's modules up to its experts on texts that have their prompts, short texts first."""
    order = sorted(range(len(texts)), key=lambda number: len(str(texts[number])))
    parts: list[list[Tensor]] = []
    with evaluating(model):
        for start in range(0, len(order), _BATCH):
            inputs = model.preprocess([texts[number] for number in order[start : start + _BATCH]])
            features = {k: v.to(model.device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
            lengths = features["attention_mask"].sum(1)
            for module in model:
                features = module(features)
                if "gates" in features:
                    break
            values = [features[name].float() for name in ("gates", "experts", "sentence_embedding")]
            parts.append([value.cpu() for value in (*values, lengths)])
    back = torch.tensor(np.argsort(order))
    gates, outputs, mixed, lengths = (torch.cat(values)[back] for values in zip(*parts, strict=True))
    return Mixture(gates, outputs, mixed, lengths.numpy())


def _gate_shares(name: str, gates: Tensor) -> GateShares:
    means, statistics = gate_statistics(gates)
    numbers = {statistic: round(value, 5) for statistic, value in statistics.items()}
    return GateShares(name, len(gates), np.round(means, 5).tolist(), **numbers)


# -- labelled tasks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accuracy:
    """The share of test rows whose label, or whose every label, is right, and its 95% interval (Wilson's).

    `f1` is that of all classes together, where a text has several.
    """

    right: int
    rows: int
    f1: float | None = None

    @property
    def value(self) -> float:
        """The share."""
        return self.right / self.rows

    @property
    def interval(self) -> tuple[float, float]:
        """Its lower and upper limit."""
        return share_interval(self.right, self.rows)


@dataclass(frozen=True)
class LabelledScores:
    """Metrics on the test split of a labelled task, from 0 to 1, by model; None where one is undefined."""

    task: str
    type: str
    rows: int
    scores: dict[str, dict[str, float | None]]

    def accuracy(self, model: str) -> Accuracy:
        """Return the accuracy of a model."""
        share = self.scores[model]["accuracy"]
        assert share is not None, "defined for any number of test rows"
        return Accuracy(round(share * self.rows), self.rows, self.scores[model].get("f1"))


def supervised_report(
    name: str, models: Mapping[str, tuple[SentenceTransformer, TaskHead]], test: Labelled
) -> tuple[LabelledScores, dict[str, dict[str, Sample]], Array]:
    """Return metrics on the test split, the samples by model, and the last model's logits."""
    kind = next(iter(models.values()))[1].task.kind
    gold = np.asarray(test.labels, dtype=np.float64 if kind == "sts" else np.int64)  # multilabel: [rows, classes]
    scores, samples = {}, {}
    for model_name, (model, head) in models.items():
        with progress(f"test rows of {name} by the {model_name}", len(test.inputs), "examples") as advance:
            logits = predict_logits(model, head, test.inputs, advance).numpy()
        if kind == "sts":
            scores[model_name] = score_metrics(logits[:, 0], test.labels)
            sample = Sample("sts", "spearman", logits[:, 0].astype(np.float64), gold)
        elif kind == "multilabel":
            scores[model_name] = several_classes_metrics(logits > 0, gold)
            keys = row_keys([*chain.from_iterable(test.inputs)])  # each text's set of classes counts as its one label
            without_fault = ((logits > 0) == gold).all(1)
            sample = Sample("classification", "accuracy", np.where(without_fault, keys, ~keys), keys)
        else:
            scores[model_name] = class_metrics(logits.argmax(1), test.labels)
            sample = Sample("classification", "accuracy", logits.argmax(1), gold)
        samples[model_name] = {name: sample}
    return LabelledScores(name, kind, len(test.labels), scores), samples, logits


def as_scores(supervised: LabelledScores) -> dict[str, list[Score]]:
    """Return metrics as scores of one task; a model without the main metric is left out."""
    kind, main = ("sts", "spearman") if supervised.type == "sts" else ("classification", "accuracy")
    scores = {}
    for name, values in supervised.scores.items():
        points = {key: 100 * value for key, value in values.items() if value is not None}
        if main in points:
            scores[name] = [Score(supervised.task, kind, main, points[main], points, 0.0, supervised.rows)]
    return scores


def class_metrics(predicted: Array, gold: Array) -> dict[str, float | None]:
    """Accuracy; precision, recall and F1 averaged over the classes of `gold` or `predicted`, 0 without a prediction.

    Both are class numbers, int64 [rows]; values are 0..1.
    """
    macro = precision_recall_fscore_support(gold, predicted, average="macro", zero_division=0)[:3]
    names = ("accuracy", "macro_precision", "macro_recall", "macro_f1")
    return dict(zip(names, map(float, (accuracy_score(gold, predicted), *macro)), strict=True))


def several_classes_metrics(predicted: Array, gold: Array) -> dict[str, float | None]:
    """Accuracy, the share of rows [rows, classes] without a fault; F1 over all classes together, and their mean F1."""
    labels = class_labels(gold.shape[1])
    return {
        "accuracy": float(accuracy_score(gold, predicted)),
        "f1": float(f1_score(gold, predicted, labels=labels, average="micro", zero_division=0)),
        "macro_f1": float(f1_score(gold, predicted, labels=labels, average="macro", zero_division=0)),
    }


def score_metrics(predicted: Array, gold: Array) -> dict[str, float | None]:
    """Spearman's and Pearson's correlation, None if all predictions are equal. Both are float64 [rows]."""
    return {name: None if np.isnan(value) else value for name, value in correlations(predicted, gold).items()}


# -- tokenizers -------------------------------------------------------------------------------------------------------


def vocabulary_report(teacher: ModelEmbedder | None, student: ModelEmbedder, corpus: Corpus) -> dict[str, Any]:
    """Make report.json's "vocabulary": `compare_tokenizers` at the student's length, with "parameters".

    {} if both have one tokenizer, without a local teacher, or for a tokenizer that is not a fast one.
    """
    if teacher is None or not (_is_fast(teacher.model) and _is_fast(student.model)):
        return {}
    models = {"before": teacher.model, "after": student.model}
    before, after = (model.tokenizer for model in models.values())
    if tokenizer_hash(before) == tokenizer_hash(after):
        return {}

    from distilvec.vocabulary.compare import compare_tokenizers, parameter_counts

    limit = student.max_length if student.max_length < UNLIMITED else None
    comparison = compare_tokenizers(before, after, language_texts(corpus), limit)
    for name, model in models.items():
        comparison[name]["parameters"] = parameter_counts(model)
    return {**comparison, "names": {"before": "teacher", "after": "student"}}


def language_texts(corpus: Corpus) -> dict[str, list[str]]:
    """At most 2,000 texts of each language, without prompts, validation texts first, drawn by seed; pairs as two.

    A source without a language has an entry by its own name.
    """
    texts_of: dict[str, list[str]] = {}
    for label in dict.fromkeys(corpus.source_labels):
        sources = [number for number, name in enumerate(corpus.source_labels) if name == label]
        chosen = np.empty(0, dtype=np.int64)
        for rows in (corpus.holdout_rows, corpus.train_rows):
            candidates = rows[np.isin(corpus.sources[rows], sources)]
            room = LANGUAGE_TEXTS - len(chosen)
            if len(candidates) > room:
                candidates = np.random.default_rng(SEED).choice(candidates, room, replace=False)
            chosen = np.concatenate([chosen, candidates])
        texts: list[str] = []
        for text in corpus.texts(np.sort(chosen)):
            if isinstance(text, str):
                texts += [text]
            else:
                texts += text
        if texts:
            texts_of[label] = texts
    return texts_of


def _is_fast(model: SentenceTransformer) -> bool:
    return hasattr(model[0], "auto_model") and plain_copy(model.tokenizer) is not None
