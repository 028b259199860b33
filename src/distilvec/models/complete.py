"""A check that a folder's weights are those of its network: transformers fills gaps with random numbers."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from distilvec.core.errors import DistilvecError
from distilvec.models.unreadable import how_to_trust

_LOADING = threading.RLock()  # the method below is replaced for the whole process
_UNREAD = re.compile(r"(^|\.)pooler\.")  # BERT's layer for pairs of sentences, which many models lack and none reads
_LAYER = re.compile(r"\.\d+\.")


@contextmanager
def complete_weights(name: str, key: str) -> Iterator[None]:
    """Raise DistilvecError if a model that is read inside lacks weights, or has weights of layers that it leaves out.

    transformers draws weights that a file lacks at random, and drops layers beyond `num_hidden_layers`; it tells so in
    its log alone, or on request. The request is made here, since sentence-transformers does not hand it on.
    """
    reports: list[tuple[PreTrainedModel, bool, dict[str, Any]]] = []
    with _LOADING:
        original = PreTrainedModel.__dict__["from_pretrained"]

        def from_pretrained(cls: type[PreTrainedModel], *arguments: Any, **options: Any) -> Any:
            asked = options.pop("output_loading_info", False)
            model, report = original.__func__(cls, *arguments, output_loading_info=True, **options)
            has_adapter = getattr(model, "_hf_peft_config_loaded", False)  # until it is merged
            reports.append((model, has_adapter, report))
            return (model, report) if asked else model

        PreTrainedModel.from_pretrained = classmethod(from_pretrained)
        try:
            yield
        finally:
            PreTrainedModel.from_pretrained = original
    for model, has_adapter, report in reports:
        if has_adapter:
            _check_adapter(model, report, name, key)
        else:
            _check_weights(model, report, name, key)


def _check_weights(model: PreTrainedModel, report: dict[str, Any], name: str, key: str) -> None:
    # A class of transformers that has the name of the folder's own, and is of another version of the network
    untrusted = type(model).__module__.startswith("transformers.") and getattr(model.config, "auto_map", None)
    trust = f"{how_to_trust(key)}: its weights are for that code." if untrusted else None
    weights = set(model.state_dict())
    missing = sorted(weight for weight in report["missing_keys"] if not _UNREAD.search(weight))
    if missing:
        raise DistilvecError(
            f"{name} lacks {len(missing)} of the {len(weights)} weights that its config.json asks for, such as "
            f"{missing[0]}; they would be random numbers.",
            trust or "Copy the whole model again, or correct its config.json (num_hidden_layers).",
            key=key,
        )
    first_layer = {_LAYER.sub(".0.", weight) for weight in weights}
    surplus = sorted(weight for weight in report["unexpected_keys"] if _LAYER.sub(".0.", weight) in first_layer)
    if surplus:
        raise DistilvecError(
            f"{name} has weights of more layers than its config.json states, such as {surplus[0]}; they would be left "
            "out.",
            trust
            or "Correct num_hidden_layers in its config.json, or save the model with the layers that it is to have.",
            key=key,
        )


def _check_adapter(model: PreTrainedModel, report: dict[str, Any], name: str, key: str) -> None:
    misfits = sorted([*report["missing_keys"], *report["unexpected_keys"]])
    if misfits:
        raise DistilvecError(
            f"{name} is an adapter that does not fit its base ({type(model).__name__}): {len(misfits)} of its weights "
            f"and the base's layers do not meet, such as {misfits[0]}.",
            "Correct base_model_name_or_path in its adapter_config.json, copy the adapter again, or merge it by peft "
            "(merge_and_unload) and save the whole model.",
            key=key,
        )
