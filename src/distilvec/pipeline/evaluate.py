"""What a run reports when it is trained: its models side by side, the students kept along the way, distillation.json."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.config import recipe as recipes
from distilvec.core.errors import DistilvecError
from distilvec.core.log import log
from distilvec.core.objective import method_class
from distilvec.evaluation.diagnostics import labelled_groups
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.suite import suite_fingerprint
from distilvec.evaluation.tasks import Task
from distilvec.models.load import load
from distilvec.pipeline import prepare
from distilvec.pipeline.record import distillation_record
from distilvec.pipeline.report_parts import FORMAT, EvaluationRun, SavedStudent
from distilvec.pipeline.run_dir import kept_folders
from distilvec.report.model_card import Distillation
from distilvec.report.run_files import REPORT, read_run_file
from distilvec.students.encoder import Encoder
from distilvec.teachers.model import LocalTeacher, wrap_model
from distilvec.train.checkpoint import Progress
from distilvec.train.metrics import read_metrics
from distilvec.train.stages import stage_progress

if TYPE_CHECKING:
    from distilvec.pipeline.run import Run


def study(run: Run) -> EvaluationRun:
    """The models side by side, with what an earlier, unfinished study of the same models has found out."""
    section = run.recipe.evaluation
    settings = section.model_dump(mode="json", include={"columns", "every_classification", "draws", "speed_seconds"})
    mark = recipes.fingerprint(run.train_fingerprint(), suite_fingerprint(run.tasks), FORMAT, settings)
    found = earlier_report(run.folder)
    if found.get("fingerprint") != mark:
        created = datetime.now(UTC).isoformat(timespec="seconds")
        found = {"format": FORMAT, "fingerprint": mark, "name": run.recipe.name, "created": created}
    return side_by_side(run, run.tasks, found)


def earlier_report(folder: Path) -> dict[str, Any]:
    """What an earlier study wrote to report.json; {} where there is none, or none that can be believed, which is logged."""
    try:
        return read_run_file(folder, REPORT) or {}
    except DistilvecError as error:
        log(f"{error}\nmeasuring everything again")
        return {}


def side_by_side(run: Run, tasks: list[Task], found: dict[str, Any]) -> EvaluationRun:
    """The run's models on these tasks; `found` is what its report.json holds already."""
    section, prompts = run.recipe.evaluation, run.info.prompts
    student = wrap_model(load(run.folder / "student", device="cpu"), "student", section.batch_tokens, prompts)
    untrained = wrap_model(run.student(), "untrained", section.batch_tokens, prompts)
    teacher = run.teacher if isinstance(run.teacher, LocalTeacher) else None
    compatible = method_class(run.stages[-1].recipe.method.name).compatible
    labelled = labelled_groups(run.examples, prepare.test_split(run)) if run.examples is not None else []
    kept, texts = kept_students(run), run.corpus
    return EvaluationRun(
        tasks,
        section,
        run.folder,
        student,
        untrained,
        teacher,
        kept,
        found,
        compatible=compatible,
        labelled=labelled,
        corpus=texts,
    )


def kept_students(run: Run) -> list[SavedStudent]:
    """The students kept along the way, with the held-out distance each had; none where the method has no such distance."""
    lines = {line["step"]: line for line in read_metrics(run.folder / "metrics.jsonl") if "eval/distance" in line}
    return [
        SavedStudent(step, lines[step]["eval/distance"], folder)
        for step, folder in kept_folders(run.folder).items()
        if step in lines
    ]


def describe(run: Run, state: Progress, distance: dict[str, float], scores: dict[str, list[Score]]) -> Distillation:
    """distillation.json: teachers, student, data, method, training, figures, versions."""
    student = load(run.folder / "student", device="cpu")
    objective = run.objective(Encoder(student))
    mark = run.train_fingerprint()
    stages = [*((stage, stage_progress(stage, mark)) for stage in run.stages[:-1]), (run.stages[-1], state)]
    return distillation_record(
        stages, [side.record for side in run.sides], student, run.corpus, objective, distance, scores
    )
