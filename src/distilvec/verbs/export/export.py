"""Export of a model: to files that need no Python code of ours, with its trained projection, or with its teacher.

Every form takes the same path: the checked fp32 ONNX file, one function that makes the form of it in a scratch folder,
one gate that compares the form with PyTorch, and one move to the files' final location.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.config.schema import EvaluationSection
from distilvec.core.artifacts import ArtifactStore
from distilvec.core.errors import DistilvecError, about, nearest
from distilvec.core.escape import visible
from distilvec.core.extras import require_extra
from distilvec.core.files import remove, remove_scratch, scratch, sync_folder
from distilvec.core.log import log
from distilvec.core.model_name import ModelName
from distilvec.core.run_folder import RunFolder
from distilvec.core.task_head import PAIRS, TaskHead
from distilvec.evaluation.memory import machine_info
from distilvec.evaluation.parity import RANKED, Tolerance, measure_parity, with_documents
from distilvec.evaluation.suite import read_suite
from distilvec.evaluation.tasks import RetrievalTask
from distilvec.formats.onnx import Graph, OnnxEmbedder, check_onnx_place, export_copy, export_onnx, to_half, to_int8
from distilvec.formats.openvino import OpenvinoEmbedder, check_openvino_place, to_openvino, to_openvino_int8
from distilvec.formats.replace import read_record, real
from distilvec.formats.sentence_transformers import replace_card, save_router, save_student
from distilvec.models.checks import check_place, stated_width
from distilvec.models.load import load_model
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.job import Job
from distilvec.pipeline.objectives import projected_student
from distilvec.pipeline.resolve import cache_root, reopen
from distilvec.pipeline.student import fitting_texts, load_saved
from distilvec.pipeline.texts import load_tasks
from distilvec.report.exports import read_exports, write_exports
from distilvec.report.model_card import model_card
from distilvec.report.record import RunRecord, read_student_record, student_record
from distilvec.report.values import ExportedForm
from distilvec.report.write import refresh_report
from distilvec.students.after_pooling import first_dims_layer
from distilvec.students.task_head import load_head
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import load_teacher

# -- forms of a run's student that are model folders: behind its projection, and beside its teacher in one model -------


def finished_job(student: Path, to: str) -> tuple[Job, RunRecord]:
    """Return job and record of the run whose student is in this folder, for the form `to`."""
    folder = student.resolve()
    files = RunFolder(folder.parent)
    if folder != files.student or not files.record.exists() or not files.recipe.exists():
        raise DistilvecError(
            f"{student} is not the student of a finished run.", f"Give RUN/student for --to {to}.", key="model"
        )
    run = FinishedRun.open(files.path, key="model")
    return reopen(run.recipe, run.folder, run.record), run.record


def check_form_folder(out: Path, name: str | None) -> None:
    """DistilvecError for a folder with another model of distilvec's than an earlier export of this name."""
    record = read_record(out)
    if record is not None and record.get("name") != name:
        problem = f"{out} holds another model ({visible(str(record.get('name')))}), which would be lost."
        raise DistilvecError(problem, "Choose a new or empty folder.", key="--out")


def export_projected(student: Path, out: Path | None) -> Path:
    """Write a finished run's student behind its projection as a plain model, by default as RUN/projected."""
    job, record = finished_job(student, "projected")
    model = projected_student(job, load_saved(student))
    if model is None:
        raise DistilvecError(
            f"method '{job.stages[-1].recipe.method.name}' trains no projection of the student's vectors.",
            "Use the student itself.",
            key="--to",
        )
    base_model = None if record.student is None else record.student.base_model
    described = student_record(model, f"{record.name}-projected", base_model)
    projected = replace(
        record,
        name=described.name,
        student=described,
        teacher_compatible=record.teacher is not None and described.width == record.teacher.width,
        scores={},  # of the student without its projection, as the next two
        supervised=None,
        overlap=None,
    )
    out = out or job.files.projected
    check_form_folder(out, projected.name)
    with about("--out"):
        save_student(model, out, projected.to_json(), model_card(projected), texts=fitting_texts(job))
    return out


def export_router(student: Path, out: Path | None) -> Path:
    """Write a finished run's student for queries and its first teacher for documents, by default as RUN/router.

    A student with a space of its own encodes queries behind its trained projection.
    """
    job, record = finished_job(student, "router")
    section = job.teacher.section
    if section.local_model is None:
        kind = "behind an API" if section.vectors is None else "a table of vectors"
        raise DistilvecError(
            f"the teacher of {job.folder}, {job.teacher.info.name}, is {kind}: there is no model to embed documents "
            "with in one folder.",
            "Use the student for queries, and the API or the table for documents.",
            key="--to",
        )
    compatible = bool(record.teacher_compatible)
    query = _query_tower(job, load_saved(student), compatible)
    out = out or job.files.router
    routed = replace(
        record,
        name=f"{record.name}-router",
        teacher_compatible=True,
        documents=job.teacher.info.name,
        overlap=record.overlap if compatible else None,  # judged was the student without its projection
    )
    check_form_folder(out, routed.name)
    with about("teacher"):
        opened_teacher = load_teacher(section.model_copy(update={"dtype": "float32"}), "cpu")
    with opened_teacher as teacher:
        if teacher.manifest().weights != job.teacher.manifest.weights:
            raise DistilvecError(
                f"{section.model} is not the model that taught {job.folder}.",
                "Restore the teacher, or run the recipe again with --restart.",
                key="--to",
            )
        with about("--out"):
            save_router(query, document_tower(teacher), out, routed.to_json(), model_card(routed))
    return out


def _query_tower(job: Job, student: SentenceTransformer, compatible: bool) -> SentenceTransformer:
    """Return the student, or the student behind its projection; DistilvecError without vectors in teacher space."""
    tower = student if compatible else projected_student(job, student)
    if tower is None or tower.get_embedding_dimension() != job.teacher.info.dim:
        raise DistilvecError(
            f"the student of {job.folder} has a vector space of its own: its queries cannot be compared with the "
            "teacher's documents.",
            "Use the student for both, or train it with a method in the teacher's space.",
            key="--to",
        )
    return tower


def document_tower(teacher: ModelEmbedder) -> SentenceTransformer:
    """Return the teacher's modules with its prompts; `truncate_dim` becomes a linear layer that cuts the vector."""
    modules = list(teacher.model)
    full = stated_width(teacher.model) or teacher.dim
    if teacher.dim < full:
        before_normalize = len(modules) - 1 if teacher.normalized else len(modules)
        modules.insert(before_normalize, first_dims_layer(full, teacher.dim))
    return SentenceTransformer(modules=modules, prompts=dict(teacher.prompts), device="cpu")


# -- forms that are files ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExportForm:
    """A form: its file below the model's folder, the function that makes it of the fp32 file, its tolerance.

    `check_place` refuses a path that has another kind of file.
    """

    file: str
    write: Callable[[Path, Path], Any]
    tolerance: Tolerance
    extra: str = "onnx"
    check_place: Callable[[Path], None] = check_onnx_place


def keep_fp32(source: Path, target: Path) -> None:
    """Take the fp32 file as it is."""
    source.rename(target)


FORMS = {  # names of files as transformers.js, fastembed, TEI and sentence-transformers look for them
    "onnx": ExportForm("onnx/model.onnx", keep_fp32, Tolerance(0.99999, 0.98, 0.999)),
    "onnx-fp16": ExportForm("onnx/model_fp16.onnx", to_half, Tolerance(0.999, 0.95, 0.99)),
    "onnx-int8": ExportForm("onnx/model_quantized.onnx", to_int8, Tolerance(0.99, 0.8, 0.97)),
    "openvino": ExportForm(
        "openvino/openvino_model.xml", to_openvino, Tolerance(0.9999, 0.98, 0.999), "openvino", check_openvino_place
    ),
    "openvino-int8": ExportForm(
        "openvino/openvino_model_qint8_quantized.xml",
        to_openvino_int8,
        Tolerance(0.99, 0.8, 0.97),
        "openvino",
        check_openvino_place,
    ),
}
FOLDERS = {"projected": export_projected, "router": export_router}  # forms of a run's student that are model folders


@dataclass(frozen=True)
class Exported:
    """The main file of an export and its parity with PyTorch by form; none for folders."""

    path: Path
    forms: dict[str, ExportedForm]


def export_model(
    model: str,
    to: str = "onnx",
    out: Path | None = None,
    trust_remote_code: bool = False,
    suite: Path | None = None,
    force: bool = False,
) -> Exported:
    """Write the model in another form, if its vectors match PyTorch's; with `force` also if they do not.

    Args:
        model: A folder or hub id; the tasks of a run's student are those of its recipe.
        to: A key of FORMS, or of a run's student "projected": behind its trained projection, a model folder, or
            "router": with its teacher as one model folder, which routes queries to the student.
        out: The file; by default the form's file below the model's folder.
        trust_remote_code: Whether the model's own code may run.
        suite: Its first retrieval task is what the form is compared on; by default docstrings of Python's library.
        force: Keep a form that is out of tolerance.

    Errors, before the model is loaded: DistilvecError for an unknown form, missing packages, a path that cannot be
    written. After: a form that is out of tolerance.
    """
    names = (*FORMS, *FOLDERS)
    if to not in names:
        raise DistilvecError(f"no form '{to}'{nearest(to, names) or '.'} Forms: {', '.join(names)}.", key="--to")
    if to in FOLDERS:
        # A folder has the run's own weights, with nothing to compare
        for name, value in {"--suite": suite, "--force": force, "--trust-remote-code": trust_remote_code}.items():
            if value:
                raise DistilvecError(f"is for forms that are a file; {to} is a folder.", "Leave it out.", key=name)
        return Exported(FOLDERS[to](Path(model), out), {})
    form = FORMS[to]
    for extra in dict.fromkeys(("onnx", form.extra)):
        require_extra(extra, f"--to {to}")
    with about("model", model):
        check_place(model)
    if out is None and not Path(model).is_dir():
        raise DistilvecError(
            f"{model} is a hub id, no folder.", f"Give the path of the {to} file with --out.", key="--out"
        )
    place = out or Path(model) / form.file
    ending = Path(form.file).suffix
    if place.suffix.lower() != ending:
        problem = f"{place} does not end in {ending}, by which readers know the format."
        raise DistilvecError(problem, "Give such a name.", key="--out")
    with about("--out"):
        form.check_place(place)
    if suite is not None:
        read_suite(suite)
    with about("model", model):
        loaded = load_model(ModelName(model, trusted=trust_remote_code))
    task = parity_task(Path(model), suite)
    forms = {to: _write_form(loaded, _single_text_head(Path(model)), to, place, task, force)}
    if out is None:
        _record(Path(model), forms)
    return Exported(place, forms)


def parity_task(model: Path, suite: Path | None) -> RetrievalTask:
    """Return the retrieval task that exports of a model are compared on; see `export_model`.

    Where it has few documents, those of the built-in one are added: among a dozen, the ten nearest are nearly all.
    """
    place = model.resolve()
    run = RunFolder.of_student(place) or RunFolder(place.parent)
    section = EvaluationSection(suite=suite, builtin=None if suite else "python-docstrings")
    if suite is None and run.recipe.is_file():
        of_run = recipes.load(run.recipe).evaluation
        if of_run.suite and of_run.suite.is_file():
            section = EvaluationSection(suite=of_run.suite)
    store = ArtifactStore(cache_root())
    task = _first_retrieval_task(section, store)
    if task is None and suite is not None:
        raise DistilvecError(f"{suite} has no retrieval task.", "Name a suite with one.", key="--suite")
    if task is not None and len(task.documents) >= RANKED:
        return task
    builtin = _first_retrieval_task(EvaluationSection(builtin="python-docstrings"), store)
    assert builtin is not None
    return builtin if task is None or section.builtin is not None else with_documents(task, builtin)


def _first_retrieval_task(section: EvaluationSection, store: ArtifactStore) -> RetrievalTask | None:
    tasks = [task for task in load_tasks(section, store) if isinstance(task, RetrievalTask)]
    return tasks[0] if tasks else None


def _write_form(
    model: SentenceTransformer, head: TaskHead | None, to: str, place: Path, task: RetrievalTask, force: bool
) -> ExportedForm:
    """Make the form's files in a scratch folder, compare them with PyTorch, move them; return what was measured."""
    form, target = FORMS[to], real(place)
    graph = Graph(export_copy(model), head).eval()
    with about("--out", place):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_scratch(target.parent)
        folder = scratch(target)
        folder.mkdir()
        try:
            made = folder / "made" / target.name
            made.parent.mkdir()
            form.write(export_onnx(model, folder / "model.onnx", head), made)
            size = sum(file.stat().st_size for file in made.parent.iterdir()) / 1e6
            runnable = OpenvinoEmbedder(made) if made.suffix == ".xml" else OnnxEmbedder(made)
            parity = measure_parity(graph, runnable, task, size)
            problems = parity.problems(form.tolerance)
            if problems and not force:
                raise DistilvecError(
                    f"{to} is out of tolerance, and was not written: {'; '.join(problems)}.",
                    "Take another form, or keep it with --force.",
                    key="--to",
                )
            for file in sorted(made.parent.iterdir(), key=lambda file: file == made):  # the main file last
                file.replace(target.parent / file.name)
            sync_folder(target.parent)
        finally:
            remove(folder)
    machine = machine_info()
    return ExportedForm(
        file=form.file,
        **asdict(parity),
        processor=machine["processor"],
        threads=machine["threads"],
        out_of_tolerance=problems,
    )


def _single_text_head(folder: Path) -> TaskHead | None:
    """Return the head of a model trained on labels of single texts; pairs need token types, which the file lacks."""
    saved = load_head(folder) if folder.is_dir() else None
    if saved is None:
        return None
    head = saved[0]
    if head.task.kind in PAIRS:
        log(f"the head of {folder} reads pairs of texts, so the file does not have its outputs")
        return None
    return head


def _record(folder: Path, forms: dict[str, ExportedForm]) -> None:
    """Add a form to exports.json, to the model card that distilvec wrote, and to the report of the model's run."""
    before = read_exports(folder)
    measured = {**before, **forms}
    after = {form: measured[form] for form in FORMS if form in measured}
    write_exports(folder, after)
    run, card = RunFolder(folder.resolve().parent), folder / "README.md"
    # the record of a transplanted model is another one: its teacher is a name
    is_transplanted = isinstance((read_record(folder) or {}).get("teacher"), str)
    record = None if is_transplanted else read_student_record(folder)
    if record is not None and card.is_file():
        if card.read_text(encoding="utf-8") == model_card(record, exports=before):
            replace_card(folder, model_card(record, exports=after))
        else:
            log(f"{card} was changed by hand and stays as it is: no table of exported files")
    if folder.resolve() == run.student:
        refresh_report(run)
