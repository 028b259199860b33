"""`student.size`: the layers, neurons, tokens and numbers per token of a student that is named by its size alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from distilvec.config.recipe import fingerprint, section_of
from distilvec.config.student import StudentSection
from distilvec.core.artifacts import ArtifactStore, read_stored, store_json
from distilvec.core.errors import DistilvecError
from distilvec.data.corpus import Corpus
from distilvec.models.load import load_tokenizer
from distilvec.models.tokenizers import tokenizer_hash
from distilvec.pipeline.describe import TeacherDescription
from distilvec.pipeline.texts import texts_by_language
from distilvec.students.after_pooling import kept_modules, read_later_modules, why_not_kept
from distilvec.students.build import source_name
from distilvec.students.design import Budget, describe, design_student, parse_size
from distilvec.students.shape import count_tokens, count_weights, read_shape

KEY = "student.size"
FORMAT = 8  # of a stored design, raised with every change of the rule


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
    Errors: DistilvecError for a size that is too small, with the least one.
    """
    assert section.size is not None
    teacher = described.info
    model, revision = source_name(section, teacher)
    if model is None:
        raise DistilvecError(
            "the teacher is no model on this machine, so that it has no layers to take.", "Name student.model.", key=KEY
        )
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": section.trust_remote_code}
    budget = parse_size(section.size, KEY)
    shape = replace(read_shape(model, "student.model", **options), linear_dim=teacher.dim)
    # What follows the pooling as students/build.py makes it: in a space of its own only what is asked for
    if section.dense == "keep" or section.dense == "fold":
        dim = teacher.dim if in_teacher_space else None
        later_modules = read_later_modules(model, revision)
        if why_not_kept(later_modules, section.pooling, dim) is None:  # else the student is refused when it is built
            kept = kept_modules(later_modules, dim, fold=section.dense == "fold")
            shape = replace(shape, linear="keep", kept_parameters=count_weights(kept))
    elif section.dense == "auto" and not in_teacher_space:
        shape = replace(shape, linear="never")
    else:
        shape = replace(shape, linear=section.dense)
    if section.model == "teacher":  # whose vectors may be cut (teacher.truncate_dim)
        shape = replace(shape, dim=min(shape.dim, teacher.dim))
    if budget.share is not None and section.model != "teacher" and described.parameters is not None:
        budget = Budget(int(budget.share * described.parameters))
    tokenizer = load_tokenizer(model, "student.model", **options)
    parts = [FORMAT, repr(budget), section.is_static, repr(shape), corpus.fingerprint, tokenizer_hash(tokenizer)]
    file = store.folder("designs", f"{fingerprint(*parts)}.json")
    stored = read_stored(file, "design")
    if stored is None:
        tokens = count_tokens(tokenizer, texts_by_language(corpus))
        design = design_student(shape, budget, tokens, static=section.is_static, key=KEY)
        stored = {"split": describe(design.split), "keys": design.student_keys(), "notes": list(design.notes)}
        store_json(file, stored)
    return SizedStudent(sized_section(section, stored["keys"]), (stored["split"], *stored["notes"]))


def sized_section(section: StudentSection, keys: dict[str, Any]) -> StudentSection:
    """Return the section with the design's keys in place of its size."""
    tree = section.model_dump(mode="json", exclude_unset=True, exclude={"size"})
    if keys.get("layers") == 0 and tree.get("dense") == "fold":  # a static student's table is made of the whole model
        del tree["dense"]
    return section_of(StudentSection, "student", {**tree, **keys})
