"""What a method may need of its two models, and the errors for those that have it not."""

from __future__ import annotations

from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Sizes


def require_layers(method: str, sizes: Sizes) -> tuple[int, int]:
    """The teacher's number of layers and the width of its hidden states; DistilvecError where it has none to look into."""
    if sizes.teacher_layers is None or sizes.teacher_hidden_width is None:
        raise DistilvecError(
            f"[method.name] {method} reads the teacher's layers, and a table of vectors or an API has none to read. "
            "Give a local model as teacher.model, or take a method that needs vectors alone, such as redact."
        )
    return sizes.teacher_layers, sizes.teacher_hidden_width


def require_same_tokenizer(method: str, sizes: Sizes) -> None:
    """DistilvecError unless student and teacher cut every text into the same tokens."""
    if not sizes.same_tokenizer:
        raise DistilvecError(
            f"[method.name] {method} compares student and teacher token position by token position, so their tokenizers must "
            "match, and these two cut texts differently. Take a student with the teacher's tokenizer (student.model: teacher), "
            "or a method that needs no match: redact on vectors, emo on aligned tokens."
        )


def require_same_heads(method: str, term: str, sizes: Sizes) -> None:
    """DistilvecError unless student and teacher have the same number of attention heads."""
    if sizes.student_heads is None or sizes.student_heads != sizes.teacher_heads:
        raise DistilvecError(
            f"[method.name] the {term} term of {method} compares attention head by head, so their numbers must match; found "
            f"{_number(sizes.student_heads)} in the student and {_number(sizes.teacher_heads)} in the teacher. Take a student with as "
            "many heads, or the method minilm with the option relation_heads (MiniLM v2), which cuts both models anew into so many heads."
        )


def _number(heads: int | None) -> str:
    return "no known number" if heads is None else str(heads)
