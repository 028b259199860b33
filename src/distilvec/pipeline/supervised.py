"""What a run does beside the rest where its recipe names a labelled task: the teacher's head, and the figures on the test split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.core.objective import Objective
from distilvec.core.task_head import TaskHead
from distilvec.data.labeled import Examples
from distilvec.evaluation.aggregate import averages
from distilvec.evaluation.diagnostics import as_scores, supervised_report
from distilvec.evaluation.tasks import TaskFailure
from distilvec.models.load import load
from distilvec.pipeline import prepare
from distilvec.pipeline.evaluate import earlier_report, side_by_side
from distilvec.pipeline.report_parts import FORMAT, intervals, write_samples
from distilvec.students.task_head import load_head, save_head
from distilvec.teachers.model import LocalTeacher

if TYPE_CHECKING:
    from distilvec.pipeline.run import Run


def teacher_head(section: TeacherSection, examples: Examples) -> TaskHead | None:
    """The head of a teacher that `distilvec finetune` trained; None where the teacher has none.

    Errors: DistilvecError where that head answers another task, or other classes, or in another order.
    """
    found = load_head(Path(section.model)) if section.model else None
    if found is None:
        return None
    head, classes = found
    if head.task != examples.info or classes != examples.classes:
        raise DistilvecError(
            f"[teacher.model] {section.model} was fine-tuned for {_in_words(head, classes)}; the recipe's task has "
            f"{_in_words(TaskHead(1, examples.info), examples.classes)}. Fine-tune the teacher on the same task: distilvec finetune."
        )
    return head


def head_writer(objective: Objective, examples: Examples | None) -> Callable[[Path], None]:
    """Writes the objective's head into a student's folder; nothing where there is no task."""

    def write(folder: Path) -> None:
        if examples is not None and isinstance(objective.head, TaskHead):
            prompt = examples.corpus.prompts.get(examples.corpus.roles[0], "")
            save_head(folder, objective.head, examples.classes, examples.scale, prompt)

    return write


def copy_head(student: Path) -> Callable[[Path], None]:
    """Writes a student's head, where it has one, into the folder that is to replace the student's."""
    files = {path.name: path.read_bytes() for path in student.glob("head.*")}

    def write(folder: Path) -> None:
        for name, content in files.items():
            (folder / name).write_bytes(content)

    return write


def with_supervised(run: Run, found: dict[str, Any], mark: str) -> dict[str, Any]:
    """report.json with the part "supervised": figures of the student, and of a teacher with a head, on the task's test split.

    `found` is what the report holds already; where no suite is named it is {}, and the test split stands for one: its main figure
    is the score that verdict and comparisons go by. `mark` changes when the student could have.
    """
    examples, path = run.examples, run.folder / "report.json"
    assert examples is not None
    alone = not found
    if alone:
        own = fingerprint(mark, FORMAT, "supervised")
        kept = earlier_report(run.folder)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        new = {
            "format": FORMAT,
            "fingerprint": own,
            "name": run.recipe.name,
            "created": created,
            "scores": {},
            "failures": [],
        }
        found = kept if kept.get("fingerprint") == own else new
    if "supervised" not in found:
        student = load_head(run.folder / "student")
        assert student is not None
        models = {"student": (load(run.folder / "student", device="cpu"), student[0])}
        if run.teacher_head is not None and isinstance(run.teacher, LocalTeacher):
            models = {"teacher": (run.teacher.model, run.teacher_head), **models}
        found["supervised"], samples = supervised_report(examples.name, models, prepare.test_split(run))
        if alone:
            scores, problems = as_scores(found["supervised"]), list[TaskFailure]()
            write_samples(run.folder, samples)
            found["scores"] = {name: [asdict(score) for score in column] for name, column in scores.items()}
            found["averages"] = {name: averages(column) for name, column in scores.items()}
            found["intervals"] = intervals(samples, run.recipe.evaluation.draws, problems)
            found["failures"] = [asdict(problem) for problem in problems]
        write_json(path, found, sealed=True, key="report.json")
    return side_by_side(run, [], found).run(only=("experts", "tokens", "vocabulary")) if alone else found


def _in_words(head: TaskHead, classes: list[str]) -> str:
    shown = ", ".join(classes[:6]) + (", ..." if len(classes) > 6 else "")
    members = ", its texts encoded apart" if head.task.members == 2 else ""
    return f"{head.task.kind}{members}" + (f" with the {len(classes)} classes {shown}" if classes else "")
