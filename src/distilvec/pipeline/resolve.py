"""From a recipe to a job: teachers, texts, student, and the outputs that the method requires of every teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import logging

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import Recipe, SourceSection, TeacherSection
from distilvec.config.student import StudentSection
from distilvec.core.artifacts import ArtifactStore
from distilvec.core.errors import DistilvecError
from distilvec.core.files import user_cache
from distilvec.core.info import ObjectiveContext, StudentInfo, TeacherInfo
from distilvec.core.log import log
from distilvec.core.outputs import OutputSpec
from distilvec.core.run_folder import RunFolder
from distilvec.core.task_head import HeadInfo, TaskHead
from distilvec.data.corpus import Corpus, with_prompts
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
    with_dtype,
    with_dtypes,
    with_earlier_dtypes,
    with_linear_layer,
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
from distilvec.pipeline.texts import (
    StudentVocabulary,
    check_domains,
    load_corpus,
    load_examples,
    load_tasks,
    load_vocabulary,
)
from distilvec.report.model_card import shorter_reading
from distilvec.report.record import RunRecord, TeacherRecord
from distilvec.students.task_head import load_head
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.signals import token_settings
from distilvec.teachers.cached import uncached
from distilvec.teachers.indexes.copy import local_table, log_similarity
from distilvec.teachers.table_embedder import TableEmbedder
from distilvec.train.stages import any_in_teacher_space, training_stages, with_length


def cache_root(recipe: Recipe | None = None) -> Path:
    """Return the folder that runs share: `cache.root`, else $DISTILVEC_CACHE, else ~/.cache/distilvec."""
    if recipe is not None and recipe.cache.root is not None:
        return recipe.cache.root.expanduser()
    return user_cache()


def resolve(recipe: Recipe, folder: Path) -> Job:
    """Decide everything that comes before expensive work.

    Models are loaded only for descriptions that are not stored yet; they stay in memory for their use (`Job.loaded`).
    """
    logging.disable_progress_bar()
    store = ArtifactStore(cache_root(recipe))
    stated = with_earlier_dtypes(recipe, RunFolder(folder))
    recipe = with_local_tables(stated, store.root)
    stages = training_stages(recipe, RunFolder(folder))
    loaded = LoadedModels()

    # Teachers. Only a single one stays in memory: several may be too large to be there at the same time
    descriptions = {}
    for key, section in teacher_sections(recipe).items():
        keep = None if recipe.more_teachers else loaded
        descriptions[key] = describe_teacher(section, key, recipe.train.device, store, keep)
        log_similarity(section, descriptions[key].info.normalized)
    teacher = descriptions["teacher"].info

    # Texts
    check_domains(recipe)
    texts = _load_texts(recipe, teacher, store)

    # The student, as it is before its training
    in_teacher_space = any_in_teacher_space(stages)
    if in_teacher_space:
        recipe = recipe.model_copy(update={"student": with_linear_layer(recipe.student, descriptions["teacher"])})
    if recipe.student.size is not None:
        sized = size_student(recipe.student, descriptions["teacher"], in_teacher_space, texts.corpus, store)
        recipe = recipe.model_copy(update={"student": sized.section})
        for note in sized.notes:
            log(f"student of {stated.student.size}: {note}")
    vocabulary = load_vocabulary(recipe.student, teacher, texts.corpus, store, RunFolder(folder))
    tokenizer = None if vocabulary is None else vocabulary.tokenizer
    student, length = describe_student(recipe, teacher, in_teacher_space, tokenizer, texts.corpus, store, loaded)
    for note in student.notes:
        log(f"student: {note}")
    if shorter := shorter_reading(length, teacher.max_length):
        log(f"student: reads {shorter}")

    content = student_content(recipe.student, teacher, tokenizer)
    job = _make_job(recipe, stated, folder, store, descriptions, texts, student, length, vocabulary, content, loaded)
    for stage in job.stages:
        if stage.automatic is not None:
            of_stage = f" of stage {stage.name}" if stage.name else ""
            log(f"training{of_stage}: {stage.automatic} (train.epochs: auto)")
    return job


def reopen(recipe: Recipe, folder: Path, record: RunRecord) -> Job:
    """Return the job of the finished run in a folder, from its `record`.

    Its teachers are described by their caches and its student by its folder: no model has to exist for it any more.
    """
    logging.disable_progress_bar()
    store = ArtifactStore(cache_root(recipe))
    stated = with_earlier_dtypes(recipe, RunFolder(folder))
    recipe = with_local_tables(stated, store.root)

    descriptions = {}
    sections = teacher_sections(recipe)
    entries = [record.teacher, *record.more_teachers]
    for (key, section), entry in zip(sections.items(), entries, strict=True):
        descriptions[key] = _describe_recorded(recipe, key, section, entry, store)
        log_similarity(section, descriptions[key].info.normalized)

    texts = _load_texts(recipe, descriptions["teacher"].info, store)
    student, length = describe_saved(RunFolder(folder).student)
    # The decisions of the run that trained the student: the models that it was made from may be gone
    assert record.student is not None
    recipe = recipe.model_copy(update={"student": StudentSection.model_validate(record.student.settings)})
    return _make_job(recipe, stated, folder, store, descriptions, texts, student, length, None, "", LoadedModels())


def teacher_sections(recipe: Recipe) -> dict[str, TeacherSection]:
    """Return the section of every teacher by its key: teacher, more_teachers.0 and so on."""
    sections = {"teacher": recipe.teacher}
    for number, section in enumerate(recipe.more_teachers):
        sections[f"more_teachers.{number}"] = section
    return sections


@dataclass(frozen=True)
class _Texts:
    """What a job reads: tasks of the evaluation, labeled examples if the recipe has a task, and the corpus."""

    tasks: list[Task]
    examples: Examples | None
    corpus: Corpus


def _load_texts(recipe: Recipe, teacher: TeacherInfo, store: ArtifactStore) -> _Texts:
    tasks = load_tasks(recipe.evaluation, store, recipe.teacher)
    examples = load_examples(recipe, teacher, store)
    corpus = examples.corpus if examples is not None else load_corpus(recipe, teacher, tasks, store)
    return _Texts(tasks, examples, corpus)


def _describe_recorded(
    recipe: Recipe, key: str, section: TeacherSection, entry: TeacherRecord | None, store: ArtifactStore
) -> TeacherDescription:
    """Describe a teacher of a finished run by its cache; by its model where it has none, or where the method needs the
    model's layers.
    """
    if entry is not None and not entry.live and not section.live and entry.name and entry.fingerprint:
        cache = find_cache(recipe, store, entry.name, entry.fingerprint)
        if cache.manifest.tokens is None:
            return known_teacher(section, cache.manifest, entry)
    return describe_teacher(section, key, recipe.train.device, store)


def _make_job(
    recipe: Recipe, stated: Recipe, folder: Path, store: ArtifactStore, descriptions: Mapping[str, TeacherDescription],
    texts: _Texts, student: StudentInfo, length: int, vocabulary: StudentVocabulary | None, content: str,
    loaded: LoadedModels,
) -> Job:  # fmt: skip
    """Decide what the stages require of every teacher, the dropout, and the precision of the teachers."""
    examples = texts.examples
    rows = len(texts.corpus.train_rows) if examples is None else len(examples.labeled)
    stages = [with_length(stage, rows, examples is not None) for stage in training_stages(recipe, RunFolder(folder))]
    sections = teacher_sections(recipe)
    heads: dict[str, TaskHead | None] = {}
    other_task: DistilvecError | None = None  # a head of another task, which a method that reads no teacher ignores
    for key, section in sections.items():
        try:
            heads[key] = _head(section, key, examples)
        except DistilvecError as error:
            heads[key], other_task = None, error
    infos = {}
    for key, section in sections.items():
        infos[key] = replace(descriptions[key].info, weight=section.weight, logits=heads[key] is not None)

    # What the objectives require of a teacher, and what they leave open of the student
    task = None if examples is None else examples.info
    dims = tuple(recipe.student.dims or ())
    context = ObjectiveContext(student, tuple(infos.values()), task, head=_head_info(recipe), dims=dims)
    try:
        objectives = [make_objective(stage, context) for stage in stages]
    except DistilvecError as error:
        raise other_task or error from None
    required = OutputSpec()
    for objective in objectives:
        required |= required_outputs(objective, examples)
    if other_task is not None and required != OutputSpec():
        raise other_task
    recipe = recipe.model_copy(update={"student": with_dropout_choice(recipe.student, objectives)})

    teachers = []
    for key, section in sections.items():
        corpus = with_prompts(texts.corpus, infos[key].prompts, store.root / "keys")
        live = required != OutputSpec() and (section.live or bool(uncached(required)))
        manifest = _manifest(recipe, key, descriptions[key], required, context, length)
        embeddings = replace(descriptions[key].manifest, store_dtype=recipe.cache.dtype)
        if is_open(section):
            cached_texts = corpus if required != OutputSpec() and not live else None
            dtype = _choose_dtype(recipe, store, section, infos[key].name, manifest, cached_texts)
            section = section.model_copy(update={"dtype": dtype})
            manifest = with_dtype(manifest, section, dtype)
            embeddings = with_dtype(embeddings, section, dtype)
        counts = None
        if section.api is not None:
            counts = _counts_file(store, descriptions[key].manifest, texts.corpus)
        teacher = Teacher(
            key=key,
            section=section,
            info=infos[key],
            embeddings=embeddings,
            manifest=manifest,
            corpus=corpus,
            parameters=descriptions[key].parameters,
            live=live,
            head=heads[key],
            counts=counts,
            loaded=loaded,
        )
        teachers.append(teacher)
    _refuse(recipe, teachers, required)

    decided = [teacher.section for teacher in teachers]
    return Job(
        recipe=with_dtypes(recipe, decided),
        stated=with_dtypes(stated, decided),
        folder=folder,
        store=store,
        stages=tuple(stages),
        tasks=tuple(texts.tasks),
        examples=examples,
        corpus=texts.corpus,
        vocabulary=vocabulary,
        student=student,
        student_length=length,
        teachers=tuple(teachers),
        context=context,
        required=required,
        student_content=content,
        loaded=loaded,
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


def _head(section: TeacherSection, key: str, examples: Examples | None) -> TaskHead | None:
    """Read the head of a teacher that `distilvec finetune` trained. DistilvecError if it is that of another task."""
    found = load_head(Path(section.local_model)) if section.local_model and examples is not None else None
    if found is None or examples is None:
        return None
    head, classes = found
    if head.task != examples.info or classes != examples.classes:
        raise DistilvecError(
            f"{section.model} was fine-tuned for {head.task.kind} with classes {_listed(classes)}; the recipe's task "
            f"is {examples.info.kind} with classes {_listed(examples.classes)}, texts per example: "
            f"{head.task.texts_per_example} and {examples.info.texts_per_example}.",
            "Fine-tune the teacher on the same task: distilvec finetune.",
            key=f"{key}.model",
        )
    return head


def _listed(classes: Sequence[str]) -> str:
    return ", ".join(classes[:6]) + (", ..." if len(classes) > 6 else "") if classes else "none"


def _manifest(
    recipe: Recipe, key: str, found: TeacherDescription, required: OutputSpec, context: ObjectiveContext, length: int
) -> Manifest:
    """Return the manifest of everything that is required of a teacher."""
    info, made = found.info, replace(found.manifest, store_dtype=recipe.cache.dtype)
    if required.pre_dense or recipe.cache.pre_dense:
        if info.pre_dense_dim is None:
            asked = "the method requires" if required.pre_dense else "cache.pre_dense asks for"
            raise DistilvecError(
                f"{info.name} has no vectors from before a Dense layer, which {asked}.",
                "Take another teacher, or another method and cache.pre_dense=false.",
                key=key,
            )
        made = replace(made, pre_dense_width=info.pre_dense_dim)
    if required.logits or required.vector:
        made = replace(made, vector_width=info.hidden_size)
    if required.tokens is None:
        return made
    tokenizer = context.student.tokenizer or ""
    hidden = recipe.cache.hidden or required.tokens.precision
    settings = token_settings(required.tokens, hidden, info.hidden_size, tokenizer, length)
    return replace(made, tokens=settings)


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
    manifests = {dtype: with_dtype(manifest, section, dtype) for dtype in sorted(DTYPES, key=lambda one: one != chosen)}
    begun = begun_dtype(recipe, store, name, manifests, texts)
    if begun is not None and begun != chosen:
        log(f"teacher {name}: {begun}, as its cache was begun; this machine computes {chosen} faster (teacher.dtype)")
    return begun or chosen


def _counts_file(store: ArtifactStore, vectors: Manifest, corpus: Corpus) -> Path:
    """Return the file that counts what an API is asked for, for a teacher and a corpus."""
    return store.folder("api", f"{fingerprint(vectors.fingerprint, corpus.fingerprint)}.json")


def _refuse(recipe: Recipe, teachers: Sequence[Teacher], required: OutputSpec) -> None:
    """DistilvecError for a teacher without the required outputs, or with the same vectors as another one."""
    method = recipe.method.name
    inside = required.tokens or required.logits or required.vector or uncached(required)
    known: dict[str, Teacher] = {}
    for teacher in teachers:
        name = teacher.info.name
        if inside and teacher.section.local_model is None:
            kind, what = ("vectors", "a table of vectors") if teacher.section.api is None else ("api", "behind an API")
            raise DistilvecError(
                f"{name} is {what}; {method} also requires outputs from inside the model.",
                f"Set {teacher.key}.model alone, or choose a method that learns from embeddings alone.",
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
                f"{method} aligns the student's tokens with those of one teacher; found {len(teachers)}.",
                "Remove more_teachers, or choose another method.",
                key="more_teachers",
            )
        if (other := known.setdefault(teacher.embeddings.fingerprint, teacher)) is not teacher:
            raise DistilvecError(
                f"{name} gives the same vectors as {other.info.name} ({other.key}).",
                f"Leave one of them out, or change its weight ({other.key}.weight).",
                key=teacher.key,
            )


def log_live(job: Job) -> None:
    """Log the teachers that run in every step, with the reason."""
    found = uncached(job.required)
    for teacher in job.teachers:
        if teacher.live:
            why = (
                f"the method requires {', '.join(found)}, which no cache stores"
                if found
                else f"{teacher.key}.live is set"
            )
            log(f"teacher {teacher.info.name}: runs in every step ({why})")


def with_local_tables(recipe: Recipe, root: Path) -> Recipe:
    """The recipe with every teacher's index as a Parquet table, copied below `root` if it is none.

    Sources `builtin: teacher` become the table of the first teacher. Errors: DistilvecError for an index that cannot be
    read, and for such a source where the teacher is a model.
    """
    teacher = local_table(recipe.teacher, root)
    changes: dict[str, object] = {"teacher": teacher}
    if recipe.more_teachers:
        changes["more_teachers"] = [local_table(section, root) for section in recipe.more_teachers]
    if recipe.corpus is not None and any(source.builtin == "teacher" for source in recipe.corpus.sources):
        sources = [_table_source(source, row, teacher) for row, source in enumerate(recipe.corpus.sources)]
        changes["corpus"] = recipe.corpus.model_copy(update={"sources": sources})
    return recipe.model_copy(update=changes)


def _table_source(source: SourceSection, position: int, teacher: TeacherSection) -> SourceSection:
    """Return the source of the texts in the teacher's table in place of `builtin: teacher`; others as they are."""
    if source.builtin != "teacher":
        return source
    if teacher.vectors is None:
        raise DistilvecError(
            "the teacher is a model, without texts of its own.",
            "Give a path.",
            key=f"corpus.sources.{position}.builtin",
        )
    embedder = TableEmbedder(teacher)
    columns = embedder.table.names
    changes: dict[str, object] = {
        "builtin": None,
        "path": Path(teacher.vectors),
        "column": columns["text"],
        "origin": (teacher.columns or {}).get("origin"),
        "name": source.name or embedder.name.replace("/", "-"),
    }
    if "role" in columns and not source.where:
        changes["where"] = {columns["role"]: [source.role, None]}  # a row without a role counts for both
    return source.model_copy(update=changes)
