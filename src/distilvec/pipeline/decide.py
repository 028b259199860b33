"""What a recipe leaves open and the teacher, the texts or the machine decide: size, linear layer, precision."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from distilvec.config import recipe as recipes
from distilvec.config.recipe import fingerprint, section_of
from distilvec.config.schema import Recipe, Role, TeacherSection
from distilvec.config.student import StudentSection
from distilvec.core.artifacts import ArtifactStore, read_stored, store_json
from distilvec.core.device import fast_bf16, pick_device
from distilvec.core.errors import DistilvecError, about, user_error
from distilvec.core.info import TeacherInfo
from distilvec.core.model_name import ModelName
from distilvec.core.run_folder import RunFolder
from distilvec.core.storage import Remote
from distilvec.data.corpus import Corpus
from distilvec.formats.replace import read_record
from distilvec.models.checks import check_place
from distilvec.models.load import (
    SETTINGS,
    folder_of,
    hub_name,
    load_backbone,
    load_tokenizer,
    read_modules,
    resolve_model,
    role_prompts,
)
from distilvec.models.tokenizers import tokenizer_hash
from distilvec.pipeline.caches import cache_folder
from distilvec.pipeline.job import TeacherDescription
from distilvec.pipeline.texts import texts_by_language
from distilvec.students.after_pooling import has_own_modules, kept_modules, read_later_modules, why_not_kept
from distilvec.students.build import source_model
from distilvec.students.design import Budget, describe_split, design_student, parse_size
from distilvec.students.shape import count_tokens, count_weights, read_shape
from distilvec.teachers.cache.fill import count_missing, superset_caches
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.parts import is_part, part_folders
from distilvec.teachers.cache.store import MANIFEST, TeacherCache

KEY = "student.size"
FORMAT = 9  # of a stored design, raised with every change of the rule


@dataclass(frozen=True)
class SizedStudent:
    """A student section whose size has become layers, neurons, tokens and rank; `notes` say what was not possible."""

    section: StudentSection
    notes: tuple[str, ...]


def size_student(
    section: StudentSection,
    described: TeacherDescription,
    in_teacher_space: bool,
    corpus: Corpus,
    store: ArtifactStore,
) -> SizedStudent:
    """Design the student of `section.size`; see students/design.py.

    A percentage is a share of the teacher's parameters, also for layers of another model. Of a teacher whose parameters
    nobody here can count, a table or an API, it is a share of the model that the layers are taken from. The tokens of
    the corpus are counted once for a model and a corpus: the design is stored by both.
    """
    assert section.size is not None
    teacher = described.info
    model = source_model(section, teacher)
    if model is None:
        raise DistilvecError(
            "the teacher is no model on this machine, so that it has no layers to take.", "Name student.model.", key=KEY
        )
    with about(KEY):
        budget = parse_size(section.size)
    with about("student.model", model.name):
        shape = replace(read_shape(model), linear_dim=teacher.dim)
    # What follows the pooling as students/build.py makes it: in a space of its own only what is asked for
    if section.dense == "keep" or section.dense == "fold":
        dim = teacher.dim if in_teacher_space else None
        later_modules = read_later_modules(model)
        if why_not_kept(later_modules, section.pooling, dim) is None:  # else the student is refused when it is built
            kept_layers = kept_modules(later_modules, dim, fold=section.dense == "fold")
            shape = replace(shape, linear="keep", kept_parameters=count_weights(kept_layers))
    elif section.dense == "auto" and not in_teacher_space:
        shape = replace(shape, linear="never")
    else:
        shape = replace(shape, linear=section.dense)
    if section.model == "teacher":  # whose vectors may be cut (teacher.truncate_dim)
        shape = replace(shape, dim=min(shape.dim, teacher.dim))
    if budget.share is not None and section.model != "teacher" and described.parameters is not None:
        budget = Budget(int(budget.share * described.parameters))
    with about("student.model", model.name):
        tokenizer = load_tokenizer(model)
    parts = [FORMAT, repr(budget), section.is_static, repr(shape), corpus.fingerprint, tokenizer_hash(tokenizer)]
    file = store.folder("designs", f"{fingerprint(*parts)}.json")
    stored = read_stored(file, "design")
    if stored is None:
        tokens = count_tokens(tokenizer, texts_by_language(corpus))
        with about(KEY):
            design = design_student(shape, budget, tokens, static=section.is_static)
        stored = {"split": describe_split(design.split), "keys": design.student_keys(), "notes": list(design.notes)}
        store_json(file, stored)
    # The design's keys take the place of the size
    tree = section.model_dump(mode="json", exclude_unset=True, exclude={"size"})
    if stored["keys"].get("layers") == 0 and tree.get("dense") == "fold":
        del tree["dense"]  # a static student's table is made of the whole model
    sized = section_of(StudentSection, "student", {**tree, **stored["keys"]})
    return SizedStudent(sized, (stored["split"], *stored["notes"]))


def with_static_model(section: StudentSection, teacher: TeacherInfo) -> StudentSection:
    """Decide on `student.layers` for a student of a static model: it has that model's table, as it is, and no layers.

    Errors: DistilvecError for keys that would change the table.
    """
    source = source_model(section, teacher)
    if source is None or section.config is not None:
        return section
    with about("student.model", source.name):
        check_place(source.name)
        if not _is_static(source):
            return section
    stated = section.model_dump(mode="json", exclude_unset=True)
    for name in ("size", "vocabulary", "embedding", "layers"):
        if not stated.get(name):
            continue
        if section.model == "teacher":  # the size may be the default
            problem = f"{source} is a static model: no smaller student can be cut from it."
            raise DistilvecError(problem, "Name another model as student.model.", key="student.model")
        problem = f"{source} is a static model: a student keeps its table of tokens as it is."
        raise DistilvecError(problem, "Leave it out.", key=f"student.{name}")
    return section_of(StudentSection, "student", {**stated, "layers": 0})


def _is_static(source: ModelName) -> bool:
    """Whether the files of a model say that it begins with a table of tokens."""
    modules = read_modules(hub_name(source))
    return bool(modules) and modules[0]["type"].rpartition(".")[2] == "StaticEmbedding"


def with_linear_layer(section: StudentSection, description: TeacherDescription) -> StudentSection:
    """Decide on `student.dense: auto` for a student that is trained into the teacher's space.

    What is in this space already (the teacher's layers, what was made of them) keeps its modules after the pooling
    ('fold'), or gets a new layer ('always') where they cannot be kept, such as those behind another pooling. Another
    model gets a new layer, too. 'auto' stays without such modules, and for a fresh
    backbone or a static student of the teacher: a layer then follows where widths differ.
    """
    if section.dense != "auto" or section.config is not None:
        return section
    if section.model != "teacher":
        assert section.model is not None
        folder = _model_folder(ModelName(section.model, section.revision, section.trust_remote_code), "student.model")
        if not _is_model_of(description.info, folder) and not _is_made_of(description, read_record(folder)):
            return section.model_copy(update={"dense": "always"})
    source = source_model(section, description.info)
    if source is None:
        return section
    if section.is_static:
        return section.model_copy(update={"dense": "keep"}) if _is_static(source) else section
    with about("student.model", source.name):
        later_modules = read_later_modules(source)
    if not has_own_modules(later_modules):
        return section
    is_kept = why_not_kept(later_modules, section.pooling, description.info.dim) is None
    return section.model_copy(update={"dense": "fold" if is_kept else "always"})


def _model_folder(source: ModelName, key: str) -> Path:
    """Return the folder of a model, which is downloaded if it is not on this machine yet.

    A decision must not depend on whether it was: it is part of a run's fingerprint.
    """
    with about(key, source.name):
        check_place(source.name)
        folder = folder_of(source)[0]
        if folder is None:
            load_backbone(source)
            folder = folder_of(source)[0]
    return folder or Path(resolve_model(source.name))


def _is_model_of(teacher: TeacherInfo, folder: Path) -> bool:
    """Return whether a folder is that of the teacher's model.

    A folder has many spellings; in the hub's cache every revision of a model has its own.
    """
    if teacher.model is None:
        return False
    teacher_folder = folder_of(ModelName(teacher.model, teacher.revision))[0]
    return teacher_folder is not None and teacher_folder.resolve() == folder.resolve()


def _is_made_of(description: TeacherDescription, record: dict[str, Any] | None) -> bool:
    """Return whether a student or a transplanted model was made of this teacher, by its record; without one it was not.

    The weights decide: the folders of different models often have one name, such as `model`, and a folder may be
    renamed. Records of earlier versions have the name alone. Of an index or an API the name decides: an index grows,
    and a server moves, while the model stays.
    """
    if record is None:
        return False
    teacher = record.get("teacher")
    if not isinstance(teacher, dict):  # of a transplanted model
        teacher = {"name": teacher, "weights": record.get("weights")}
    if teacher.get("weights") is not None and description.info.model is not None:
        return bool(teacher["weights"] == description.manifest.weights)
    return teacher.get("name") == description.info.name


# -- a built-in prompt -------------------------------------------------------------------------------------------------


def with_built_in_prompt(recipe: Recipe, words: str | None = None) -> Recipe:
    """Return the recipe with the words of the built-in prompt, and a teacher that puts them before every text.

    The documents of an index keep their own prompt: its student embeds queries alone. `words` are those that a
    finished run has recorded. DistilvecError where one bare text would have no single vector, or no vector at all.
    """
    name = recipe.student.built_in_prompt
    if name is None:
        return recipe
    with about("student.built_in_prompt"):
        _check_built_in(recipe)
        words = words or prompt_words(recipe.teacher, name)
    prompts: dict[Role, str] = {"query": words, "document": words}
    if recipe.teacher.vectors is not None:
        prompts = {**(recipe.teacher.prompts or {}), "query": words}
    teacher = recipe.teacher.model_copy(update={"prompts": prompts})
    student = recipe.student.model_copy(update={"built_in_prompt": words})
    return recipe.model_copy(update={"teacher": teacher, "student": student})


def _check_built_in(recipe: Recipe) -> None:
    teacher = recipe.teacher
    parts = {"a labelled task": recipe.task, "several teachers": recipe.more_teachers, "pairs": recipe.pairs}
    for name, part in parts.items():
        if part:
            raise DistilvecError(f"is for one teacher of plain texts; the recipe has {name}.", "Leave it out.")
    if teacher.api is not None and teacher.api.by_role is not None:
        raise DistilvecError(
            "api.by_role tells queries from documents by their prompts, and every text would have this one.",
            "Leave api.by_role or the built-in prompt out.",
        )
    sources = recipe.corpus.sources if recipe.corpus is not None else []
    if teacher.vectors is not None and (teacher.made_by is None or any(source.role != "query" for source in sources)):
        raise DistilvecError(
            "an index holds only vectors of documents, not of queries with the prompt.",
            "Give query texts (--queries), and the model that made the index, which embeds them (--made-by).",
        )


def prompt_words(section: TeacherSection, name: str) -> str:
    """Return the words of a teacher's prompt of this name; what is no single word is words already.

    A word that names no prompt is refused: a typing error would be trained on as if it were a prompt.
    """
    prompts = teacher_prompts(section)
    if name in prompts:
        return prompts[name]
    if re.fullmatch(r"[\w.-]+", name):
        listed = ", ".join(f"{key} ({text!r})" for key, text in prompts.items()) or "none"
        raise DistilvecError(
            f"found {name!r}; the prompts of {section.model or section.vectors} are: {listed}.",
            "Name one of them, or give the words themselves, such as 'query: '.",
        )
    return name


def teacher_prompts(section: TeacherSection) -> dict[str, str]:
    """Return a teacher's prompts by their names: those of its files, then those of the recipe or its preset."""
    prompts: dict[str, str] = {}
    if section.local_model is not None and section.named_model is not None:
        file = _model_folder(section.named_model, "teacher.model") / SETTINGS
        if file.is_file():
            with about("teacher.model", file):
                stated = json.loads(file.read_text(encoding="utf-8")).get("prompts")
            prompts |= stated or {}
            prompts.update(role_prompts(stated).items())
    prompts.update((section.stated_prompts or {}).items())
    return {name: words for name, words in prompts.items() if words}


def built_in_line(recipe: Recipe, stated: TeacherSection) -> str | None:
    """Say what a bare text gets of a student with a built-in prompt, and what it does not; None without one.

    `stated` is the teacher before its prompts gave way (`with_built_in_prompt`).
    """
    words = recipe.student.built_in_prompt
    if words is None:
        return None
    line = f"{words!r} is built in: a text without a prompt gets the teacher's vector with it"
    if recipe.teacher.vectors is not None:
        return f"{line}. The student embeds queries alone, documents keep their stored vectors"
    prompts = teacher_prompts(stated)
    others = [f"{role} {prompts[role]!r}" for role in ("query", "document") if prompts.get(role, words) != words]
    if not others:
        return line
    return f"{line}, as a query and as a document. It cannot have two vectors: {' and '.join(others)} is not learned"


# -- the precision of teachers -----------------------------------------------------------------------------------------

Dtype = Literal["float32", "bfloat16"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")


def is_open(section: TeacherSection) -> bool:
    """Whether the precision of a teacher is still to be decided: that of a model on this machine alone."""
    return section.dtype == "auto" and section.local_model is not None


def hardware_dtype(device: str) -> Dtype:
    """Return the precision that the device computes faster; `device` as in train.device."""
    return "bfloat16" if fast_bf16(pick_device(device)) else "float32"


def with_dtype(manifest: Manifest, section: TeacherSection, dtype: str) -> Manifest:
    """Return a teacher's manifest for another precision."""
    words = [dtype] if section.quantize is None else [dtype, section.quantize]
    return replace(manifest, compute_dtype=" ".join(words))


def with_earlier_dtypes(recipe: Recipe, run: RunFolder) -> Recipe:
    """Return the recipe with the precisions that an earlier run in its folder has decided for the same teachers."""
    if not run.marker.exists() or not run.recipe.exists():
        return recipe
    try:
        earlier = recipes.load(run.recipe)
    except Exception as error:  # written by hand, or by another version: `claim_folder` compares it with this one
        if user_error(error) is None:
            raise
        return recipe
    sections = [recipe.teacher, *recipe.more_teachers]
    earlier_sections = [earlier.teacher, *earlier.more_teachers]
    settings = [section.model_dump(exclude={"dtype"}) for section in sections]
    if settings != [section.model_dump(exclude={"dtype"}) for section in earlier_sections]:
        return recipe
    return with_dtypes(recipe, earlier_sections)


def with_dtypes(recipe: Recipe, decided: Sequence[TeacherSection]) -> Recipe:
    """Return the recipe with the precisions of these sections, which are its teachers', where it leaves them open."""
    sections = [
        section.model_copy(update={"dtype": earlier.dtype}) if is_open(section) else section
        for section, earlier in zip([recipe.teacher, *recipe.more_teachers], decided, strict=True)
    ]
    return recipe.model_copy(update={"teacher": sections[0], "more_teachers": sections[1:]})


def begun_dtype(
    recipe: Recipe, store: ArtifactStore, teacher: str, manifests: Mapping[Dtype, Manifest], corpus: Corpus
) -> Dtype | None:
    """Return the precision in which a teacher's vectors of the corpus have been begun; None for none.

    Of two it is the one with more of the corpus's texts, on a tie the first of `manifests`. A remote cache comes before
    the folders on this machine.
    """
    folders = {
        dtype: cache_folder(recipe, store, teacher, manifest.fingerprint) for dtype, manifest in manifests.items()
    }
    if recipe.cache.remote is not None:
        with about("cache.remote"):
            names = Remote(recipe.cache.remote).folders()
        pushed = []
        for dtype, folder in folders.items():
            if any(name == folder.name or is_part(name, folder) for name in names):
                pushed.append(dtype)
        if len(pushed) == 1:
            return pushed[0]
    rows: dict[Dtype, int] = {}
    for dtype, folder in folders.items():
        count = _begun_rows(folder, manifests[dtype].fingerprint, corpus)
        if count is not None:
            rows[dtype] = count
    return max(rows, key=lambda dtype: rows[dtype], default=None)


def _begun_rows(folder: Path, fingerprint: str, corpus: Corpus) -> int | None:
    """Count the corpus's texts in a cache, or in one with more signals next to it; None if it has not been begun.

    A cache that holds other texts alone has not: its precision may be another machine's choice of long ago.
    """
    caches = superset_caches(folder, fingerprint)
    with suppress(DistilvecError, OSError):  # a damaged cache: reported when it is opened
        if (folder / MANIFEST).exists():
            cache = TeacherCache.open(folder)
            if fingerprint in (cache.manifest.fingerprint, *cache.manifest.subsets):
                caches.append(cache)
    rows = max((len(corpus) - count_missing(cache, corpus) for cache in caches), default=0)
    is_new = any(len(cache) == 0 for cache in caches) or bool(part_folders(folder))
    return rows if rows or is_new else None
