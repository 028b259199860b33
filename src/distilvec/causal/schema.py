"""The schema of a causal recipe, and how one is read: the same YAML, variants and changes as of other recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from distilvec import recipe as recipes
from distilvec.errors import DistilvecError
from distilvec.schema import ExpertsSection
from distilvec.schema_train import TrainSection
from distilvec.section import Section

ASK = "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
ASK_ON = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
)


class CausalTeacherSection(Section):
    """The teacher: a causal language model. It runs in every step."""

    model: str = Field(description="folder or hub id")
    revision: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"


class CausalStudentSection(Section):
    """The language model that is trained: `model`, or a fresh one from `config`. The experts help training and do not ship."""

    model: str | None = Field(None, description="folder or hub id")
    config: dict[str, Any] | None = Field(None, description="a fresh model: a transformers config with 'model_type'")
    tokenizer: str | None = Field(None, description="only with 'config': folder or hub id of the tokenizer")
    revision: str | None = None
    experts: ExpertsSection | None = Field(None, description="on the mean of the response's last hidden states; unused without a teacher")

    @model_validator(mode="after")
    def one_origin(self) -> CausalStudentSection:
        """Refuse none or two of 'model' and 'config', and a fresh model without a tokenizer."""
        if (self.model is None) == (self.config is None):
            raise ValueError("give exactly one of 'model' and 'config'")
        if self.config is not None and (self.tokenizer is None or "model_type" not in self.config):
            raise ValueError("a fresh student ('config') needs a 'tokenizer', and in its config a 'model_type'")
        return self


class CausalDataSection(Section):
    """Instructions with responses: JSONL with prompt | instruction (and input | context) and response | output."""

    train: Path
    holdout: Path | None = Field(None, description="by default holdout_rows of the training file, by seed")
    holdout_rows: int = Field(500, gt=0)
    tests: dict[str, Path] = Field(default_factory=dict, description="files to answer at the end, by name; ROUGE-L is reported")
    template: str = Field(ASK + "### Instruction:\n{instruction}\n\n### Response:\n", description="the prompt of a row without input")
    template_with_input: str = ASK_ON + "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
    max_prompt: int = Field(256, gt=0, description="tokens of a prompt, by either tokenizer")
    max_length: int = Field(512, gt=1, description="tokens of prompt and response; longer responses are cut")
    long_prompts: Literal["refuse", "drop"] = "refuse"
    seed: int = Field(0, ge=0, description="of the held-out rows")

    @model_validator(mode="after")
    def holds_together(self) -> CausalDataSection:
        """Refuse templates without their fields and a limit that leaves no room for a response."""
        for name, text, fields in (
            ("template", self.template, ["{instruction}"]),
            ("template_with_input", self.template_with_input, ["{instruction}", "{input}"]),
        ):
            if missing := [field for field in fields if field not in text]:
                raise ValueError(f"{name} must contain {' and '.join(missing)}")
        if self.max_prompt >= self.max_length:
            raise ValueError(f"max_prompt ({self.max_prompt}) leaves no room for a response in max_length ({self.max_length})")
        return self


class CausalMethodSection(Section):
    """DistillMoE's options and the weights of its terms (methods/distillmoe.py), 'task' being next-token cross-entropy."""

    name: Literal["distillmoe"] = "distillmoe"
    options: dict[str, Any] = Field(default_factory=dict)
    weights: dict[str, float] = Field(default_factory=dict)


class GenerationSection(Section):
    """Greedy decoding of the test files."""

    max_new_tokens: int = Field(256, gt=0)
    batch_size: int = Field(16, gt=0)


class CausalRecipe(Section):
    """A whole experiment on causal language models. Without a teacher the student learns from the responses alone."""

    name: str
    description: str = ""
    paper: str | None = None
    output: Path = Path("runs")
    teacher: CausalTeacherSection | None = None
    student: CausalStudentSection
    data: CausalDataSection
    method: CausalMethodSection = CausalMethodSection()
    train: TrainSection = TrainSection()
    generation: GenerationSection = GenerationSection()


def load_causal(path: Path, variant: str | None = None, overrides: list[str] | None = None) -> CausalRecipe:
    """Read a causal recipe as `recipe.load` reads others; paths and models that start with '.' are relative to its folder.

    Errors: DistilvecError with every problem that was found.
    """
    tree = recipes.resolved_tree(path, variant, overrides)
    try:
        recipe = CausalRecipe.model_validate(tree)
    except ValidationError as error:
        listed = "\n".join(f"  {problem}" for problem in recipes.explain(error, section=CausalRecipe))
        raise DistilvecError(f"{path}: the causal recipe does not hold together.\n{listed}") from None
    return _resolve_paths(recipe, path.parent.resolve())


def _resolve_paths(recipe: CausalRecipe, folder: Path) -> CausalRecipe:
    def fix(path: Path) -> Path:
        return (folder / path.expanduser()).resolve()

    def fix_model(model: str | None) -> str | None:
        return str((folder / model).resolve()) if model and model.startswith(".") else model

    data, student, teacher = recipe.data, recipe.student, recipe.teacher
    files = {"train": fix(data.train), "tests": {name: fix(path) for name, path in data.tests.items()}}
    files["holdout"] = fix(data.holdout) if data.holdout else None
    return recipe.model_copy(
        update={
            "data": data.model_copy(update=files),
            "student": student.model_copy(update={"model": fix_model(student.model), "tokenizer": fix_model(student.tokenizer)}),
            "teacher": teacher and teacher.model_copy(update={"model": fix_model(teacher.model)}),
        }
    )
