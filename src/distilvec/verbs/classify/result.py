"""What `classify` returns: the classifier, and how good it is on test rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.core.batch import Text
from distilvec.evaluation.diagnostics import LabelledScores
from distilvec.evaluation.mistakes import Mistakes
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.report.advice import far_below_the_teacher
from distilvec.report.json_values import to_json
from distilvec.report.verdicts import Accuracy, classifier_sentence
from distilvec.students.task_head import TaskModel
from distilvec.verbs.opened_run import Run


@dataclass(frozen=True, repr=False)
class Classifier:
    """A trained classifier: `predict` and `predict_proba` take texts, or pairs of texts.

    `folder` is the run folder, `student` in it the model; `distilvec.TaskModel(model_folder)` opens it again. `page` is
    the report. `parameters` and `teacher_parameters` are those of the models. `teacher_folder` is the teacher that has
    learned the labels, of `teacher_layers` layers. `notes` say what the split did.
    """

    folder: Path
    accuracy: Accuracy
    teacher_accuracy: Accuracy
    parameters: int
    teacher_parameters: int | None
    teacher_folder: Path
    teacher_layers: int
    mistakes: Mistakes
    page: Path | None
    result: Run
    notes: list[str] = field(default_factory=list)

    @property
    def model_folder(self) -> Path:
        """The folder of the model."""
        return self.result.student_folder

    @cached_property
    def model(self) -> TaskModel:
        """The model with its head, loaded on the CPU at first use."""
        return TaskModel(self.model_folder, trust_remote_code=self.result.trust_remote_code)

    @property
    def has_labelled_export(self) -> bool:
        """Whether an ONNX file of the model can give its labels: not of pairs, nor of a model without layers."""
        supervised, student = self.result.record.supervised, self.result.record.student
        is_static = student is not None and student.layers == 0
        return supervised is not None and supervised.type in ("classification", "multilabel") and not is_static

    @property
    def classes(self) -> list[str]:
        """The labels, in the order of `predict_proba`."""
        return self.model.classes

    def predict(self, texts: Sequence[Text]) -> list[str] | list[list[str]] | list[float]:
        """The label of every text, or a list of labels where a text has several."""
        return self.model.predict(texts)

    def predict_proba(self, texts: Sequence[Text]) -> np.ndarray[Any, Any]:
        """Probabilities [texts, classes] in the order of `classes`."""
        return self.model.predict_proba(texts)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        return classifier_sentence(self.accuracy, self.teacher_accuracy, self.parameters, self.teacher_parameters)

    @property
    def advice(self) -> str:
        """What to do about a student that is far below its teacher; empty for others."""
        return far_below_the_teacher(self.result.report)

    @property
    def larger(self) -> dict[str, str | int]:
        """The argument of `classify` for a larger student of the same teacher; empty if there is none.

        Twice the size where a size was stated, else layers halfway to the teacher's.
        """
        section, record = self.result.recipe.student, self.result.record.student
        assert record is not None and record.layers is not None
        if section.size is not None and self.teacher_parameters and 2 * self.parameters < self.teacher_parameters:
            return {"size": f"{2 * self.parameters / 1e6:.3g}M"}
        layers = record.layers if section.model == "teacher" else 0  # those of another model are no part of the teacher
        if layers >= self.teacher_layers:
            return {}
        return {"layers": (layers + self.teacher_layers + 1) // 2}

    def confused(self) -> list[str]:
        """At most three labels that are most often taken for another one, as sentences."""
        lines = []
        for pair in self.mistakes.confused[:3]:
            if pair.rows > 1:
                lines.append(f"{pair.name} taken for {pair.taken_for}, {pair.rows} times")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "sentence": self.sentence,
            "accuracy": self.accuracy.value,
            "interval": list(self.accuracy.interval),
            "f1": self.accuracy.f1,
            "test_rows": self.accuracy.rows,
            "teacher_accuracy": self.teacher_accuracy.value,
            "parameters": self.parameters,
            "teacher_parameters": self.teacher_parameters,
            "classes": self.classes,
            "mistakes": to_json(self.mistakes),
            "notes": self.notes,
            **self.result.to_json(),
        }

    def __repr__(self) -> str:
        return f"Classifier({str(self.model_folder)!r}): {self.sentence}"


def read_classifier(finished: FinishedRun, notes: list[str], teacher_folder: Path, teacher_layers: int) -> Classifier:
    """Make the classifier of a finished run from its record and its report."""
    result = Run.of(finished)
    record, report = result.record, result.report
    assert record.supervised is not None and report.mistakes is not None
    assert record.student is not None and record.student.parameters is not None
    return Classifier(
        folder=result.folder,
        accuracy=_accuracy(record.supervised, "student"),
        teacher_accuracy=_accuracy(record.supervised, "teacher"),
        parameters=record.student.parameters,
        teacher_parameters=None if record.teacher is None else record.teacher.parameters,
        teacher_folder=teacher_folder,
        teacher_layers=teacher_layers,
        mistakes=report.mistakes,
        page=result.page,
        result=result,
        notes=notes,
    )


def _accuracy(supervised: LabelledScores, model: str) -> Accuracy:
    scores = supervised.scores[model]
    accuracy = scores["accuracy"]
    assert accuracy is not None, "defined for any number of test rows"
    return Accuracy(round(accuracy * supervised.rows), supervised.rows, scores.get("f1"))
