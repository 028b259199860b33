"""A causal language model that answers `OutputSpec`, as students/encoder.py's Encoder does for embedding models."""

from __future__ import annotations

import inspect
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.experimental.causal.data import IGNORED, Tokens
from distilvec.experimental.causal.schema import CausalRecipe, CausalTeacherSection
from distilvec.models.experts import Experts
from distilvec.models.load import load_tokenizer
from distilvec.models.unreadable import check_weights, readable
from distilvec.students.dropout import install_fast_dropout
from distilvec.students.encoder import Encoder
from distilvec.students.pooling import full_precision, pool_states, pooling_weights


@dataclass(frozen=True)
class CausalEncoded(ModelOutputs):
    """What a causal model answers: `vector` and `embedding` are the mean of the response's last hidden states, `mask` is True at
    the response's tokens. `losses` are next-token cross-entropies (nats), averaged over each text's response; None of a teacher."""

    losses: Float[Tensor, " batch"] | None = None


class CausalEncoder(Encoder):
    """A causal language model whose inside can be read, with the experts that help its training. The model's weights are not copied.

    OutputSpec that a language model has no answer to are refused; `logits` asks for the losses.
    """

    def __init__(self, model: PreTrainedModel, experts: Experts | None = None) -> None:
        nn.Module.__init__(self)
        self.model, self.mixture = model, experts
        config = model.config.get_text_config()
        self.layers, self.hidden_size = config.num_hidden_layers, config.hidden_size
        self.experts = experts.experts if experts is not None else 0
        self.positions = "position_ids" in inspect.signature(model.forward).parameters
        self.tied = tied_weights(self)
        self.register_state_dict_post_hook(_leave_out_tied)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_put_back_tied)  # type: ignore[no-untyped-call]
        install_fast_dropout(model)

    @property
    def backbone(self) -> Any:
        """The language model."""
        return self.model

    @property
    def pooling(self) -> str:
        """How the model pools its last layer."""
        return "mean"

    def forward(
        self, batch: TextBatch, required: OutputSpec, attention_rows: Int[Tensor, "batch rows"] | None = None
    ) -> CausalEncoded:
        """One pass over prompts and responses; `batch.tokens` has `labels`, which are -100 but at the response."""
        if (
            required.second_view
            or required.attention_layers
            or required.projection_layers
            or required.pooled_layers
            or required.pre_dense
        ):
            raise DistilvecError(
                f"[method.name] a causal language model is not asked for {required}. Use another method."
            )
        tokens = dict(batch.tokens)
        labels = tokens.pop("labels")
        if self.positions and "attention_mask" in tokens:  # so that padding on the left moves nothing
            tokens["position_ids"] = (tokens["attention_mask"].cumsum(-1) - 1).clamp_min(0)
        network = self.model if required.logits else self.model.base_model  # without logits, which are large
        output = network(**tokens, output_hidden_states=True, use_cache=False, return_dict=True)
        mask = labels != IGNORED
        hidden = {*required.hidden_layers, *(required.tokens.hidden if required.tokens else ())}
        pooled = required.embedding or required.vector or required.experts
        vector = pool_states(output.hidden_states[-1], pooling_weights(mask, "mean")) if pooled else None
        found = {}
        if required.experts:
            assert self.mixture is not None and vector is not None
            with torch.autocast(vector.device.type, enabled=False):
                found = self.mixture({"sentence_embedding": vector})
        return CausalEncoded(
            embedding=vector if required.embedding else None,
            vector=vector,
            hidden_layers={number: full_precision(output.hidden_states[self._layer(number)]) for number in hidden},
            mask=mask,
            gates=found.get("gates"),
            experts=found.get("experts"),
            losses=response_losses(output.logits, labels) if required.logits else None,
        )


def response_losses(
    logits: Float[Tensor, "batch tokens vocabulary"], labels: Int[Tensor, "batch tokens"]
) -> Float[Tensor, " batch"]:
    """The mean cross-entropy of each text's response tokens, each predicted from what stands before it.

    Note: texts count alike; transformers' own loss counts tokens alike, so that long responses weigh more there.
    """
    with torch.autocast(logits.device.type, enabled=False):
        each = F.cross_entropy(logits[:, :-1].mT.float(), labels[:, 1:], ignore_index=IGNORED, reduction="none")
    return each.sum(1) / (labels[:, 1:] != IGNORED).sum(1).clamp_min(1)


class CausalTeacher:
    """Runs the teacher in every step, in evaluation mode, without gradient and in its own precision; fp32 comes out.

    Nothing of a causal teacher is cached: the states of all response tokens of several layers are far larger than the texts.
    """

    def __init__(self, model: PreTrainedModel, tokens: Tokens, required: OutputSpec) -> None:
        self.encoder, self.tokens, self.required = CausalEncoder(model.eval().requires_grad_(False)), tokens, required

    @torch.no_grad()
    def signals(self, batch: TextBatch) -> CausalEncoded:
        """What is wanted of the batch's rows, in the teacher's own tokens."""
        tokens = self.tokens.batch(batch.rows.cpu().numpy())
        own = TextBatch(batch.rows, tokens, batch.sources).to(batch.rows.device)
        with torch.autocast(batch.rows.device.type, enabled=False):
            return self.encoder.to(batch.rows.device)(own, self.required)


class NoTeacher:
    """Stands where a student learns from the responses alone."""

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """Nothing."""
        return ModelOutputs()


# -- loading and saving ----------------------------------------------------------------------------------------------


def load_teacher_model(section: CausalTeacherSection) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The teacher and its tokenizer; errors as `_loaded`."""
    return _loaded("teacher.model", section.model, section.revision, getattr(torch, section.dtype))


def build_student_model(recipe: CausalRecipe) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The untrained student in fp32; a fresh one is drawn from the recipe's seed and is as large as its tokenizer's vocabulary."""
    section = recipe.student
    if section.model is not None:
        return _loaded("student.model", section.model, section.revision, torch.float32)
    assert section.config is not None and section.tokenizer is not None
    tokenizer = load_tokenizer(section.tokenizer, "student.tokenizer", revision=section.revision)
    try:
        special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
        config = AutoConfig.for_model(**{"vocab_size": len(tokenizer), **special, **section.config})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.train.seed)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, ZeroDivisionError) as error:
        reason = first_line(error).rstrip(".")
        raise DistilvecError(
            f"[student.config] no causal language model can be built from it: {reason}. Look at its settings."
        ) from None
    return model, tokenizer


def _loaded(
    key: str, name: str, revision: str | None, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model and its tokenizer from a folder or the hub; DistilvecError where there is none, or no causal language model."""
    with readable(name, key, "causal language model"):
        tokenizer = load_tokenizer(name, key, revision=revision)
        model = AutoModelForCausalLM.from_pretrained(name, revision=revision, dtype=dtype, trust_remote_code=False)
        check_weights(model, name, key)
    return model, tokenizer


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write model and tokenizer as a plain transformers folder, whole or not at all (`recover_student` ends a swap that was cut short)."""
    new, old = (folder.with_name(f".{folder.name}.{word}") for word in ("new", "old"))
    _remove(new)
    model.save_pretrained(new)
    tokenizer.save_pretrained(new)
    if folder.exists():
        _remove(old)
        folder.rename(old)
    new.rename(folder)
    _remove(old)


def check_fit(key: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    """DistilvecError where the tokenizer has tokens that the model lacks, or texts may have more tokens than it has positions."""
    config = model.config.get_text_config()
    if len(tokenizer) > config.vocab_size:
        raise DistilvecError(
            f"[{key}] the tokenizer has {len(tokenizer):,} tokens, the model {config.vocab_size:,}. They do not belong together."
        )
    positions = getattr(config, "max_position_embeddings", None) or max_length
    if max_length > positions:
        raise DistilvecError(
            f"[data.max_length] {max_length} tokens; {key} reads {positions} at most. Lower data.max_length."
        )


def tied_weights(module: nn.Module) -> dict[str, str]:
    """Names of parameters that are another one as well, such as an output layer that is the token table; with that one's name."""
    first: dict[nn.Parameter, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: first[parameter] for name, parameter in named if first.setdefault(parameter, name) != name}


def _leave_out_tied(module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    """A checkpoint holds tied weights once: safetensors refuses them twice."""
    assert isinstance(module, CausalEncoder)
    for name in module.tied:
        state.pop(prefix + name, None)


def _put_back_tied(module: nn.Module, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
    assert isinstance(module, CausalEncoder)
    state |= {prefix + name: state[prefix + source] for name, source in module.tied.items() if prefix + source in state}


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
