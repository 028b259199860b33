"""Adapters in PEFT's format, merged into a backbone's own weights (LLM2Vec's models are such adapters)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from distilvec.core.errors import DistilvecError, about
from distilvec.core.extras import require_extra
from distilvec.core.model_name import ModelName
from distilvec.models.checks import check_place, reading

CONFIG = "adapter_config.json"


def check_base(settings: Mapping[str, Any], name: str) -> None:
    """Raise DistilvecError for an adapter whose base is not where its adapter_config.json says, or not said at all."""
    base = settings.get("base_model_name_or_path")
    fix = f"Correct base_model_name_or_path in {CONFIG}."
    if not isinstance(base, str) or not base:
        raise DistilvecError(f"{name} is an adapter that does not say which model it belongs to.", fix)
    try:
        check_place(base)
    except DistilvecError as error:
        raise DistilvecError(f"{name} is an adapter, and its base is missing: {error.problem}", fix) from error


def merge_own_adapters(backbone: nn.Module) -> None:
    """Merge the adapters that a backbone has been loaded with into its weights, in place.

    What comes out is a plain network, which can be pruned, trained and saved.
    """
    if not getattr(backbone, "_hf_peft_config_loaded", False):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    for name, module in list(backbone.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge(safe_merge=True)
            backbone.set_submodule(name, module.get_base_layer())
        elif isinstance(module, ModulesToSaveWrapper):
            backbone.set_submodule(name, module.modules_to_save[module.active_adapter])
    backbone._hf_peft_config_loaded = False  # type: ignore[assignment]
    # `_weight_conversions` names weights as the adapter's file does, and transformers saves them by it
    for name in ("peft_config", "_weight_conversions"):
        vars(backbone).pop(name, None)
    backbone.requires_grad_(True)


def merge_adapters(backbone: PreTrainedModel, names: Sequence[str]) -> None:
    """Merge adapters, folders or hub ids, in place, each into the result of those before it."""
    if names:
        require_extra("finetune", "")
    for name in names:
        check_place(name)
        with reading(ModelName(name)), about("", name):
            _merge(backbone, name)
        backbone.requires_grad_(True)


def _merge(backbone: PreTrainedModel, name: str) -> None:
    from peft import PeftConfig, PeftModel

    config = PeftConfig.from_pretrained(name)
    if config.is_prompt_learning or not hasattr(config, "r"):
        kind = str(config.peft_type).rpartition(".")[2]
        raise DistilvecError(
            f"{name} is a {kind} adapter, which has no weights to merge. Expected one of low rank (LoRA)."
        )
    model = PeftModel(backbone, config)
    result = model.load_adapter(name, "default", torch_device=str(backbone.device))
    misfits = [*result.unexpected_keys, *result.missing_keys]
    if misfits:
        raise DistilvecError(
            f"{name} does not fit {type(backbone).__name__}: {len(misfits)} of its weights and the network's layers "
            f"do not meet, such as {misfits[0]}.",
            "Name an adapter of the network without its output layer.",
        )
    model.merge_and_unload(safe_merge=True)
    vars(backbone).pop("peft_config", None)
