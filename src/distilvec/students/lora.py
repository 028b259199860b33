"""Low-rank adapters (LoRA, through peft) of the backbone's linear layers; merged into them in every saved student."""

from __future__ import annotations

import copy
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from distilvec.config.student import LoraSection
from distilvec.core.errors import DistilvecError, nearest
from distilvec.core.extras import require_extra

FROZEN = "adapters_only"  # set on a backbone whose own weights stay as they are
_PART = "lora_"  # in the names of all weights of adapters


def add_adapters(model: SentenceTransformer, section: LoraSection, seed: int) -> None:
    """Put adapters into the model's backbone and freeze its own weights; later modules are trained as before.

    The adapters are drawn from `seed` and change nothing before they are trained. Poolers (which no embedding comes
    from) get none.
    """
    require_extra("finetune", "student.lora")
    from peft import LoraConfig, inject_adapter_in_model

    backbone: Any = model[0].auto_model
    linear = []
    for name, module in backbone.named_modules():
        if isinstance(module, nn.Linear) and "pooler" not in name:
            linear.append(name)
    for target in section.targets or ():
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            names = sorted({name.rsplit(".", 1)[-1] for name in linear})
            hint = nearest(target, names) or "."
            raise DistilvecError(f"no layer '{target}'{hint} Known: {names}.", key="student.lora.targets")
    config = LoraConfig(
        r=section.r, lora_alpha=section.alpha, lora_dropout=section.dropout, target_modules=section.targets or linear
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, backbone)
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(_PART in name)
    setattr(backbone, FROZEN, True)


def merged(model: SentenceTransformer) -> SentenceTransformer:
    """The model itself if it has no adapters, else a copy with the adapters merged into plain linear layers."""
    if not getattr(getattr(model[0], "auto_model", None), FROZEN, False):
        return model
    model = copy.deepcopy(model)
    backbone: Any = model[0].auto_model
    for name, module in list(backbone.named_modules()):
        if hasattr(module, "lora_A") and hasattr(module, "merge"):
            module.merge()
            parent, _, child = name.rpartition(".")
            setattr(backbone.get_submodule(parent), child, module.get_base_layer())
    for name in (FROZEN, "peft_config"):
        if hasattr(backbone, name):
            delattr(backbone, name)
    for parameter in backbone.parameters():
        parameter.requires_grad_(True)
    return model


def base_weights(module: nn.Module) -> set[str]:
    """Names in the module's state of the weights that have adapters and so never change."""
    names = set()
    for prefix, part in module.named_modules():
        if not getattr(part, FROZEN, False):
            continue
        for name in part.state_dict():
            if _PART not in name:
                names.add(f"{prefix}.{name}" if prefix else name)
    return names
