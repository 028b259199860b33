"""The public Python API: everything that the command line does, as functions.

`teacher`, `student` and `model` take a hub id, a folder or a SentenceTransformer; `texts` a path, a list of texts or a
`datasets.Dataset`. `overrides` maps dotted keys of a recipe to values: {"train.epochs": 3}. Relative paths start at the
current folder. Errors are DistilvecError: "[key] problem. Fix."
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.config.builtin import recipe_file
from distilvec.config.schema import Recipe
from distilvec.config.student import VocabularySection
from distilvec.core.errors import DistilvecError, plain_errors
from distilvec.core.log import quiet_libraries
from distilvec.models.load import load as load
from distilvec.pipeline.inputs import Model, Texts, saved_model_name, source_keys, teacher_keys
from distilvec.pipeline.prepare import cached_teachers, fill_whole_cache
from distilvec.pipeline.resolve import cache_root, resolve
from distilvec.pipeline.run import run as run_recipe
from distilvec.report.comparison import Comparison
from distilvec.report.scores import Scores
from distilvec.students.task_head import predict as predict
from distilvec.teachers.cache.store import TeacherCache
from distilvec.verbs.check.check import check as check
from distilvec.verbs.classify.classify import classify as classify
from distilvec.verbs.compare.compare import compare_runs
from distilvec.verbs.distill.distill import distill as distill
from distilvec.verbs.distill.distill import plan as plan
from distilvec.verbs.evaluate.scores import score_models
from distilvec.verbs.export.export import export_model
from distilvec.verbs.opened_run import Run
from distilvec.verbs.runs.runs import runs as runs
from distilvec.verbs.transplant.transplant import readers_by_language, stated_languages, transplant_folder

Overrides = Mapping[str, Any]
Callback = Callable[[int, dict[str, float]], None]


@plain_errors()
@quiet_libraries()
def run(
    recipe: str | Path | Recipe,
    variant: str | None = None,
    overrides: Overrides | None = None,
    *,
    out: str | Path | None = None,
    restart: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run a recipe (a file, a built-in name or a Recipe) as `distilvec run` does.

    Errors: DistilvecError for a variant of a Recipe, which has taken its own.
    """
    if not isinstance(recipe, Recipe):
        loaded = load_recipe(recipe, variant, overrides)
    elif variant is not None:
        raise DistilvecError("a Recipe has no variants: it is one of them.", "Give it to load_recipe.", key="variant")
    elif overrides:
        loaded = recipes.recipe_from(recipe.model_dump(mode="json"), overrides, "distilvec.run")
    else:
        loaded = recipe
    folder = Path(out) if out is not None else loaded.output / loaded.name
    finished = run_recipe(loaded, folder, restart, callbacks)
    return Run.open(folder) if finished is None else Run.of(finished)  # in processes beside the main one


@plain_errors()
def result(folder: str | Path) -> Run:
    """Open the folder of a finished run: scores, verdict, report, record, student.

    Errors: DistilvecError "run folder" for a folder without a finished run, "record.json" for a damaged one.
    """
    return Run.open(folder)


@plain_errors()
def load_recipe(recipe: str | Path, variant: str | None = None, overrides: Overrides | None = None) -> Recipe:
    """A recipe by file or built-in name, with a variant and overrides applied, validated.

    Errors: DistilvecError with the key that is unknown or has a wrong value, "variant" for an unknown variant, "recipe"
    for a file that cannot be read and for several problems at once.
    """
    path = recipe_file(str(recipe))
    return recipes.recipe_from(recipes.resolved_tree(path, variant), overrides, str(path))


@plain_errors()
@quiet_libraries()
def cache_teacher(
    teacher: Model | np.ndarray[Any, Any], texts: Texts, overrides: Overrides | None = None
) -> TeacherCache:
    """Embed texts with the teacher once and return the cache; the same call resumes.

    The cache is below `overrides["cache.root"]`, else $DISTILVEC_CACHE, else ~/.cache/distilvec. Texts in it are not
    embedded again.
    Errors: DistilvecError "teacher" for an array of vectors, "teacher.live" if the overrides make the teacher embed in
    every step; with the key for a model, texts or an override that cannot be used.
    """
    if isinstance(teacher, np.ndarray):
        raise DistilvecError("an array of vectors is a cache already.", "Give a model.", key="teacher")
    tree = {**recipe_keys(teacher, texts, "teacher"), "name": "cache", "method": {"name": "redact"}}
    job = resolve(recipes.recipe_from(tree, overrides, "distilvec.cache_teacher"), Path())
    return fill_whole_cache(job, cached_teachers(job)[0])


@plain_errors()
@quiet_libraries()
def evaluate(
    model: Model,
    suite: str | Path | None = None,
    teacher: Model | None = None,
    *,
    mteb: Sequence[str] | None = None,
    protocol: str = "mteb-like",
    mixed: bool = False,
    trust_remote_code: bool = False,
) -> Scores:
    """Score a model on a suite of local tasks or on tasks of MTEB, with a teacher also asymmetrically.

    `mixed` adds a column that mixes both models, also in pairs, STS and classification. `trust_remote_code` runs code
    that comes with the models.
    """
    return score_models(
        model, suite, teacher, mteb, protocol=protocol, mixed=mixed, trust_remote_code=trust_remote_code
    )


@plain_errors()
def compare(runs: Sequence[str | Path], reference: str | None = None, column: str | None = None) -> Comparison:
    """Compare finished runs and sweeps: means and deviations over seeds, differences with intervals, costs.

    Errors: DistilvecError "run folder" for a folder without a finished run and for runs that share no task, "reference"
    for a run that is not among these, "column" for a model that is unknown or that a run has no scores of.
    """
    return compare_runs([Path(folder) for folder in runs], reference, column)


@plain_errors()
@quiet_libraries()
def transplant(
    model: Model,
    texts: Texts | Mapping[str, Texts],
    out: str | Path,
    *,
    vocab_size: int | None = None,
    kind: Literal["trim", "hybrid", "bpe", "unigram", "wordpiece"] = "trim",
    max_length: int | None = None,
    overwrite: bool = False,
    options: Overrides | None = None,
) -> SentenceTransformer:
    """Give a model another vocabulary, chosen or trained on `texts` (or on texts by language), saved as `out`.

    `options` are further keys of `student.vocabulary`, such as {"compose": "first"}. Nothing else is trained.
    """
    root = cache_root()
    by_language: Mapping[str, Any] = texts if isinstance(texts, Mapping) else {"": texts}
    files = [(language, source["path"]) for language, part in by_language.items() for source in source_keys(part, root)]
    named = [f"{language}={path}" if language else str(path) for language, path in files]
    section = recipes.section_of(VocabularySection, "options", {"kind": kind, "size": vocab_size, **(options or {})})
    transplant_folder(
        saved_model_name(model, root, "model"), section, readers_by_language(named), Path(out), max_length,
        overwrite=overwrite, languages=stated_languages(named),
    )  # fmt: skip
    return load(out, device="cpu")


@plain_errors()
@quiet_libraries()
def export(
    model: Model,
    to: Literal["onnx", "onnx-fp16", "onnx-int8", "openvino", "openvino-int8", "projected", "router"] = "onnx",
    out: str | Path | None = None,
    *,
    suite: str | Path | None = None,
    force: bool = False,
) -> Path:
    """Write a model in another form, checked against PyTorch; its path, by default FOLDER/onnx/model.onnx or alike.

    A form that differs too much from PyTorch is an error with the numbers, unless `force`. The comparison uses the
    first retrieval task of `suite`, by default of the run's suite. The numbers are in FOLDER/exports.json and the model
    card.
    "projected" writes a run's student behind the projection that its method trained, by default as RUN/projected.
    "router" writes the student and its teacher as one model (queries by the student), by default as RUN/router.
    """
    name = saved_model_name(model, cache_root(), "model")
    file = None if out is None else Path(out)
    return export_model(name, to, file, suite=None if suite is None else Path(suite), force=force).path


@plain_errors()
def recipe_keys(teacher: Model | np.ndarray[Any, Any], texts: Texts, student: Model) -> dict[str, Any]:
    """The sections teacher, student and corpus of a recipe for these objects."""
    root = cache_root()
    return {
        "teacher": teacher_keys(teacher, texts, root),
        "student": {"model": student if student == "teacher" else saved_model_name(student, root, "student")},
        "corpus": {"sources": source_keys(texts, root)},
    }
