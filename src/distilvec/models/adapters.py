"""Adapters in PEFT's format, merged into a backbone's own weights (LLM2Vec's models are such adapters)."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel

from distilvec.core.errors import DistilvecError
from distilvec.core.extras import require_extra
from distilvec.models.unreadable import readable

KEY = "teacher.adapters"


def merge_adapters(backbone: PreTrainedModel, names: Sequence[str]) -> None:
    """Merge adapters, folders or hub ids, in place, each into the result of those before it.

    Errors: DistilvecError for an adapter that cannot be read, is not of low rank, or belongs to another network.
    """
    if names:
        require_extra("finetune", KEY)
    for name in names:
        with readable(name, KEY, "adapter"):
            _merge(backbone, name)
        backbone.requires_grad_(True)


def _merge(backbone: PreTrainedModel, name: str) -> None:
    from peft import PeftConfig, PeftModel

    config = PeftConfig.from_pretrained(name)
    if config.is_prompt_learning or not hasattr(config, "r"):
        kind = str(config.peft_type).rpartition(".")[2]
        raise DistilvecError(
            KEY, f"{name} is a {kind} adapter, which has no weights to merge. Expected one of low rank (LoRA)."
        )
    model = PeftModel(backbone, config)
    result = model.load_adapter(name, "default", torch_device=str(backbone.device))
    misfits = [*result.unexpected_keys, *result.missing_keys]
    if misfits:
        raise DistilvecError(
            KEY,
            f"{name} does not fit {type(backbone).__name__}: {len(misfits)} of its weights and the network's layers "
            f"do not meet, such as {misfits[0]}.",
            "Name an adapter of the network without its output layer.",
        )
    model.merge_and_unload(safe_merge=True)
    vars(backbone).pop("peft_config", None)
