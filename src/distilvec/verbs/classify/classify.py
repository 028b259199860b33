"""distilvec.classify: read, split, let the teacher learn the labels, distil, judge on the test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.cli.options import names_by_key
from distilvec.config.schema import Recipe
from distilvec.core.batch import Text
from distilvec.core.errors import set_by
from distilvec.core.files import existing_paths
from distilvec.core.log import duration, log, quiet_libraries
from distilvec.core.run_folder import RunFolder
from distilvec.data.labelled_rows import LabelledTexts, Source
from distilvec.evaluation.diagnostics import Accuracy
from distilvec.evaluation.mistakes import Mistakes
from distilvec.models.load import model_name as short_name
from distilvec.pipeline.claim import changed_inputs, own_folder
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.inputs import Model, saved_model_name
from distilvec.pipeline.job import Job
from distilvec.pipeline.judgement import student_embedder
from distilvec.pipeline.overview import SampleTeacher, measure_stage, seconds_a_text
from distilvec.pipeline.prepare import tokenize_corpus
from distilvec.pipeline.resolve import cache_root, resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.student import untrained_student
from distilvec.report.advice import far_below_the_teacher
from distilvec.report.json_values import to_json
from distilvec.report.record import read_run_record
from distilvec.report.verdicts import labels_sentence
from distilvec.students.task_head import TaskModel, load_head
from distilvec.train.metrics import Callback
from distilvec.verbs.classify.command import classify as command
from distilvec.verbs.classify.recipes import (
    DEFAULT_TEACHER,
    STUDENT_FACTOR,
    LabelledTask,
    check_arguments,
    check_cut,
    default_layers,
    describe_labels,
    stated_cut,
    student_recipe,
    teacher_recipe,
    whole_cut,
    with_rate,
)
from distilvec.verbs.classify.split import SplitRows, read_and_split, refuse_learned_rows, split_files, write_split
from distilvec.verbs.opened_run import Run, with_the_arguments_of
from distilvec.verbs.plan.plan import Lines
from distilvec.vocabulary.compare import parameter_counts

Options = tuple[int | None, int, bool, Mapping[str, Any]]  # epochs, seed, trust_remote_code, overrides


@dataclass(frozen=True, repr=False, kw_only=True)
class Classifier(Run):
    """The run of a trained classifier: `predict` and `predict_proba` take texts, or pairs of texts.

    `distilvec.TaskModel(student_folder)` opens the model again. `parameters` and `teacher_parameters` are those of the
    models. `teacher_folder` is the teacher that has learned the labels, of `teacher_layers` layers. `notes` say what
    the split did.
    """

    accuracy: Accuracy
    teacher_accuracy: Accuracy
    parameters: int
    teacher_parameters: int | None
    teacher_folder: Path
    teacher_layers: int
    mistakes: Mistakes
    notes: list[str] = field(default_factory=list)

    @cached_property
    def model(self) -> TaskModel:
        """The model with its head, loaded on the CPU at first use."""
        return TaskModel(self.student_folder, trust_remote_code=self.trust_remote_code)

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
        assert self.record.supervised is not None
        return f"{labels_sentence(self.record.supervised)}."

    @property
    def advice(self) -> str:
        """What to do about a student that is far below its teacher; empty for others."""
        return far_below_the_teacher(self.report)

    @property
    def larger(self) -> dict[str, str | int]:
        """The argument of `classify` for a larger student of the same teacher; empty if there is none.

        Twice the size where a size was stated, else layers halfway to the teacher's.
        """
        section, record = self.recipe.student, self.record.student
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
            **super().to_json(),
        }

    def verdict_lines(self) -> list[tuple[str, str]]:
        """Return the result, then the labels that are most often confused, as (name, value)."""
        return [("verdict", self.sentence), *(("mistakes", line) for line in self.confused())]


def read_classifier(finished: FinishedRun, notes: list[str], teacher_folder: Path, teacher_layers: int) -> Classifier:
    """Make the classifier of a finished run from its record and its report."""
    record, report = finished.record, finished.report
    assert record.supervised is not None and report.mistakes is not None
    assert record.student is not None and record.student.parameters is not None
    return Classifier(
        folder=finished.folder,
        record=record,
        trust_remote_code=finished.trust_remote_code,
        accuracy=record.supervised.accuracy("student"),
        teacher_accuracy=record.supervised.accuracy("teacher"),
        parameters=record.student.parameters,
        teacher_parameters=None if record.teacher is None else record.teacher.parameters,
        teacher_folder=teacher_folder,
        teacher_layers=teacher_layers,
        mistakes=report.mistakes,
        notes=notes,
    )


@dataclass(frozen=True)
class Classification:
    """What `classify` is asked for: rows and their split, the teacher, how small the student is, and the run folder.

    cut: keys of the section `student`: how small it is
    options: those of `teacher_recipe` and `student_recipe`
    inputs: files that the run folder must not hold
    """

    data: LabelledTexts
    split: SplitRows
    teacher: str
    cut: dict[str, Any]
    folder: Path
    options: Options
    inputs: set[Path]
    restart: bool
    callbacks: Sequence[Callback]

    @property
    def files(self) -> RunFolder:
        """The paths of the run folder."""
        return RunFolder(self.folder)

    @property
    def labels(self) -> LabelledTask:
        """The labelled task that both models learn."""
        return describe_labels(self.data, self.split, self.files.labels)

    @property
    def knows_labels(self) -> bool:
        """Whether the teacher has learned these labels."""
        return has_learned(Path(self.teacher), self.labels, self.split.classes)

    @set_by(names_by_key(command))
    @quiet_libraries()
    def plan(self) -> Lines:
        """Return rows of (name, value). Models are loaded and timed on a few texts; nothing is trained or written."""
        with TemporaryDirectory() as scratch:
            files = RunFolder(Path(scratch))
            write_split(split_files(self.split, self.data.several), files)
            labels = describe_labels(self.data, self.split, files.labels)
            learning = teacher_recipe(self.teacher, labels, *self.options)
            stated_size = stated_cut(self.cut, self.options[3])
            if "size" in stated_size:
                check_size(learning, stated_size, files.path)
            teacher_job = resolve(learning, files.path)
            cut = whole_cut(self.cut, self.options[3], default_layers(teacher_job.student.layers))
            teacher = Path(self.teacher)
            distilling = student_recipe(teacher, teacher.name, cut, labels, *self.options, self.knows_labels)
            # On the labels alone: a step takes as long, and a teacher that has not learned them has no answers yet
            distilling = distilling.model_copy(update={"teacher": learning.teacher, "method": learning.method})
            student_job = resolve(distilling, files.path)
            return _plan_lines(self.data, self.split, teacher_job, student_job, self.knows_labels, self.folder)

    @set_by(names_by_key(command))
    @quiet_libraries()
    def run(self) -> Classifier:
        """Return the classifier; what was done before is not done again."""
        split, files, overrides = self.split, self.files, self.options[3]
        own_folder(files, self.restart, self.inputs)
        write_split(split_files(split, self.data.several), files)
        log(_plan_line(self.data, split))
        for note in split.notes:
            log(f"note: {note}")

        # The student's keys are checked before the teacher is trained, whose layers are known when it is read
        shown = shown_name(self.teacher)
        knows_labels = self.knows_labels
        any_cut = whole_cut(self.cut, overrides, layers=1)
        student_recipe(Path(self.teacher), shown, any_cut, self.labels, *self.options, knows_labels)
        recipe = teacher_recipe(self.teacher, self.labels, *self.options)
        log(f"first the teacher: {self.teacher} {'has learned these labels' if knows_labels else 'learns the labels'}")
        whole = resolve(recipe, files.teacher.path).student  # the teacher, as a student with all of its layers
        if "size" in stated_cut(self.cut, overrides):
            check_size(recipe, stated_cut(self.cut, overrides), files.teacher.path)
        teacher_folder = Path(self.teacher)
        if not knows_labels:
            run(with_rate(recipe, whole.hidden_size), files.teacher.path)
            teacher_folder = files.teacher.student

        cut = whole_cut(self.cut, overrides, default_layers(whole.layers))
        student_line = _student_line(stated_cut(cut, overrides), whole.layers)
        log(f"then the student: {student_line}, from the labels and the teacher's answers")
        recipe = student_recipe(teacher_folder, shown, cut, self.labels, *self.options, knows_labels)
        width = whole.hidden_size
        if recipe.student.model != "teacher":
            width = resolve(recipe, self.folder).student.hidden_size
        finished = run(with_rate(recipe, width, STUDENT_FACTOR), self.folder, callbacks=self.callbacks)
        assert finished is not None  # None in other processes than the main one, and this is one process
        return read_classifier(finished, split.notes, teacher_folder, whole.layers)


@set_by(names_by_key(command))
@quiet_libraries()
def classification(
    file: Source,
    *,
    text: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    teacher: Model | None = None,
    student: Model | None = None,
    size: str | int | None = None,
    layers: int | None = None,
    test: Source | None = None,
    test_size: float | None = None,
    epochs: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    restart: bool = False,
    trust_remote_code: bool = False,
    overrides: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Classification:
    """Train a small classifier on labelled texts; the same call resumes, or opens the classifier where all is done.

    The teacher learns the labels first: a logistic regression on its vectors, then all of its weights. Some of its
    layers then learn the labels and the teacher's probabilities, again from a logistic regression on. Of both the best
    on validation rows is kept, which may be the start. Test rows are read at the end only.

    Args:
        file: Rows of texts and labels: a CSV, TSV, JSON Lines or Parquet file, a folder of `save_to_disk`, or rows in
            memory {column: value}. With a column `split` (train, test) those are the training and test rows.
        text: The column of texts, or two columns whose texts are pairs; usual names are found.
        label: The column of labels; usual names are found. A list of labels gives a text any number of them; it may
            have 0 or 1 for each label instead. So may several columns, which are named then, one for each label.
        teacher: A model that fits on this machine; all-MiniLM-L6-v2 by default. One that has learned the same labels
            is taken as it is.
        student: A smaller model that learns from the teacher; by default some of the teacher's own layers.
        size: Parameters of the student: "5M", "25%" of the teacher's, as in `distilvec.distill` (docs/sizes.md).
        layers: Layers of the student instead of a size; by default a third of the teacher's, all of a `student`'s.
        test: Test rows with the same columns; by default `test_size` of every label's rows, drawn by seed.
        test_size: The share of test rows, 0.2 by default.
        epochs: Passes over the training rows; by default five, more for few rows, fewer for many.
        seed: Of the split and of both trainings.
        out: The run folder; by default runs/<name of the file>. The teacher is in its `details/teacher/`.
        restart: Move an earlier run in the folder aside and start over.
        trust_remote_code: Run code that comes with the teacher.
        overrides: Keys of the recipes: `teacher.` for the teacher's training, `student.` for the student's, others
            for both, such as {"train.batch_size": 8}.
        callbacks: Called as `callback(step, metrics)` for every logged line of the student's training.

    Returns:
        The classifier.

    Errors: DistilvecError with the argument's name as key.
    """
    arguments = {"teacher": teacher, "student": student, "size": size, "layers": layers, "epochs": epochs}
    check_arguments(overrides or {}, **arguments, seed=seed)
    cut = check_cut(size, layers)
    if student is not None:
        cut["model"] = saved_model_name(student, cache_root(), "student")
    columns = [text] if isinstance(text, str) else list(text or ())
    label_columns = [label] if isinstance(label, str) else list(label or ())
    data, split = read_and_split(file, columns, label_columns, test, test_size, seed)
    name = saved_model_name(DEFAULT_TEACHER if teacher is None else teacher, cache_root(), "teacher")
    refuse_learned_rows(Path(name), split)
    inputs = existing_paths(path for path in (file, test, name, cut.get("model")) if isinstance(path, (str, Path)))
    return Classification(
        data=data,
        split=split,
        teacher=name,
        cut=cut,
        folder=Path("runs") / data.name if out is None else Path(out),
        options=(epochs, seed, trust_remote_code, overrides or {}),
        inputs=inputs | changed_inputs(overrides or {}),
        restart=restart,
        callbacks=callbacks,
    )


classify = with_the_arguments_of(classification, "classify", Classification.run)


def _student_line(cut: Mapping[str, Any], teacher_layers: int) -> str:
    """Say what the student is, from its keys of the recipe."""
    owner = f"of {Path(cut['model']).name}" if "model" in cut else f"of the teacher's {teacher_layers} layers"
    if "layers" in cut:
        return f"{cut['layers']} {owner}" if "model" not in cut else f"{cut['layers']} layers {owner}"
    if "size" in cut:
        return f"{cut['size']} parameters {owner}" if "model" in cut else f"{cut['size']} parameters"
    return Path(cut["model"]).name


def has_learned(folder: Path, labels: LabelledTask, classes: Sequence[str]) -> bool:
    """Whether a model's folder has a head for the same labels, of texts or pairs that are one input."""
    saved = load_head(folder)
    if saved is None:
        return False
    head, known_classes = saved
    is_same_task = head.task.kind == labels.kind and head.task.texts_per_example == 1
    return is_same_task and known_classes == list(classes)


def shown_name(model: str) -> str:
    """The name of a teacher in reports: that of the model which it was before an earlier run taught it the labels."""
    run = RunFolder.of_student(Path(model).resolve())
    if run is not None and run.path == RunFolder(run.path.parent.parent).teacher.path:
        record = read_run_record(run)
        if record is not None and record.student is not None and record.student.base_model:
            return record.student.base_model
    return short_name(model)


def _plan_line(data: LabelledTexts, split: SplitRows) -> str:
    """What is trained and tested on, in one line."""
    texts = " and ".join(data.columns.texts)
    classes = f"{len(split.classes):,} labels ({data.columns.label}) of {texts}, at least {split.fewest:,} rows each"
    rows = f"{len(split.train):,} rows for training, {len(split.validation):,} for validation"
    return f"{classes}: {rows}, {len(split.test):,} for the test"


def check_size(recipe: Recipe, cut: Mapping[str, Any], folder: Path) -> None:
    """Raise DistilvecError for a size that the model cannot be cut to, before the teacher learns anything."""
    student = recipe.student.model_copy(update=cut)
    resolve(recipe.model_copy(update={"student": student}), folder)


def _plan_lines(
    data: LabelledTexts, split: SplitRows, teacher_job: Job, student_job: Job, knows_labels: bool, folder: Path
) -> Lines:
    teacher_model = untrained_student(teacher_job, fitted=False)
    student_model = untrained_student(student_job, fitted=False)
    teacher_seconds = seconds_a_text(teacher_job, student_embedder(teacher_job, teacher_model, "teacher"))
    student_seconds = seconds_a_text(student_job, student_embedder(student_job, student_model, "student"))

    lines = [["labels", f"{len(split.classes):,} ({data.columns.label}), at least {split.fewest:,} rows each"]]
    lines.append(["training rows", f"{len(split.train):,}, and {len(split.validation):,} for validation"])
    lines.append(["test rows", f"{len(split.test):,}"])
    lines += [["  note", note] for note in split.notes]

    tests_of_teacher = 1  # beside the student
    lines.append(["teacher", f"{teacher_job.teacher.info.name}, {_model_size(teacher_job, teacher_model)}"])
    if knows_labels:
        lines.append(["  training", "none: it has learned these labels"])
    else:
        tests_of_teacher = 2  # after its own training as well
        lines.append(["  training", _training_line(teacher_job, teacher_model)])
    texts = len(student_job.corpus)
    lines.append(["  its answers", f"{texts:,} texts: about {duration(texts * teacher_seconds)}"])

    lines.append(["student", _model_size(student_job, student_model)])
    lines += [["  note", note] for note in student_job.student.notes]
    lines.append(["  training", _training_line(student_job, student_model)])
    test_seconds = len(split.test) * (tests_of_teacher * teacher_seconds + student_seconds)
    lines.append(["test of both", f"about {duration(test_seconds)}"])
    lines.append(["run folder", str(folder)])
    return lines


def _model_size(job: Job, model: SentenceTransformer) -> str:
    layers = "layer" if job.student.layers == 1 else "layers"
    return f"{parameter_counts(model)['total'] / 1e6:.1f} M parameters, {job.student.layers} {layers}"


def _training_line(job: Job, student: SentenceTransformer) -> str:
    tokens = tokenize_corpus(job, job.corpus, student)
    teachers = [SampleTeacher(job, job.teacher, None)]
    costs = [measure_stage(job, stage, student, tokens, None, teachers) for stage in job.stages]
    return "; ".join(cost.line for cost in costs)
