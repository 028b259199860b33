"""The part of a recipe's schema about training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from distilvec.config.base import BatchTokens, Changes, Epochs, Rows, Section, Seed, Steps, key, refused

Rate = Annotated[float, Field(ge=0, lt=1)]
Factor = Annotated[float, Field(ge=0)]


class ScheduleSection(Section):
    """The learning rate over time (train/optimizer.py)."""

    name: Literal["cycles", "constant", "linear", "cosine", "stable"] = key(
        "cosine", "linear falls within each cycle, a constant rate, linear, cosine, or constant with a fall at the end"
    )
    cycles: Epochs = key(1, "'cycles' only: how often the rate is reset")
    warmup: float = key(0.05, "steps if at least 1, else a share of all steps; not for 'cycles'", ge=0)


class UpdateSection(Section):
    """The update of the weights (train/update.py): plain, or with the gradient found uphill (SAM, ASAM, DISAM)."""

    name: Literal["plain", "sam", "asam", "disam"] = key("plain", "kind of update")
    rho: float | None = key(None, "distance uphill; by default 0.05, for disam 0.01. Not for 'plain'", gt=0)
    eta: float | None = key(None, "'asam' only: scale weights by |w| + eta; by default all parameters by |w|", ge=0)
    every: Steps = key(1, "go uphill only in every n-th step")
    replay_dropout: bool = key(False, "the second pass has the dropout masks of the first")
    variance: float = key(0.1, "'disam' only: the weight of the variance of the sources' losses", ge=0)

    @property
    def radius(self) -> float:
        """rho, or its default."""
        if self.rho is not None:
            return self.rho
        return 0.01 if self.name == "disam" else 0.05

    @property
    def label(self) -> str:
        """In words, for records: "asam (rho 0.05)"."""
        if self.name == "plain":
            return self.name
        parts = [f"rho {self.radius:g}"]
        if self.name == "asam" and self.eta is not None:
            parts.append(f"eta {self.eta:g}")
        if self.name == "disam":
            parts.append(f"variance {self.variance:g}")
        if self.every > 1:
            parts.append(f"every {self.every} steps")
        if self.replay_dropout:
            parts.append("dropout replayed")
        return f"{self.name} ({', '.join(parts)})"


class TrainSection(Section):
    """Settings of training. Names follow Hugging Face's training arguments where one exists."""

    epochs: Annotated[int, Field(ge=0, le=1_000_000)] | Literal["auto"] = key(
        "auto",
        "passes over the training rows; 'auto': about 100,000 texts (50,000 labelled examples), at most 30 passes, and "
        "fewer steps if the distance to the teacher stops falling; 0: the student as it was fitted before training",
    )
    minutes: float | None = key(
        None, "train each stage for about this time on this machine, instead of epochs and max_steps", gt=0
    )
    max_steps: Steps | None = key(None, "end after n updates, whatever epochs says")
    batch_size: Rows = key(32, "texts in a micro-batch, over all processes")
    max_tokens: BatchTokens | None = key(
        None, "tokens of a micro-batch instead of batch_size; not for methods that compare texts"
    )
    window: Rows = key(50, "sort texts by length within windows of n batches")
    fixed_batches: bool = key(
        False,
        "form batches once, as in REDACT's paper; later epochs shuffle their order. Methods that compare texts then "
        "never read rows that do not fill a batch",
    )
    gradient_accumulation_steps: Rows = key(1, "micro-batches of one update")
    optimizer: Literal["adamw", "muon"] = key(
        "adamw", "'muon' trains the transformer's matrices with Muon, all else with AdamW"
    )
    learning_rate: float | None = key(
        None, "highest rate of the schedule; by default it follows from the student's distance before training", gt=0
    )
    final_learning_rate: float | None = key(
        None, "rate at the end of the schedule; by default 0, for 'cycles' a tenth of the highest rate", ge=0
    )
    learning_rate_factors: dict[str, Factor] = key({}, "multiply the rate of parameters whose name starts so")
    trainable: list[str] | None = key(None, "only parameters whose name starts so; all by default", min_length=1)
    schedule: ScheduleSection = ScheduleSection()
    weight_decay: float = key(0.01, "weight decay of AdamW and Muon", ge=0)
    betas: tuple[Rate, Rate] = key((0.9, 0.999), "betas of AdamW")
    max_grad_norm: float | None = key(None, "clip the gradient to this norm", gt=0)
    update: UpdateSection = UpdateSection()
    precision: Literal["auto", "fp32", "bf16"] = key("auto", "'auto' takes bf16 autocast where the hardware has it")
    device: Literal["auto", "cpu", "cuda", "mps"] = key("auto", "'auto' takes a GPU if torch finds one")
    shard: bool = key(
        False, "several processes: each holds its part of the student and of live teachers (FSDP): docs/cluster.md"
    )
    gradient_checkpointing: bool = key(False, "less memory, more time")
    compile: bool = key(False, "torch.compile")
    seed: Seed = key(0, "the seed of weights, order and dropout")
    logging_steps: Steps = key(50, "a line of metrics every n steps")
    gradient_steps: Steps | None = key(
        None, "log the norm of each term's gradient every n steps; a backward pass a term"
    )
    checkpoint_minutes: float = key(5.0, "minutes between checkpoints", gt=0)
    checkpoint_steps: Steps | None = key(None, "also a checkpoint every n steps")
    validation_steps: Steps | None = key(
        None, "validate every n steps and after every epoch; by default validation takes 5% of the time"
    )
    keep_checkpoint: bool = key(False, "keep the last checkpoint and the last weights when the run is finished")
    keep_students: int | None = key(None, "save n students along the way, evenly spread, in students/", gt=0, le=10000)
    trackers: list[Literal["tensorboard", "trackio", "wandb"]] = key([], "where metrics go as well")

    def rate_cycles(self, passes: int) -> list[range]:
        """Return the epochs of each cycle of the rate in a training of so many passes; none without such cycles.

        Where they are not equal the last ones are longer, so that the training ends at the lowest rate. Fewer passes
        than cycles are cycles of one epoch.
        """
        if self.schedule.name != "cycles":
            return []
        starts = sorted({number * passes // self.schedule.cycles for number in range(self.schedule.cycles)})
        return [range(start, end) for start, end in zip(starts, [*starts[1:], passes], strict=True)]

    @property
    def passes(self) -> int:
        """Epochs as a number: of a section whose length is decided (pipeline/resolve.py, pipeline/train.py)."""
        assert self.epochs != "auto"
        return self.epochs

    @model_validator(mode="after")
    def check_minutes(self) -> TrainSection:
        """Refuse a second statement of the length, and a schedule that minutes cannot be fitted to."""
        if self.minutes is None:
            return self
        if self.epochs != "auto":
            raise refused("minutes", "train.epochs states the length already. Set epochs=auto, or remove minutes")
        if self.max_steps is not None:
            raise refused("minutes", "train.max_steps states the length already. Remove one of them")
        if self.schedule.name == "cycles":
            raise refused("minutes", "'cycles' falls at the ends of epochs. State epochs, or set another schedule.name")
        return self

    @model_validator(mode="after")
    def check_shard(self) -> TrainSection:
        """Refuse what cannot be trained in shards."""
        if self.shard and self.update.name != "plain":
            raise refused("shard", f"{self.update.name} moves whole weights. Set update.name=plain, or shard=false")
        if self.shard and self.optimizer == "muon":
            raise refused("shard", "Muon takes whole matrices. Set optimizer=adamw, or shard=false")
        if self.shard and self.compile:
            raise refused("shard", "compiled layers cannot be sharded. Set compile=false, or shard=false")
        return self


class StageSection(Section):
    """One stage of training: the recipe with some keys changed, starting from the weights of the stage before."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$", description="short; names the stage's folder")
    set: Changes = key({}, "dotted keys under method and train, with their values in this stage")
