"""What of a starting model stands behind its backbone and is kept: pooling, linear layers, and what lies between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distilvec.config.schema import StudentSection
from distilvec.core.errors import DistilvecError


def kept_modules(section: StudentSection, modules: Sequence[Any], width: int, teacher_width: int | None) -> list[Any]:
    """A model's pooling and all that follows but its closing Normalize, with their weights: the modules themselves.

    `modules` are those behind the backbone, whose states are `width` wide; `teacher_width` is None where the student has a
    space of its own.
    Errors: DistilvecError for a model without linear layers or with another pooling than the recipe asks for, for linear
    layers that begin at another width than the backbone's or end at another than the teacher's.
    """
    kept = list(modules)
    while kept and type(kept[-1]).__name__ == "Normalize":
        kept.pop()
    kinds = [type(module).__name__ for module in kept]
    if kinds[:1] != ["Pooling"] or "Dense" not in kinds:
        raise DistilvecError(
            f"[student.dense] 'keep' finds no linear layers to keep in {section.model}: behind its backbone stands "
            f"{', then '.join(kinds) or 'nothing'}; expected Pooling, then Dense. Set student.dense to auto, or name a "
            "SentenceTransformer that has them."
        )
    pooling, linear = kept[0], [module for module in kept if type(module).__name__ == "Dense"]
    if section.pooling not in ("mean", pooling.pooling_mode):
        raise DistilvecError(
            f"[student.pooling] found '{section.pooling}'; with student.dense=keep the pooling is that of {section.model}, "
            f"'{pooling.pooling_mode}'. Leave the key out."
        )
    if linear[0].in_features != width:
        raise DistilvecError(
            f"[student.dense] 'keep' needs linear layers that read vectors of the backbone's width, {width}; those of {section.model} "
            f"read {linear[0].in_features}. Set student.dense to auto."
        )
    if teacher_width is not None and linear[-1].out_features != teacher_width:
        raise DistilvecError(
            f"[student.dense] the linear layers of {section.model} end at width {linear[-1].out_features}, the teacher's vectors have "
            f"{teacher_width}. Set student.dense to auto for a linear layer to the teacher's width, or take a teacher of that width."
        )
    return kept
