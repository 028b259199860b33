"""Commands after a run: the next one, decided once from what the run knows, and others; all run as printed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec.config.recipe import section_of
from distilvec.config.student import StudentSection
from distilvec.config.yaml_dialect import load_yaml
from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.overlap import Judgement
from distilvec.report.advice import needs_words, still_improves
from distilvec.report.record import RunRecord, StudentRecord, TrainingRecord
from distilvec.report.tables import lookup
from distilvec.report.values import Report
from distilvec.report.verdicts import index_reason
from distilvec.train.length import TEXTS_SEEN
from distilvec.train.start import SLOWER

ENOUGH = 0.9  # of the texts that are seen where train.epochs is "auto"
USUAL_LENGTH = {"train.epochs": "auto", "train.minutes": None, "train.max_steps": None}
# Up to so many minutes on a CPU a static student found more than a small one with layers, with two teachers (switch.md)
STATIC_MINUTES = 10
OTHER_STUDENT = "intfloat/multilingual-e5-small"  # of another family, for an index that English layers do not fit
SMALLER = "5M"  # of a model that fits an index as it is
# of a recipe's teacher: with any of them the commands, which take its name alone, would open another model
TEACHER_SETTINGS = (
    "revision", "preset", "prompts", "pooling", "normalize", "max_length", "truncate_dim", "similarity", "adapters",
    "quantize",
)  # fmt: skip


@dataclass(frozen=True)
class NextStep:
    """A command and the sentence that leads to it; empty where nothing has to be said."""

    why: str
    command: str


def next_step(report: Report) -> NextStep:
    """Return the first way on that is open to this run.

    A student that was fitted is trained; a training that brought nothing is tried again, at its usual length, else at a
    lower rate, unless it needs other texts; a start that fits its index gives way to a smaller student; a student that
    does not fit its index gets more training, rows or parameters, as far as there are any, else gives way to another
    one, or its page is read. All others become a smaller and faster file. A static one is fast as it is, and is served;
    a file of one of pairs has no labels, so its mistakes are read.
    """
    recipe = read_recipe(report)
    record = report.record or RunRecord()
    training = record.training or TrainingRecord()
    run = RunFolder(Path(report.folder))
    if training.fitted:
        return NextStep("", _again(run, "", "train.epochs=auto"))
    judgement = record.overlap
    fits = judgement is not None and judgement.origin == "index" and judgement.compatibility == "yes"
    if training.brought_nothing and fits and not _is_part(recipe):
        why = "The untrained model fits the index, as if it had made it: try a smaller one."
        return NextStep(why, _command("distill", *index_words(lookup(recipe, "teacher")), "--size", SMALLER))
    can_learn = not lookup(recipe, "stages") and not needs_words(report)
    if training.brought_nothing and not fits and training.learning_rate and can_learn:
        longer = _longer(run, recipe, training) if lookup(recipe, "train.learning_rate") is None else None
        rate = f"train.learning_rate={SLOWER * training.learning_rate:.1e}"
        return longer or NextStep("", _again(run, "slower", rate))
    if judgement is not None and judgement.origin == "index" and judgement.start is not None:
        way = _way_to_the_index(report, recipe, judgement)
        if way is not None:
            return way
        if judgement.compatibility not in ("yes", "in part"):
            return NextStep("", _command("report", run.path, "--open"))
    of_student = ["--trust-remote-code"] if lookup(recipe, "student.trust_remote_code") else []
    is_static = record.student is not None and record.student.layers == 0
    if record.supervised is not None and (is_static or record.supervised.type not in ("classification", "multilabel")):
        return NextStep("", _command("report", run.path, "--open"))
    if is_static:
        return NextStep("", _command("serve", run.student, *of_student))
    return NextStep("", _command("export", run.student, "--to", "onnx-int8", *of_student))


def _way_to_the_index(report: Report, recipe: dict[str, Any], judgement: Judgement) -> NextStep | None:
    """Return how a student that was trained on an index gets nearer to it; None for one that fits, or cannot."""
    record = report.record or RunRecord()
    training = record.training or TrainingRecord()
    student = record.student or StudentRecord()
    run = RunFolder(Path(report.folder))
    reason = index_reason(judgement)
    if reason not in ("in part", "too short", "not learned"):
        return None
    longer = _longer(run, recipe, training)
    if longer is not None and reason == "too short" and _may_be_static(recipe, student):
        minutes = lookup(recipe, "train.minutes")
        why = f"It read {training.texts:,} texts in {minutes:g} minutes. In so little time a static student found more."
        return NextStep(why, _again(run, "static", "student.size=null", "student.layers=0"))
    if longer is not None or reason == "not learned":
        return longer
    if still_improves(report) and training.epochs:
        length = USUAL_LENGTH | {"train.epochs": max(1, round(2 * training.epochs))}
        why = "The validation still improved at the end: train twice as long."
        return NextStep(why, _again(run, "longer", *_changes(recipe, length)))
    if lookup(recipe, "teacher.limit") is not None and judgement.all_rows is not None:
        why = f"It read {judgement.texts:,} of {judgement.all_rows:,} rows of the index."
        return NextStep(why, _again(run, "more-rows", f"teacher.limit={min(judgement.all_rows, 4 * judgement.texts)}"))
    if _is_part(recipe) and student.parameters:
        why = (
            f"It has {student.parameters / 1e6:.1f}M parameters, a part of {student.base_model}: train the whole model."
        )
        changes = ["student.size=null", "student.layers=null", *_changes(recipe, USUAL_LENGTH)]
        return NextStep(why, _again(run, "whole", *changes))
    if student.base_model != OTHER_STUDENT:
        why = "All layers and rows were trained: another student may fit better."
        index = index_words(lookup(recipe, "teacher"))
        return NextStep(why, _command("distill", *index, "--student", OTHER_STUDENT))
    return None


def _may_be_static(recipe: dict[str, Any], student: StudentRecord) -> bool:
    """Whether a run of a few minutes trained layers, and nothing that a static student cannot have."""
    minutes = lookup(recipe, "train.minutes")
    is_short = minutes is not None and minutes <= STATIC_MINUTES
    if not is_short or not student.layers or lookup(recipe, "method.name") not in (None, "redact"):
        return False
    try:
        stated = {"model": "teacher", **(lookup(recipe, "student") or {})}
        section_of(StudentSection, "student", {**stated, "size": None, "layers": 0})
    except DistilvecError:
        return False
    return True


def _longer(run: RunFolder, recipe: dict[str, Any], training: TrainingRecord) -> NextStep | None:
    """Return the run at its usual length; None where no shorter one was stated."""
    changes = _changes(recipe, USUAL_LENGTH)
    if not changes or training.texts is None or training.texts >= ENOUGH * TEXTS_SEEN:
        return None
    why = f"The training saw {training.texts:,} texts; without a stated length it sees about {TEXTS_SEEN:,}."
    return NextStep(why, _again(run, "longer", *changes))


def _changes(recipe: dict[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the keys of a recipe that have other values than these, as words of a command."""
    changed = {key: value for key, value in wanted.items() if lookup(recipe, key) != value}
    return [f"{key}={'null' if value is None else value}" for key, value in changed.items()]


def _is_part(recipe: dict[str, Any]) -> bool:
    """Whether the student was made smaller than its base model."""
    return any(lookup(recipe, f"student.{key}") is not None for key in ("size", "layers"))


def _again(run: RunFolder, suffix: str, *changes: str) -> str:
    """Return the command that runs the recipe with changes, in the same folder or in one with a suffix."""
    folder = run.path.with_name(f"{run.path.name}-{suffix}") if suffix else run.path
    return _command("run", run.recipe, *changes, "--out", folder)


def _command(*words: object) -> str:
    return shlex.join(["distilvec", *map(str, words)])


def next_commands(report: Report, student: Path) -> list[str]:
    """Return commands for the student, with the paths of this run."""
    recipe = read_recipe(report)
    teacher = None
    if report.record is not None and report.record.teacher is not None and report.record.teacher.parameters:
        teacher = teacher_by_name(recipe)
    suite = lookup(recipe, "evaluation.suite")
    trusts_student = bool(lookup(recipe, "student.trust_remote_code"))
    trusts_teacher = teacher is not None and bool(lookup(recipe, "teacher.trust_remote_code"))
    of_student = ["--trust-remote-code"] if trusts_student else []
    of_both = ["--trust-remote-code"] if trusts_student or trusts_teacher else []

    step = next_step(report)
    lines = [f"# {step.why}"] if step.why else []
    commands: list[list[object]] = []
    if suite:
        compared = ["--teacher", teacher] if teacher else []
        commands.append(["evaluate", student, "--suite", suite, *compared, *of_both])
    if lookup(recipe, "teacher.vectors") and lookup(recipe, "student.built_in_prompt") is None:  # else of queries alone
        commands.append([*check_words(student, lookup(recipe, "teacher")), *of_student])
    commands.append(["speed", *([teacher] if teacher else []), student, *of_both])
    if report.record is None or report.record.student is None or report.record.student.layers != 0:
        commands.append(["export", student, "--to", "onnx-int8", *of_student])
    lines += [step.command, *(_command(*words) for words in commands)]
    return list(dict.fromkeys(lines))


def teacher_by_name(recipe: Mapping[str, Any]) -> str | None:
    """Return the folder or id of a recipe's teacher; None for one that is another model with the recipe's settings."""
    settings = lookup(recipe, "teacher") or {}
    if settings.get("attention", "own") != "own" or any(settings.get(name) is not None for name in TEACHER_SETTINGS):
        return None
    name: str | None = settings.get("model")
    return name


def check_words(student: Path, teacher: Mapping[str, Any]) -> list[object]:
    """Return the words of a check against the index of a recipe's section `teacher`, read as for the training."""
    return ["check", student, *index_words(teacher)]


def index_words(teacher: Mapping[str, Any]) -> list[object]:
    """Return the words that name the index of a recipe's section `teacher`, read as it is there."""
    words: list[object] = [teacher["vectors"]]
    for part, name in (teacher.get("columns") or {}).items():
        words += ["--column", f"{part}={name}"]
    for name, values in (teacher.get("where") or {}).items():
        for value in values if isinstance(values, list) else [values]:
            words += ["--where", f"{name}={'null' if value is None else value}"]
    for key in ("texts", "similarity", "repeats"):
        if teacher.get(key) is not None:
            words += [f"--{key}", teacher[key]]
    return words


def read_recipe(report: Report) -> dict[str, Any]:
    """Return the report's recipe; empty where it is none that distilvec wrote."""
    try:
        recipe = load_yaml(report.recipe or "{}", "the report's recipe")
    except DistilvecError:
        return {}
    return recipe if isinstance(recipe, dict) else {}
