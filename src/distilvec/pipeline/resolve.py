"""From a recipe to a job: teachers, texts, student, and the outputs that the method requires of every teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import logging

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import Recipe, SourceSection, TeacherSection
from distilvec.config.student import StudentSection
from distilvec.core.artifacts import ArtifactStore
from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import user_cache
from distilvec.core.info import ObjectiveContext, StudentInfo, TeacherInfo
from distilvec.core.log import log
from distilvec.core.outputs import OutputSpec
from distilvec.core.processes import is_main, world_size
from distilvec.core.registry import method_class
from distilvec.core.run_folder import RunFolder
from distilvec.core.task_head import HeadInfo, TaskHead
from distilvec.data.corpus import Corpus, with_bare_texts, with_prompts
from distilvec.data.examples import Examples
from distilvec.evaluation.tasks import Task
from distilvec.pipeline.caches import find_cache
from distilvec.pipeline.decide import (
    DTYPES,
    Dtype,
    begun_dtype,
    hardware_dtype,
    is_open,
    size_student,
    with_built_in_prompt,
    with_dtype,
    with_dtypes,
    with_earlier_dtypes,
    with_linear_layer,
    with_static_model,
)
from distilvec.pipeline.describe import (
    describe_saved,
    describe_student,
    describe_teacher,
    known_teacher,
    student_content,
)
from distilvec.pipeline.job import Job, LoadedModels, Teacher, TeacherDescription
from distilvec.pipeline.objectives import make_objective, required_outputs, with_dropout_choice
from distilvec.pipeline.start import check_fitted
from distilvec.pipeline.texts import (
    StudentVocabulary,
    check_domains,
    load_corpus,
    load_examples,
    load_tasks,
    load_vocabulary,
    stored_table,
)
from distilvec.report.model_card import shorter_reading
from distilvec.report.record import RunRecord, TeacherRecord
from distilvec.students.task_head import load_head
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.signals import token_settings
from distilvec.teachers.cached import uncached
from distilvec.teachers.open import log_similarity
from distilvec.train.stages import Stage, any_in_teacher_space, training_stages, with_length

if TYPE_CHECKING:
    from distilvec.data.pairs import StoredPairs


def cache_root(recipe: Recipe | None = None) -> Path:
    """Return the folder that runs share: `cache.root`, else $DISTILVEC_CACHE, else ~/.cache/distilvec."""
    if recipe is not None and recipe.cache.root is not None:
        return recipe.cache.root.expanduser()
    return user_cache()


def resolve(recipe: Recipe, folder: Path) -> Job:
    """Decide everything that comes before expensive work.

    Models are loaded only for descriptions that are not stored yet; they stay in memory for their use (`Job.loaded`).
    """
    job = _make_job(_describe_parts(recipe, folder))
    check_fitted(job)
    for stage in job.stages:
        if stage.automatic is not None:
            of_stage = f" of stage {stage.name}" if stage.name else ""
            log(f"training{of_stage}: {stage.automatic} (train.epochs: auto)")
    return job


def reopen(recipe: Recipe, folder: Path, record: RunRecord) -> Job:
    """Return the job of the finished run in a folder, from its `record`.

    Its teachers are described by their caches and its student by its folder: no model has to exist for it any more.
    """
    return _make_job(_recorded_parts(recipe, folder, record))


# -- teachers, texts and student, described ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _DescribedTeacher:
    """A teacher's section, its key in the recipe (teacher, more_teachers.0 and so on), and what it is."""

    key: str
    section: TeacherSection
    description: TeacherDescription


@dataclass(frozen=True)
class _Texts:
    """What a job reads: tasks of the evaluation, labeled examples if the recipe has a task, pairs, and the corpus.

    `student_corpus` has the same texts as the student reads them, without a built-in prompt.
    """

    tasks: list[Task]
    examples: Examples | None
    pairs: StoredPairs | None
    corpus: Corpus
    student_corpus: Corpus


@dataclass(frozen=True)
class _Parts:
    """Teachers, texts and student of a recipe, described; see `Job` for the other fields."""

    recipe: Recipe
    stated_recipe: Recipe
    folder: Path
    store: ArtifactStore
    teachers: list[_DescribedTeacher]
    texts: _Texts
    student: StudentInfo
    student_length: int
    student_content: str = ""
    vocabulary: StudentVocabulary | None = None
    loaded: LoadedModels = field(default_factory=LoadedModels)


def _describe_parts(recipe: Recipe, folder: Path) -> _Parts:
    """Describe teachers, texts and student; what a recipe leaves open of the student is decided."""
    logging.disable_progress_bar()
    store = ArtifactStore(cache_root(recipe))
    stated_recipe = with_earlier_dtypes(recipe, RunFolder(folder))
    # Of several processes the main one comes first: the others take its copies
    recipe = with_built_in_prompt(with_local_tables(stated_recipe, store.root, refresh=is_main()))
    in_teacher_space = any_in_teacher_space(training_stages(recipe, RunFolder(folder)))
    loaded = LoadedModels()

    # Teachers. Only a single one stays in memory: several may be too large to be there at the same time
    teachers = []
    for key, section in _teacher_sections(recipe).items():
        keep = None if recipe.more_teachers else loaded
        with about(key):
            description = describe_teacher(section, recipe.train.device, store, keep)
        log_similarity(section, description.info.normalized)
        teachers.append(_DescribedTeacher(key, section, description))
    first = teachers[0].description
    teacher = first.info

    check_domains(recipe)
    texts = _load_texts(recipe, teacher, store)

    # The student, as it is before its training
    recipe = recipe.model_copy(update={"student": with_static_model(recipe.student, teacher)})
    if in_teacher_space:
        recipe = recipe.model_copy(update={"student": with_linear_layer(recipe.student, first)})
    if recipe.student.size is not None:
        sized = size_student(recipe.student, first, in_teacher_space, texts.student_corpus, store)
        recipe = recipe.model_copy(update={"student": sized.section})
        for note in sized.notes:
            log(f"student of {stated_recipe.student.size}: {note}")
    vocabulary = load_vocabulary(recipe.student, teacher, texts.student_corpus, store, RunFolder(folder))
    tokenizer = None if vocabulary is None else vocabulary.tokenizer
    student, length = describe_student(
        recipe, teacher, in_teacher_space, tokenizer, texts.student_corpus, store, loaded
    )
    for note in student.notes:
        log(f"student: {note}")
    if shorter := shorter_reading(length, teacher.max_length):
        log(f"student: reads {shorter}")
    content = student_content(recipe.student, teacher, tokenizer)
    return _Parts(recipe, stated_recipe, folder, store, teachers, texts, student, length, content, vocabulary, loaded)


def _recorded_parts(recipe: Recipe, folder: Path, record: RunRecord) -> _Parts:
    """Describe teachers, texts and student of a finished run."""
    logging.disable_progress_bar()
    store = ArtifactStore(cache_root(recipe))
    stated_recipe = with_earlier_dtypes(recipe, RunFolder(folder))
    assert record.student is not None
    prompt = record.student.settings.get("built_in_prompt")  # its words: the model that names it may be gone
    recipe = with_built_in_prompt(with_local_tables(stated_recipe, store.root), prompt)
    teachers = []
    entries = [record.teacher, *record.more_teachers]
    for (key, section), entry in zip(_teacher_sections(recipe).items(), entries, strict=True):
        with about(key):
            description = _describe_recorded(recipe, section, entry, store)
        log_similarity(section, description.info.normalized)
        teachers.append(_DescribedTeacher(key, section, description))
    texts = _load_texts(recipe, teachers[0].description.info, store)
    student, length = describe_saved(RunFolder(folder).student)
    # The decisions of the run that trained the student: the models that it was made from may be gone
    recipe = recipe.model_copy(update={"student": StudentSection.model_validate(record.student.settings)})
    return _Parts(recipe, stated_recipe, folder, store, teachers, texts, student, length)


def with_local_tables(recipe: Recipe, root: Path, refresh: bool = False) -> Recipe:
    """The recipe with every teacher's index as a Parquet table, copied below `root` where it is of another form.

    Sources `builtin: teacher` become the table of the first teacher. `refresh`: read those again that ask for it.
    """
    with about("teacher"):
        teacher = _with_local_table(recipe.teacher, root, refresh)
    changes: dict[str, object] = {"teacher": teacher}
    if recipe.more_teachers:
        changes["more_teachers"] = [_with_local_table(section, root, refresh) for section in recipe.more_teachers]
    if recipe.corpus is not None and any(source.builtin == "teacher" for source in recipe.corpus.sources):
        sources = [_table_source(source, row, teacher) for row, source in enumerate(recipe.corpus.sources)]
        changes["corpus"] = recipe.corpus.model_copy(update={"sources": sources})
    return recipe.model_copy(update=changes)


def _with_local_table(section: TeacherSection, root: Path, refresh: bool) -> TeacherSection:
    """Return the section with its index as a Parquet table; a model or an API as it is."""
    if section.vectors is None:
        return section

    from distilvec.teachers.indexes.copy import local_table

    return local_table(section, root, refresh and section.refresh)


def _table_source(source: SourceSection, position: int, teacher: TeacherSection) -> SourceSection:
    """Return the source of the texts in the teacher's table in place of `builtin: teacher`; others as they are."""
    if source.builtin != "teacher":
        return source
    embedder = stored_table(teacher, f"corpus.sources.{position}.builtin")
    columns = embedder.table.names
    changes: dict[str, object] = {
        "builtin": None,
        "path": embedder.table.path,
        "column": columns["text"],
        "origin": (teacher.columns or {}).get("origin"),
        "name": source.name or embedder.name.replace("/", "-"),
    }
    if "role" in columns and not source.where:
        changes["where"] = {columns["role"]: [source.role, None]}  # a row without a role counts for both
    return source.model_copy(update=changes)


def _teacher_sections(recipe: Recipe) -> dict[str, TeacherSection]:
    """Return the section of every teacher by its key."""
    sections = {"teacher": recipe.teacher}
    for number, section in enumerate(recipe.more_teachers):
        sections[f"more_teachers.{number}"] = section
    return sections


def _load_texts(recipe: Recipe, teacher: TeacherInfo, store: ArtifactStore) -> _Texts:
    tasks = load_tasks(recipe.evaluation, store, recipe.teacher)
    examples = load_examples(recipe, teacher, store)
    corpus = examples.corpus if examples is not None else load_corpus(recipe, teacher, tasks, store)
    pairs = None
    if recipe.pairs is not None:
        from distilvec.pipeline.pairs import load_pairs

        pairs = load_pairs(recipe, recipe.pairs, store)
    student_corpus = corpus if recipe.student.built_in_prompt is None else with_bare_texts(corpus)
    return _Texts(tasks, examples, pairs, corpus, student_corpus)


def _describe_recorded(
    recipe: Recipe, section: TeacherSection, entry: TeacherRecord | None, store: ArtifactStore
) -> TeacherDescription:
    """Describe a teacher of a finished run by its cache; by its model where it has none, or where the method needs the
    model's layers.
    """
    if entry is not None and not entry.live and not section.live and entry.name and entry.fingerprint:
        cache = find_cache(recipe, store, entry.name, entry.fingerprint)
        if cache.manifest.tokens is None:
            return known_teacher(section, cache.manifest, entry)
    return describe_teacher(section, recipe.train.device, store)


# -- the job -----------------------------------------------------------------------------------------------------------


def _make_job(parts: _Parts) -> Job:
    """Decide what the stages require of every teacher, the dropout, and the precision of the teachers."""
    needs = _find_requirements(parts)
    teachers = [
        _make_teacher(parts, needs, teacher, info, head)
        for teacher, info, head in zip(parts.teachers, needs.context.teachers, needs.heads, strict=True)
    ]
    _refuse(parts.recipe, teachers, needs.outputs)
    if parts.recipe.student.built_in_prompt is not None and needs.outputs.tokens is not None:
        raise DistilvecError(
            f"{parts.recipe.method.name} compares tokens, but the teacher also reads the prompt's tokens.",
            "Take a method that learns only from vectors.",
            key="student.built_in_prompt",
        )
    decided = [teacher.section for teacher in teachers]
    recipe = parts.recipe.model_copy(update={"student": needs.student})
    return Job(
        recipe=with_dtypes(recipe, decided),
        stated_recipe=with_dtypes(parts.stated_recipe, decided),
        folder=parts.folder,
        store=parts.store,
        stages=needs.stages,
        tasks=tuple(parts.texts.tasks),
        examples=parts.texts.examples,
        pairs=parts.texts.pairs,
        corpus=parts.texts.student_corpus,
        vocabulary=parts.vocabulary,
        student=parts.student,
        student_length=parts.student_length,
        teachers=tuple(teachers),
        context=needs.context,
        required=needs.outputs,
        student_content=parts.student_content,
        loaded=parts.loaded,
    )


@dataclass(frozen=True)
class _Requirements:
    """What the objectives of all stages require: outputs of every teacher, whose `heads` they read, and a dropout."""

    stages: tuple[Stage, ...]
    context: ObjectiveContext
    heads: list[TaskHead | None]
    outputs: OutputSpec
    student: StudentSection


def _find_requirements(parts: _Parts) -> _Requirements:
    """Build the objectives once to learn what they require of a teacher, and what they leave open of the student."""
    recipe, examples = parts.recipe, parts.texts.examples
    rows = len(parts.texts.corpus.train_rows) if examples is None else len(examples.labeled)
    stages = []
    for stage in training_stages(recipe, RunFolder(parts.folder)):
        pairs = _pairs_of(stage, parts.texts.pairs)
        stages.append(with_length(stage, rows if pairs is None else len(pairs), examples is not None))
    for stage in stages[:-1]:
        if _pairs_of(stage, parts.texts.pairs) is not None:
            problem = f"stage {stage.name} learns from pairs, and another stage follows."
            raise DistilvecError(
                problem, "Put it last: if it does not help, the student before it is saved.", key="stages"
            )
    if parts.texts.pairs is not None and all(_pairs_of(stage, parts.texts.pairs) is None for stage in stages):
        raise DistilvecError("no method of the recipe reads pairs.", "Add a stage with the method clicks.", key="pairs")
    heads, infos = [], []
    other_task: DistilvecError | None = None  # a head of another task, which a method that reads no teacher ignores
    for teacher in parts.teachers:
        try:
            with about(teacher.key):
                head = _head(teacher.section, examples)
        except DistilvecError as error:
            head, other_task = None, error
        heads.append(head)
        info = teacher.description.info
        infos.append(replace(info, weight=teacher.section.weight, logits=head is not None))

    task = None if examples is None else examples.info
    dims = tuple(recipe.student.dims or ())
    context = ObjectiveContext(parts.student, tuple(infos), task, head=_head_info(recipe), dims=dims)
    try:
        objectives = [make_objective(stage, context) for stage in stages]
    except Exception:
        if other_task is None:
            raise
        raise other_task from None
    outputs = OutputSpec()
    for objective in objectives:
        outputs |= required_outputs(objective, examples)
    if other_task is not None and outputs != OutputSpec():
        raise other_task
    student = with_dropout_choice(recipe.student, objectives)
    return _Requirements(tuple(stages), context, heads, outputs, student)


def _pairs_of(stage: Stage, pairs: StoredPairs | None) -> StoredPairs | None:
    """Return the pairs that a stage trains on, None if its method reads none."""
    method = stage.recipe.method.name
    if not method_class(method).reads_pairs:
        return None
    if pairs is None:
        problem = f"{method} learns from queries and the stored documents that answer them; the recipe has none."
        raise DistilvecError(problem, "Name a file: pairs=clicks.csv (--pairs).", key="pairs")
    if world_size() > 1:  # a process would train on its share of the texts alone, without their pairs
        raise DistilvecError(f"{method} trains in one process.", "Start one.", key="method.name")
    return pairs


def _make_teacher(
    parts: _Parts, needs: _Requirements, described: _DescribedTeacher, info: TeacherInfo, head: TaskHead | None
) -> Teacher:
    """Decide whether a teacher runs in every step, what its cache stores, and the precision that it computes in."""
    recipe, store, section = parts.recipe, parts.store, described.section
    corpus = with_prompts(parts.texts.corpus, info.prompts, store.root / "keys")
    reads_teacher = needs.outputs != OutputSpec()
    live = reads_teacher and (section.live or bool(uncached(needs.outputs)))
    manifest = _manifest(parts, needs, described)
    embeddings = replace(described.description.manifest, store_dtype=recipe.cache.dtype)
    if is_open(section):
        cached_texts = corpus if reads_teacher and not live else None
        dtype = _choose_dtype(recipe, store, section, info.name, manifest, cached_texts)
        section = section.model_copy(update={"dtype": dtype})
        manifest = with_dtype(manifest, section, dtype)
        embeddings = with_dtype(embeddings, section, dtype)
    counts = None  # of requests to an API, for a teacher and a corpus
    if section.api is not None:
        name = fingerprint(described.description.manifest.fingerprint, parts.texts.corpus.fingerprint)
        counts = store.folder("api", f"{name}.json")
    return Teacher(
        key=described.key,
        section=section,
        info=info,
        embeddings=embeddings,
        manifest=manifest,
        corpus=corpus,
        parameters=described.description.parameters,
        live=live,
        head=head,
        counts=counts,
        loaded=parts.loaded,
    )


def _head_info(recipe: Recipe) -> HeadInfo:
    """Return the head's layers. DistilvecError for a head without a task."""
    section = recipe.student.head
    if section is None:
        return HeadInfo()
    if recipe.task is None:
        raise DistilvecError(
            "is the head of a labelled task.", "Give the recipe a task, or remove the key.", key="student.head"
        )
    return HeadInfo(section.dropout or 0.0, section.hidden)


def _head(section: TeacherSection, examples: Examples | None) -> TaskHead | None:
    """Read the head of a teacher that `distilvec finetune` trained. DistilvecError if it is that of another task."""
    saved_head = load_head(Path(section.local_model)) if section.local_model and examples is not None else None
    if saved_head is None or examples is None:
        return None
    head, classes = saved_head
    if head.task != examples.info or classes != examples.classes:
        raise DistilvecError(
            f"{section.model} was fine-tuned for {head.task.kind} with classes {_class_names(classes)}; the recipe's "
            f"task is {examples.info.kind} with classes {_class_names(examples.classes)}, texts per example: "
            f"{head.task.texts_per_example} and {examples.info.texts_per_example}.",
            "Fine-tune the teacher on the same task: distilvec finetune.",
            key=".model",
        )
    return head


def _class_names(classes: Sequence[str]) -> str:
    if len(classes) > 6:
        classes = [*classes[:6], "..."]
    return ", ".join(classes) or "none"


def _manifest(parts: _Parts, needs: _Requirements, described: _DescribedTeacher) -> Manifest:
    """Return the manifest of everything that is required of a teacher."""
    cache, outputs, info = parts.recipe.cache, needs.outputs, described.description.info
    manifest = replace(described.description.manifest, store_dtype=cache.dtype)
    if outputs.pre_dense or cache.pre_dense:
        if info.pre_dense_dim is None:
            reason = "the method requires" if outputs.pre_dense else "cache.pre_dense asks for"
            raise DistilvecError(
                f"{info.name} has no vectors from before a Dense layer, which {reason}.",
                "Take another teacher, or another method and cache.pre_dense=false.",
                key=described.key,
            )
        manifest = replace(manifest, pre_dense_width=info.pre_dense_dim)
    if outputs.logits or outputs.vector:
        manifest = replace(manifest, vector_width=info.hidden_size)
    if outputs.tokens is None:
        return manifest
    tokenizer = parts.student.tokenizer or ""
    hidden = cache.hidden or outputs.tokens.precision
    settings = token_settings(outputs.tokens, hidden, info.hidden_size, tokenizer, parts.student_length)
    return replace(manifest, tokens=settings)


def _choose_dtype(
    recipe: Recipe,
    store: ArtifactStore,
    section: TeacherSection,
    name: str,
    manifest: Manifest,
    texts: Corpus | None,
) -> Dtype:
    """Decide a teacher's precision, and log it; `texts` are those of its cache, None for a teacher without one."""
    chosen = hardware_dtype(recipe.train.device)
    if texts is None:
        return chosen
    manifests = {
        dtype: with_dtype(manifest, section, dtype) for dtype in sorted(DTYPES, key=lambda name: name != chosen)
    }
    begun = begun_dtype(recipe, store, name, manifests, texts)
    if begun is not None and begun != chosen:
        log(f"teacher {name}: {begun}, as its cache was begun; this machine computes {chosen} faster (teacher.dtype)")
    return begun or chosen


def _refuse(recipe: Recipe, teachers: Sequence[Teacher], required: OutputSpec) -> None:
    """DistilvecError for a teacher without the required outputs, or with the same vectors as another one."""
    method = recipe.method.name
    inside = required.tokens or required.logits or required.vector or uncached(required)
    by_vectors: dict[str, Teacher] = {}
    for teacher in teachers:
        name = teacher.info.name
        if inside and teacher.section.local_model is None:
            kind, what = ("vectors", "a table of vectors") if teacher.section.api is None else ("api", "behind an API")
            raise DistilvecError(
                f"{name} is {what}; {method} also requires outputs from inside the model.",
                f"Set {teacher.key}.model instead, or choose a method that learns only from embeddings.",
                key=f"{teacher.key}.{kind}",
            )
        if teacher.section.api is not None and teacher.corpus.paired:
            raise DistilvecError(
                f"found 'joint'; {name} is behind an API, which embeds single texts.",
                "Set 'separate'.",
                key="task.encode",
            )
        if len(teachers) == 1:  # the method has checked the rest
            return
        if required.logits and teacher.head is None:
            raise DistilvecError(
                f"{name} has no head for the recipe's task, and {method} requires every teacher's logits.",
                "Fine-tune it on the task (distilvec finetune), or leave it out.",
                key=f"{teacher.key}.model",
            )
        if required.tokens and required.tokens.alignment is not None:
            raise DistilvecError(
                f"{method} aligns the student's tokens with the tokens of a single teacher; found {len(teachers)}.",
                "Remove more_teachers, or choose another method.",
                key="more_teachers",
            )
        same = by_vectors.setdefault(teacher.embeddings.fingerprint, teacher)
        if same is not teacher:
            raise DistilvecError(
                f"{name} gives the same vectors as {same.info.name} ({same.key}).",
                f"Leave one of them out, or change its weight ({same.key}.weight).",
                key=teacher.key,
            )
