"""Contexts of objectives for tests: students and teachers described by a few fields, without a model."""

from __future__ import annotations

from dataclasses import replace

from distilvec.core.info import ObjectiveContext, StudentInfo, TeacherInfo

DEFAULT = ObjectiveContext(StudentInfo(32, 2), (TeacherInfo(24),))
KEEP = object()


def make_context(base: ObjectiveContext = DEFAULT, *, others=None, task=KEEP, same_tokenizer=None, **fields):
    """`base` with other fields: student_x of the student, teacher_x of the first teacher; `others` are further
    teachers.
    """
    given = {
        model: {name.removeprefix(f"{model}_"): value for name, value in fields.items() if name.startswith(model)}
        for model in ("student", "teacher")
    }
    assert sum(map(len, given.values())) == len(fields), fields
    if same_tokenizer is not None:
        given["student"]["tokenizer"], given["teacher"]["tokenizer"] = "one", "one" if same_tokenizer else "another"
    return ObjectiveContext(
        replace(base.student, **given["student"]),
        (replace(base.teacher, **given["teacher"]), *(base.teachers[1:] if others is None else others)),
        base.task if task is KEEP else task,
    )
