"""The part of a recipe's schema that says how the student is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from distilvec.config.base import CHANGES, MOST_BATCH_TOKENS, MOST_EPOCHS, MOST_ROWS, MOST_STEPS, Section, Seed

Rate = Annotated[float, Field(ge=0, lt=1)]
Factor = Annotated[float, Field(ge=0)]


class ScheduleSection(Section):
    """The learning rate over time (train/optimizer.py)."""

    name: Literal["cycles", "constant", "linear", "cosine"] = "cycles"
    cycles: int = Field(1, gt=0, le=MOST_EPOCHS, description="'cycles' only: how often the rate is reset")
    warmup: float = Field(
        0.0, ge=0, le=MOST_STEPS, description="steps if at least 1, else a share of all steps; not for 'cycles'"
    )


class UpdateSection(Section):
    """How a step changes the weights (train/update.py): at once, or with the gradient found uphill (SAM, ASAM, DISAM)."""

    name: Literal["plain", "sam", "asam", "disam"] = "plain"
    rho: float | None = Field(
        None, gt=0, description="how far uphill; by default 0.05, for disam 0.01. Not for 'plain'"
    )
    eta: float | None = Field(
        None,
        ge=0,
        description="'asam' only: scale by |w| + eta, and only parameters called 'weight'; by default all by |w|",
    )
    every: int = Field(
        1, gt=0, le=MOST_STEPS, description="go uphill in every so many steps only; the others are plain"
    )
    replay_dropout: bool = Field(False, description="the second pass sees the dropout masks of the first")
    variance: float = Field(0.1, ge=0, description="'disam' only: the weight of the variance of the sources' losses")

    @property
    def radius(self) -> float:
        """rho, or what it is by default."""
        return self.rho if self.rho is not None else 0.01 if self.name == "disam" else 0.05

    @property
    def label(self) -> str:
        """In words, for records: "asam (rho 0.05)"."""
        if self.name == "plain":
            return self.name
        parts = [f"rho {self.radius:g}"]
        parts += [f"eta {self.eta:g}"] if self.name == "asam" and self.eta is not None else []
        parts += [f"variance {self.variance:g}"] if self.name == "disam" else []
        parts += [f"every {self.every} steps"] if self.every > 1 else []
        parts += ["dropout replayed"] if self.replay_dropout else []
        return f"{self.name} ({', '.join(parts)})"


class TrainSection(Section):
    """How the student is trained. Names follow Hugging Face's training arguments where one exists."""

    epochs: int = Field(30, gt=0, le=MOST_EPOCHS)
    max_steps: int | None = Field(None, gt=0, le=MOST_STEPS)
    batch_size: int = Field(32, gt=0, le=MOST_ROWS, description="texts in a micro-batch")
    max_tokens: int | None = Field(
        None,
        gt=0,
        le=MOST_BATCH_TOKENS,
        description="token budget of a micro-batch instead of batch_size; not for methods that compare texts",
    )
    window: int = Field(
        50, gt=0, le=MOST_ROWS, description="texts are sorted by length within windows of so many batches"
    )
    gradient_accumulation_steps: int = Field(1, gt=0, le=MOST_ROWS)
    learning_rate: float = Field(1e-4, gt=0)
    final_learning_rate: float = Field(1e-5, ge=0)
    learning_rate_factors: dict[str, Factor] = Field(
        default_factory=dict, description="multiplies the rate of parameters whose name starts so"
    )
    trainable: list[str] | None = Field(
        None,
        min_length=1,
        description="train only parameters whose name starts so (encoder.model.2 is the linear layer); all by default",
    )
    schedule: ScheduleSection = ScheduleSection()
    weight_decay: float = Field(0.01, ge=0)
    betas: tuple[Rate, Rate] = (0.9, 0.999)
    max_grad_norm: float | None = Field(None, gt=0)
    update: UpdateSection = UpdateSection()
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="'auto' takes bf16 autocast where the hardware has it"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    gradient_checkpointing: bool = False
    compile: bool = False
    seed: Seed = 0
    logging_steps: int = Field(50, gt=0, le=MOST_STEPS)
    checkpoint_minutes: float = Field(
        5.0, gt=0, le=MOST_STEPS, description="a resumable checkpoint at least so often, and after every epoch"
    )
    checkpoint_steps: int | None = Field(
        None, gt=0, le=MOST_STEPS, description="a checkpoint every so many steps as well"
    )
    keep_students: int | None = Field(
        None, gt=0, le=10_000, description="keep so many students along the way, evenly spread, in students/"
    )
    trackers: list[Literal["tensorboard", "trackio", "wandb"]] = Field(default_factory=list)


class StageSection(Section):
    """One stage of training: the recipe with some keys set anew, begun where the stage before it ended."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$", description="short; names the stage's folder")
    set: dict[str, Any] = Field(
        default_factory=dict,
        description="dotted keys under method and train, with their values in this stage",
        json_schema_extra=CHANGES,
    )
