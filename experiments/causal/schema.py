"""The schema of a causal recipe, read with the same YAML, variants and overrides as other recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from distilvec.config import recipe as recipes
from distilvec.config.base import MOST_ROWS, MOST_TOKENS, FolderOrId, Name, Section, Seed, WorkingPath, explain, invalid
from distilvec.config.schema import MethodSection
from distilvec.config.student import ExpertsSection
from distilvec.config.training import TrainSection

INSTRUCTION = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n"
)
INSTRUCTION_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n"
)
RESPONSE = "### Response:\n"


class CausalTeacherSection(Section):
    """The teacher: a causal language model. It runs in every step."""

    model: FolderOrId = Field(description="folder or hub id")
    revision: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"


class CausalStudentSection(Section):
    """The trained language model: `model`, or a fresh one from `config`. The experts help training and do not ship."""

    model: FolderOrId | None = Field(None, description="folder or hub id")
    config: dict[str, Any] | None = Field(None, description="a fresh model: a transformers config with 'model_type'")
    tokenizer: FolderOrId | None = Field(None, description="only with 'config': folder or hub id")
    revision: str | None = None
    experts: ExpertsSection | None = Field(None, description="on the mean of the response's last hidden states")

    @model_validator(mode="after")
    def one_origin(self) -> CausalStudentSection:
        """Refuse none or two of 'model' and 'config', and a fresh model without a tokenizer."""
        if (self.model is None) == (self.config is None):
            raise ValueError("give exactly one of 'model' and 'config'")
        if self.config is not None and (self.tokenizer is None or "model_type" not in self.config):
            raise ValueError("a fresh student ('config') needs a 'tokenizer', and in its config a 'model_type'")
        return self


class CausalDataSection(Section):
    """Tables of instructions: prompt | instruction (and input | context) and response | output."""

    train: Path
    holdout: Path | None = Field(None, description="by default holdout_rows of the training file, by seed")
    holdout_rows: int | None = Field(None, gt=0, description="by default as corpus.validation_rows of other recipes")
    tests: dict[Name, Path] = Field(default_factory=dict, description="files to answer at the end, by name")
    template: str = Field(INSTRUCTION + RESPONSE, description="the prompt of a row without input")
    template_with_input: str = INSTRUCTION_WITH_INPUT + RESPONSE
    max_prompt: int = Field(256, gt=0, le=MOST_TOKENS, description="tokens of a prompt, by either tokenizer")
    max_length: int = Field(512, gt=1, le=MOST_TOKENS, description="tokens of prompt and response; truncates responses")
    long_prompts: Literal["refuse", "drop"] = "refuse"
    seed: Seed = Field(0, description="of the validation rows")

    @model_validator(mode="after")
    def check_data(self) -> CausalDataSection:
        """Refuse templates without their fields and a limit that leaves no room for a response."""
        for name in ("template", "template_with_input"):
            for field in ("{instruction}", "{input}") if "with_input" in name else ("{instruction}",):
                if field not in getattr(self, name):
                    raise ValueError(f"{name} must contain {field}")
        if self.max_prompt >= self.max_length:
            raise ValueError(f"max_prompt ({self.max_prompt}) leaves no room in max_length ({self.max_length})")
        return self


class CausalMethodSection(MethodSection):
    """A method's options and the weights of its terms; 'task' is next-token cross-entropy."""

    name: Literal["distillmoe", "uld", "mined", "multilevel_ot", "dskd"] = "distillmoe"


class GenerationSection(Section):
    """Greedy decoding of the test files."""

    max_new_tokens: int = Field(256, gt=0, le=MOST_TOKENS)
    batch_size: int = Field(16, gt=0, le=MOST_ROWS)


class CausalRecipe(Section):
    """A whole experiment on causal language models. Without a teacher the student learns from the responses alone."""

    name: Name
    description: str = ""
    paper: str | None = None
    output: WorkingPath = Field(Path("runs"))
    teacher: CausalTeacherSection | None = None
    student: CausalStudentSection
    data: CausalDataSection
    method: CausalMethodSection = CausalMethodSection()
    train: TrainSection = TrainSection()
    generation: GenerationSection = GenerationSection()


def load_causal(path: Path, variant: str | None = None, overrides: list[str] | None = None) -> CausalRecipe:
    """Read a causal recipe as `recipe.load` reads others, with the same rules for relative paths.

    Errors: DistilvecError with every problem that was found.
    """
    tree = recipes.resolved_tree(path, variant, overrides, CausalRecipe)
    try:
        return CausalRecipe.model_validate(tree)
    except ValidationError as error:
        raise invalid("recipe", str(path), explain(error, CausalRecipe)) from None
