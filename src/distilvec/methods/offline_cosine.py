"""Offline embedding distillation: the cosine distance to vectors of the teacher that were computed once, before training.

Paper: "Adapting Multilingual Embedding Models to Turkish via Cross-Lingual Tokenizer Surgery and Offline Distillation",
sections 3.3 and 3.4. Its two targets, teacher_embedding_final and teacher_embedding_pre_dense, lie in one cache: that of a
recipe with target "pre_dense" holds both, and one with target "final" reads from it what it needs.
"""

from __future__ import annotations

from typing import Literal

from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Sizes
from distilvec.losses.distance import cosine_distance
from distilvec.methods.base.embedding_regression import Pointwise


class OfflineCosine(Pointwise):
    """cosine: 1 - cos of the student's vector and the teacher's cached one (eq. 3).

    Options: `target` is "final", the vectors that the models give, or "pre_dense", those before their first Dense layer. Then
    the student's linear layers learn nothing: they must be the teacher's (`student.dense: keep`), or be trained on the final
    vectors in a further stage. Of several teachers each has a term, for either target; see Pointwise.
    Errors: DistilvecError where "pre_dense" meets a teacher without a Dense layer, or a student of another width.

    Note: the text under eq. 3 calls the loss largest for orthogonal vectors; it is 1 for them and 2 for opposite ones.
    """

    citation = r"""@misc{embeddingmagibu2026,
  title = {Adapting Multilingual Embedding Models to Turkish via Cross-Lingual Tokenizer Surgery and Offline Distillation},
  author = {Bayram, M. Ali and Diri, Banu and Y{\i}ld{\i}r{\i}m, Sava{\c s}},
  year = {2026},
  eprint = {2605.29992},
  archivePrefix = {arXiv}
}"""

    def __init__(self, sizes: Sizes, target: Literal["final", "pre_dense"] = "final") -> None:
        if target == "pre_dense":
            _check_pre_dense(sizes)
        super().__init__(sizes, "cosine", cosine_distance, "pre_dense" if target == "pre_dense" else "embedding")


def _check_pre_dense(sizes: Sizes) -> None:
    """DistilvecError where a teacher has no vectors before a Dense layer, or the student's have another width than the first one's."""
    teachers = {
        "teacher": sizes.pre_dense_width,
        **{f"more_teachers.{n}": other.pre_dense_width for n, other in enumerate(sizes.others)},
    }
    for key, width in teachers.items():
        if width is None:
            raise DistilvecError(
                f"[method.options.target] 'pre_dense' needs vectors from before a Dense layer, and [{key}] has none: a model without such "
                "a layer, or a table without the column teacher_embedding_pre_dense. Set target to final, or take another teacher."
            )
    if sizes.pre_dense_width != sizes.student_width:
        raise DistilvecError(
            f"[method.options.target] 'pre_dense' compares vectors of one width; before their Dense layers the student's have "
            f"{sizes.student_width} dimensions, the teacher's {sizes.pre_dense_width}. Take a student of the teacher's hidden width "
            "(student.model=teacher), or set target to final."
        )
