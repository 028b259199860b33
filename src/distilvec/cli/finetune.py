"""The verb `distilvec finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from distilvec.cli.model_options import TrustRemoteCode
from distilvec.cli.options import Overrides, Restart

POOLINGS = ("mean", "cls", "lasttoken")


def finetune(
    model: Annotated[str, typer.Argument(help="The model to fine-tune: a SentenceTransformer folder or id.")],
    task: Annotated[
        Path, typer.Option(help="Labelled rows: a file with a column split, or a folder with one file a split.")
    ],
    kind: Annotated[
        str,
        typer.Option("--type", help="classification (text, label), pair (sentence1, sentence2, label) or sts (score)."),
    ],
    out: Annotated[Path, typer.Option(help="The run folder; the fine-tuned model is its student/.")],
    overrides: Overrides = None,
    encode: Annotated[str, typer.Option(help="A pair as one input (joint), or its texts apart (separate).")] = "joint",
    lora: Annotated[
        bool, typer.Option(help="Train low-rank adapters, merged into the model that is saved; or all weights.")
    ] = True,
    r: Annotated[int, typer.Option("--r", help="Rank of the adapters.")] = 256,
    alpha: Annotated[float, typer.Option(help="Scale of the adapters, over their rank.")] = 32.0,
    dropout: Annotated[float, typer.Option(help="Dropout before the adapters.")] = 0.1,
    epochs: Annotated[int, typer.Option(help="Passes over the training rows.")] = 3,
    learning_rate: Annotated[Optional[float], typer.Option(help="By default 2e-3 with adapters, 2e-5 without.")] = None,
    batch_size: Annotated[int, typer.Option(help="Examples in a step.")] = 32,
    restart: Restart = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Fine-tune a teacher on a labelled task, with its head; run again to resume.

    The folder it leaves is a teacher for recipes on the same task: teacher.model=OUT/student. Keys of the recipe can be changed
    as for `distilvec run`, such as task.limit=2000.
    """
    from distilvec.config import recipe as recipes
    from distilvec.core.extras import require_extra
    from distilvec.core.files import check_output_folder

    changes = recipes.read_overrides(overrides or [])
    if changes.get("student.lora", lora):
        require_extra("finetune", "--lora")
    check_output_folder(out, "--out")

    from distilvec.cli.terminal import show_problems, show_result
    from distilvec.config.paths import resolve_tree
    from distilvec.config.schema import Recipe
    from distilvec.pipeline.run import Run

    settings = {"r": r, "alpha": alpha, "dropout": dropout} if lora else None
    tree = finetune_recipe(model, task, kind, encode, settings, trust_remote_code)
    rate = learning_rate if learning_rate is not None else 2e-3 if lora else 2e-5
    tree["name"] = out.resolve().name or "finetune"
    tree["train"] |= {"epochs": epochs, "learning_rate": rate, "batch_size": batch_size}
    tree = resolve_tree(tree, Path.cwd(), Recipe)
    for key, value in changes.items():
        recipes.set_key(tree, key, value)
    result = Run(recipes.validate(tree), out, restart).execute()
    if result is not None:
        show_result(result)
        show_problems(result.problems)


def finetune_recipe(
    model: str, task: Path, kind: str, encode: str, lora: dict[str, Any] | None, trust: bool = False
) -> dict[str, Any]:
    """The recipe of a fine-tuning as plain data: the teacher's own backbone, pooling and length, trained on labels alone."""
    from distilvec.config.schema import TeacherSection
    from distilvec.teachers.model import load_teacher

    teacher = load_teacher(TeacherSection(model=model, trust_remote_code=trust), "cpu", key="model")
    modes = {str(module.pooling_mode) for module in teacher.model if type(module).__name__ == "Pooling"}
    pooling = next((mode for mode in POOLINGS if modes == {mode}), "mean")
    trusted = {"trust_remote_code": True} if trust else {}
    return {
        "name": "finetune",
        "description": "Fine-tunes a teacher on a labelled task.",
        "teacher": {"model": model, **trusted},
        "student": {"model": "teacher", "pooling": pooling, "max_length": teacher.max_length, "lora": lora, **trusted},
        "task": {"type": kind, "path": str(task), "encode": encode},
        "method": {"name": "task"},
        "train": {"schedule": {"name": "linear", "warmup": 0.1}, "max_grad_norm": 1.0, "precision": "fp32"},
        "evaluation": {},
    }
