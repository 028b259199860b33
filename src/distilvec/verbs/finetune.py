"""The command `distilvec finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from distilvec.cli.options import (
    JsonFile,
    Model,
    Overrides,
    Restart,
    TrustRemoteCode,
    changed_files,
    check_input,
    check_model_path,
    check_outputs,
    names_by_key,
    option,
    option_keys,
)
from distilvec.cli.output import write_result
from distilvec.core.errors import DistilvecError, about, set_by


def finetune(
    model: Model,
    task: Annotated[
        Path, option("Labelled rows: a file with a column split, or a folder with one file a split.", key="task.path")
    ],
    kind: Annotated[
        str,
        option("classification (text, label), pair (two sentences, label) or sts (score).", "--type", key="task.type"),
    ],
    out: Annotated[Path, option("The run folder; the fine-tuned model is its student/.")],
    overrides: Overrides = None,
    encode: Annotated[
        str, option("Encode a pair as one input (joint), or its texts separately (separate).", key="task.encode")
    ] = "joint",
    lora: Annotated[bool, option("Train low-rank adapters, merged into the saved model, or train all weights.")] = True,
    r: Annotated[int | None, option("Rank of the adapters; 256 by default.", key="student.lora.r")] = None,
    alpha: Annotated[
        float | None, option("Scale of the adapters, over their rank; 32 by default.", key="student.lora.alpha")
    ] = None,
    dropout: Annotated[
        float | None, option("Dropout before the adapters; 0.1 by default.", key="student.lora.dropout")
    ] = None,
    epochs: Annotated[int | None, option("Passes over the training rows; 3 by default.", key="train.epochs")] = None,
    batch_size: Annotated[
        int | None,
        option("Texts in a micro-batch, over all processes; 32 by default.", key="train.batch_size"),
    ] = None,
    learning_rate: Annotated[
        float | None, option("By default 2e-3 with adapters, 2e-5 without.", key="train.learning_rate")
    ] = None,
    restart: Restart = False,
    trust_remote_code: TrustRemoteCode = False,
    json_file: JsonFile = None,
) -> None:
    """Fine-tune a teacher on a labelled task.

    The same command resumes. The result is a teacher for recipes on the same task: teacher.model=OUT/student. Change
    recipe keys as with `distilvec run`: task.limit=2000,
    teacher.pooling=mean for a plain Hugging Face model, teacher.adapters and teacher.attention=bidirectional for
    LLM2Vec.
    """
    from distilvec.config import recipe as recipes
    from distilvec.config.base import as_name
    from distilvec.core.extras import require_extra
    from distilvec.core.files import check_output_folder

    check_model_path(model, "model")
    changes = recipes.read_overrides(overrides or [])
    check_outputs([("--json", json_file)], [model, task, *changed_files(changes)])
    stated_adapters: dict[str, Any] = {"r": r, "alpha": alpha, "dropout": dropout}
    adapters = {name: value for name, value in stated_adapters.items() if value is not None}
    about_adapters = [f"--{name}" for name in adapters] + [name for name in changes if name.startswith("student.lora.")]
    if about_adapters and not lora:
        raise DistilvecError("is for adapters, and --no-lora trains none.", "Leave it out.", key=about_adapters[0])
    train: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    recipes.check_stated_once(option_keys(finetune), {**adapters, **train, "task": task, "kind": kind}, changes)
    adapted = changes.get("student.lora", lora)
    if adapted:
        require_extra("finetune", "--lora")
    with about("--out", out):
        check_output_folder(out)

    tree = finetune_recipe(model, task, kind, encode, adapters if lora else None, trust_remote_code)
    defaults = {"epochs": 3, "batch_size": 32, "learning_rate": 2e-3 if adapted else 2e-5}
    tree["train"] |= defaults | {name: value for name, value in train.items() if value is not None}
    tree["name"] = as_name(out.resolve().name, "finetune")
    with set_by(names_by_key(finetune) | {"teacher.model": "model", "student.model": "model"}):
        recipe = recipes.recipe_from(tree, changes, "distilvec finetune")
        check_input(task, "task.path")

        from distilvec.cli.terminal import show_end
        from distilvec.pipeline.run import run as run_recipe

        result = run_recipe(recipe, out, restart)
    if result is not None:
        write_result(json_file, result.to_json())
        show_end(result)


def finetune_recipe(
    model: str, task: Path, kind: str, encode: str, lora: dict[str, Any] | None, trust: bool = False
) -> dict[str, Any]:
    """The recipe of a fine-tuning: the teacher's own backbone, trained on labels alone."""
    trusted = {"trust_remote_code": True} if trust else {}
    return {
        "name": "finetune",
        "description": "Fine-tunes a teacher on a labelled task.",
        "teacher": {"model": model, **trusted},
        "student": {"model": "teacher", "lora": lora, **trusted},
        "task": {"type": kind, "path": str(task), "encode": encode},
        "method": {"name": "task"},
        "train": {"schedule": {"name": "linear", "warmup": 0.1}, "max_grad_norm": 1.0, "precision": "fp32"},
        "evaluation": {},
    }
