"""What a method is: an Objective that declares what it wants and turns it into named, per-example terms.

A new paper is one file `methods/yours.py` that defines exactly one Objective; the recipe's method.name is the file's
name (or a path to a file elsewhere), and the constructor's keywords are the recipe's method.options.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from jaxtyping import Float
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError, nearest
from distilvec.core.method_file import blamed, is_file, load_method_file, method_path
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.core.task_head import TaskHead, TaskInfo

Terms = dict[str, Float[Tensor, " batch"]]


@dataclass(frozen=True)
class Sizes:
    """What an objective may need to know to build its own parameters."""

    student_width: int  # of the student's hidden states
    student_layers: int
    teacher_width: int  # of the teacher's embedding
    normalized: bool = True  # the teacher's vectors have unit length
    teacher_hidden_width: int | None = None  # None where the teacher is a table of vectors or an API
    teacher_layers: int | None = None
    embedding_width: int | None = None  # of the student's embedding; None: the teacher's width
    task: TaskInfo | None = None  # None: unlabelled texts
    teacher_logits: bool = False  # the teacher was fine-tuned for the task and has its head
    same_tokenizer: bool = False  # student and teacher cut every text into the same tokens
    student_heads: int | None = None  # attention heads
    teacher_heads: int | None = None
    student_special: tuple[int, int] | None = None  # special tokens that begin and that end every text
    teacher_special: tuple[int, int] | None = None
    experts: int = 0  # of the student's mixture; 0: it has none
    teacher_weight: float = 1.0  # beside the others'
    others: tuple[OtherTeacher, ...] = ()  # further teachers, in the recipe's order
    pre_dense_width: int | None = (
        None  # of the teacher's vector before its first Dense layer; None: it has none, or it is not known
    )


@dataclass(frozen=True)
class OtherTeacher:
    """What an objective may need to know of a further teacher."""

    width: int
    normalized: bool = True
    hidden_width: int | None = None  # None where it is a table of vectors or an API
    layers: int | None = None
    weight: float = 1.0
    pre_dense_width: int | None = None  # of its vector before its first Dense layer


class Objective(nn.Module):
    """A method. Never runs a model: it declares its wants and receives them.

    Subclasses set `student_outputs`, `teacher_outputs` and `weights` in `__init__(self, sizes, **options)` and implement
    `forward`. Parameters that only help training live here; what ships lives in the student.
    On a labelled task (`sizes.task`) a method has a term called "task" and gets a head. Terms may be one a text where two
    texts are an example; they are averaged.
    `teacher_outputs` holds for each of a recipe's teachers; `several_teachers` says that `forward` reads the others' answers, too.
    `compatible` is False where the student's vectors have a space of their own: such a student keeps its own width, has no
    distance to the teacher's vectors and is not scored against the teacher's documents.
    """

    student_outputs: OutputSpec = OutputSpec(embedding=True)
    teacher_outputs: OutputSpec = OutputSpec(embedding=True)
    compatible: bool = True
    several_teachers: bool = False
    in_batch: bool = False  # compares examples with each other: needs batches of a fixed number of rows
    head: nn.Module | None  # of a labelled task; `student.logits` are its answer. build_objective puts it there
    weights: dict[str, float]
    products: torch.dtype | None = (
        None  # what large products may be made in: bf16 where the run trains so (the loop sets it)
    )
    citation: str = ""  # BibTeX, printed in the model card

    def __init__(self) -> None:
        super().__init__()
        self.head = None  # not a class attribute: that would hide the module

    def settle(self) -> None:
        """Called once, when the recipe's weights have been taken over: wants that only a term of weight 0 has go here."""

    def figures(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> dict[str, Float[Tensor, ""]]:
        """Numbers worth looking at, logged now and then beside the terms; without gradient."""
        return {}

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """Named, unweighted terms, one value per example; a term of weight 0 may be left out."""
        raise DistilvecError(
            f"[method.name] {type(self).__name__} does not implement forward. Add it to the method's file."
        )


def total(terms: Terms, weights: dict[str, float]) -> Float[Tensor, ""]:
    """The loss: the weighted sum of the terms' means. The one place where terms are reduced and weighted."""
    return torch.stack([weights[name] * values.mean() for name, values in terms.items()]).sum()


def total_each(terms: Terms, weights: dict[str, float]) -> Float[Tensor, " batch"]:
    """Each example's part of the loss; their mean is `total`."""
    return torch.stack([weights[name] * values for name, values in terms.items()]).sum(0)


def check_terms(objective: Objective, terms: Any, sizes: set[int]) -> None:
    """DistilvecError where `forward` gave anything but weighted terms with one value an example; `sizes` are their allowed lengths."""
    if isinstance(terms, dict) and terms and terms.keys() <= objective.weights.keys():
        wrong = {
            name: value
            for name, value in terms.items()
            if not isinstance(value, Tensor) or value.ndim != 1 or len(value) not in sizes
        }
        if not wrong:
            return
        name, value = next(iter(wrong.items()))
        found = (
            f"'{name}' of the shape {list(value.shape)}"
            if isinstance(value, Tensor)
            else f"'{name}', a {type(value).__name__}"
        )
    else:
        found = (
            f"the terms {', '.join(map(str, terms)) or 'none'}"
            if isinstance(terms, dict)
            else f"a {type(terms).__name__}"
        )
    place = type(objective).forward.__code__.co_filename
    raise DistilvecError(
        f"[method.name] {place}: forward of {type(objective).__name__} gave {found}; expected a dict of tensors of the shape "
        f"[{' or '.join(map(str, sorted(sizes)))}], each named in weights ({', '.join(objective.weights)}). Correct that file."
    )


def build_objective(name: str, options: dict[str, Any], weights: dict[str, float], sizes: Sizes) -> Objective:
    """The method `name` with its options; DistilvecError for an unknown method, option or term, or a value of another type."""
    method = method_class(name)
    with blamed(method_path(name) if is_file(name) else None):
        _check_options(name, method, options)
        make: Callable[..., Objective] = method
        objective = make(sizes, **options)
        if sizes.others and not method.several_teachers:
            raise DistilvecError(
                f"[more_teachers] {name} learns from one teacher; found {1 + len(sizes.others)}. Remove more_teachers, or take a method "
                "that can: redact, offline_cosine, distillmoe."
            )
        if sizes.task is not None:
            _add_head(objective, name, sizes)
        _refuse_unknown(weights, objective.weights, "method.weights", f"{name} has no term")
        objective.weights = {**objective.weights, **weights}
        if not any(objective.weights.values()):
            raise DistilvecError(
                f"[method.weights] every term of {name} has weight 0: {', '.join(objective.weights)}. Give one of them a weight."
            )
        objective.settle()
    return objective


def _add_head(objective: Objective, name: str, sizes: Sizes) -> None:
    assert sizes.task is not None
    if "task" not in objective.weights:
        raise DistilvecError(
            f"[method.name] {name} does not train on labels. Remove [task] from the recipe, or take another method."
        )
    objective.head = TaskHead(sizes.student_width, sizes.task)
    objective.student_outputs |= OutputSpec(vector=True)


def method_class(name: str) -> type[Objective]:
    """The one Objective that the method's file defines."""
    module = _method_module(name)
    found = [
        c
        for _, c in inspect.getmembers(module, inspect.isclass)
        if issubclass(c, Objective) and c.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise DistilvecError(
            f"[method.name] {name}: a method's file defines exactly one Objective; found {[c.__name__ for c in found]}."
        )
    return found[0]


def method_names() -> list[str]:
    """The methods that ship with distilvec: the files in methods/."""
    folder = Path(__file__).parents[1] / "methods"
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def _method_module(name: str) -> ModuleType:
    if is_file(name):
        return load_method_file(name)
    if name not in method_names():
        known = method_names()
        hint = nearest(name, known) or "."
        raise DistilvecError(
            f"[method.name] no method '{name}'{hint} Known: {', '.join(known)}, or a path to a .py file."
        )
    return importlib.import_module(f"distilvec.methods.{name}")


def _check_options(name: str, method: type[Objective], options: dict[str, Any]) -> None:
    """DistilvecError for an option that the constructor does not know, that it needs and that is not there, or of another type."""
    known = dict(list(inspect.signature(method.__init__).parameters.items())[2:])
    _refuse_unknown(options, known, "method.options", f"{name} has no option")
    for option, parameter in known.items():
        if (
            parameter.default is parameter.empty
            and option not in options
            and parameter.kind is not parameter.VAR_KEYWORD
        ):
            raise DistilvecError(f"[method.options.{option}] is missing, and {name} has no default for it. Set it.")
    hints = get_type_hints(method.__init__)
    for option, value in options.items():
        _check_option(option, value, hints.get(option, Any))


def _check_option(option: str, value: Any, kind: Any) -> None:
    """DistilvecError for a value that its annotation does not allow; a list may stand for a tuple, a whole number for a float."""
    try:
        TypeAdapter(kind, config={"arbitrary_types_allowed": True}).validate_json(
            json.dumps(value, default=str), strict=True
        )
    except ValidationError:
        raise DistilvecError(f"[method.options.{option}] found {value!r}; expected {_in_words(kind)}.") from None


def _in_words(kind: Any) -> str:
    """An annotation as a reader of recipes would put it."""
    plain = {
        float: "a number",
        int: "a whole number",
        bool: "true or false",
        str: "text",
        type(None): "null",
        dict: "a mapping",
    }
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin in (Union, UnionType):
        return " or ".join(map(_in_words, parts))
    if origin in (list, tuple, Sequence):
        return f"a list of these: {_in_words(parts[0])}"
    return plain.get(origin or kind, getattr(kind, "__name__", str(kind)))


def _refuse_unknown(given: Iterable[str], known: Iterable[str], where: str, problem: str) -> None:
    known = list(known)
    for key in given:
        if key not in known:
            raise DistilvecError(
                f"[{where}.{key}] {problem} '{key}'{nearest(key, known) or '.'} Known: {', '.join(known) or 'none'}."
            )
