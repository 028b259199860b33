"""What the design of a student needs of a model and of texts: the model's sizes, and the tokens that the texts use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from distilvec.core.errors import DistilvecError, about
from distilvec.core.model_name import ModelName
from distilvec.models.checks import reading, refuse_several_parts
from distilvec.models.load import (
    adapter_settings,
    check_kind,
    first_module,
    hub_name,
    load_tokenizer,
)
from distilvec.models.tokenizers import plain_copy
from distilvec.students.after_pooling import has_own_modules, read_later_modules, width_behind
from distilvec.students.design import ModelShape, TokensUsed
from distilvec.students.factorize import check_factorizable
from distilvec.students.layers import layer_list
from distilvec.students.narrow import feed_forward_names

if TYPE_CHECKING:
    from distilvec.vocabulary.choose import Texts

ENCODER_DECODERS = ("t5", "mt5", "umt5")


def read_shape(model: ModelName) -> ModelShape:
    """Read the sizes of a model, a folder or hub id, from its configuration and tokenizer; no backbone is loaded.

    `linear_dim` is that of a student in the model's own space: set it for a student of another teacher.
    """
    backbone = _backbone(model)
    later_modules = read_later_modules(model)
    tokenizer = load_tokenizer(model)
    no_trimming = "" if plain_copy(tokenizer) else "its tokenizer has no fast form (tokenizer.json)."

    hidden_size = backbone.config.get_text_config().hidden_size
    dim = width_behind(later_modules) if has_own_modules(later_modules) else hidden_size
    return _shape_of(
        backbone,
        name=Path(model.name).name,
        dim=dim,
        linear_dim=dim,
        dense_parameters=count_weights(later_modules),
        no_trimming=no_trimming,
    )


def read_width(model: ModelName) -> int:
    """Read the hidden size of a model from its configuration alone, without its tokenizer, which may be large."""
    width: int = _backbone(model).config.get_text_config().hidden_size
    return width


def count_weights(modules: Sequence[nn.Module]) -> int:
    """Return the number of weights of several modules."""
    return sum(weight.numel() for module in modules for weight in module.parameters())


def _backbone(model: ModelName) -> PreTrainedModel:
    """Return a model's backbone without weights."""
    with reading(model):
        check_kind(model)
        source = hub_name(model)
        adapter = adapter_settings(model)
        if adapter is None:
            config = AutoConfig.from_pretrained(source.name, subfolder=first_module(source), **source.options)
        else:  # of the adapter's base, whose revision is its own
            base = adapter["base_model_name_or_path"]
            config = AutoConfig.from_pretrained(base, trust_remote_code=model.trusted)
        backbone = _without_weights(config, model.trusted)
        refuse_several_parts(backbone, model.name)
        return backbone


def count_tokens(tokenizer: PreTrainedTokenizerBase, texts: Mapping[str, Texts]) -> TokensUsed:
    """Count the tokens that texts use, by language, as a vocabulary trimmed to them has them."""
    from distilvec.vocabulary.pieces import Pieces
    from distilvec.vocabulary.trim import Words, trim, unseen

    with about("student.model"):
        pieces = Pieces(tokenizer, "the model's tokenizer")
    words = {language: Words(read(), pieces) for language, read in texts.items()}
    trimmed = trim(pieces, words, None, "seen")
    kept = {pieces.vocabulary[token] for token in trimmed.tokenizer.get_vocab()}

    # Every language has the same weight, as in the choice of the tokens that stay.
    shares = np.zeros(len(pieces.tokens))
    for part in words.values():
        counts = part.tokens(pieces)
        shares += counts / max(1, counts.sum())
    frequencies = np.sort(shares[shares > 0])[::-1]
    used = {int(number) for number in np.flatnonzero(shares)}
    possible = len(kept) + len(unseen(pieces, used, kept))
    return TokensUsed(len(kept), trimmed.figures["least"], frequencies.tolist(), possible)


def _shape_of(backbone: PreTrainedModel, **settings: Any) -> ModelShape:
    """Return the sizes of a backbone, whose weights may be on the meta device."""
    config = backbone.config.get_text_config()
    table = backbone.get_input_embeddings().weight
    neurons = layer = neuron = positions = other = 0

    no_pruning = _refusal(lambda: layer_list(backbone))
    layers_name = ""
    if not no_pruning:
        layers_name, modules = layer_list(backbone)
        sizes = [sum(weight.numel() for weight in module.parameters()) for module in modules]
        layer = max(sizes[1:] or sizes)
        # A first layer that differs (ModernBERT's lacks a norm) is in every student, and so is the difference.
        other = sizes[0] - layer

    no_narrowing = no_pruning or _refusal(lambda: feed_forward_names(backbone))
    if not no_narrowing:
        names, into, out = feed_forward_names(backbone)
        first = backbone.get_submodule(names[0])
        neurons = config.intermediate_size
        readers = first.get_submodule(out).get_parameter("weight").numel()
        writers = sum(weight.numel() for part in into for weight in first.get_submodule(part).parameters())
        neuron = (readers + writers) // neurons

    for name, weight in backbone.named_parameters():
        if weight is table or (layers_name and name.startswith(f"{layers_name}.")):
            continue
        if name.startswith("embeddings."):
            positions += weight.numel()
        else:
            other += weight.numel()

    return ModelShape(
        architecture=backbone.config.model_type,
        hidden_size=config.hidden_size,
        layers=config.num_hidden_layers,
        neurons=neurons,
        vocabulary=table.shape[0],
        row_size=table.shape[1],
        position_parameters=positions,
        layer_parameters=layer,
        neuron_parameters=neuron,
        other_parameters=other,
        no_factorizing=_refusal(lambda: check_factorizable(backbone)),
        no_pruning=no_pruning,
        no_narrowing=no_narrowing,
        **settings,
    )


def _without_weights(config: PretrainedConfig, trusted: bool) -> PreTrainedModel:
    """Build the encoder of a configuration on the meta device, where weights have shapes and take no memory."""
    # sentence-transformers loads the encoder alone, too
    auto = AutoModelForTextEncoding if config.model_type in ENCODER_DECODERS else AutoModel
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        backbone: PreTrainedModel = auto.from_config(config, trust_remote_code=trusted)
    return backbone


def _refusal(check: Callable[[], Any]) -> str:
    """Return why a model does not allow a change; empty if it does."""
    try:
        check()
    except DistilvecError as error:
        return error.problem
    return ""
