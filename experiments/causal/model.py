"""A causal language model that answers `OutputSpec`, as students/encoder.py's Encoder does, and its objective."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from distilvec.core.batch import TextBatch
from distilvec.core.device import full_precision
from distilvec.core.errors import DistilvecError
from distilvec.core.info import ObjectiveContext
from distilvec.core.objective import LossTerms, Objective, Weights
from distilvec.core.options import check_options, option_error
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.core.registry import build_objective
from distilvec.methods.base.terms import task_shares
from distilvec.models.experts import Experts
from distilvec.students.dropout import install_fast_dropout
from distilvec.students.encoder import Encoder
from distilvec.students.pooling import pool_states, pooling_weights
from experiments.causal.data import IGNORED, Tokens
from experiments.causal.methods import METHODS, ON_PREDICTIONS, OnPredictions
from experiments.causal.outputs import CausalOutputs, NextTokens
from experiments.causal.schema import CausalMethodSection

_UNANSWERED = ("second_view", "attention_layers", "projection_layers", "pooled_layers", "pre_dense")


class CausalEncoder(Encoder):
    """A causal language model with the experts that help its training. The model's weights are not copied.

    Outputs that a language model does not have are refused; `logits` gives the predictions of the response's tokens.
    """

    def __init__(self, model: PreTrainedModel, experts: Experts | None = None) -> None:
        nn.Module.__init__(self)
        self.model, self.mixture = model, experts
        config = model.config.get_text_config()
        self.layers, self.hidden_size = config.num_hidden_layers, config.hidden_size
        self.experts = experts.experts if experts is not None else 0
        self.positions = "position_ids" in inspect.signature(model.forward).parameters
        first: dict[nn.Parameter, str] = {}  # of parameters that are another one as well, such as a tied output layer
        named = self.named_parameters(remove_duplicate=False)
        tied = {name: first[weight] for name, weight in named if first.setdefault(weight, name) != name}
        install_fast_dropout(model)

        def leave_out(module: nn.Module, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
            for name in tied:  # safetensors refuses a weight that is in a checkpoint twice
                state.pop(prefix + name, None)

        def put_back(module: nn.Module, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
            state |= {prefix + name: state[prefix + other] for name, other in tied.items() if prefix + other in state}

        self.register_state_dict_post_hook(leave_out)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(put_back)  # type: ignore[no-untyped-call]

    @property
    def backbone(self) -> Any:
        """The language model."""
        return self.model

    @property
    def pooling(self) -> str:
        """The pooling of the model's last layer."""
        return "mean"

    def forward(
        self, batch: TextBatch, required: OutputSpec, attention_rows: Int[Tensor, "batch rows"] | None = None
    ) -> CausalOutputs:
        """One pass over prompts and responses; `batch.tokens` has `labels`, which are -100 but at the response."""
        if asked := [name for name in _UNANSWERED if getattr(required, name)]:
            raise DistilvecError(
                f"a causal language model has no {', '.join(asked)}.", "Use another method.", key="method.name"
            )
        tokens = dict(batch.tokens)
        labels = tokens.pop("labels")
        if self.positions and "attention_mask" in tokens:  # so that padding on the left changes nothing
            tokens["position_ids"] = (tokens["attention_mask"].cumsum(-1) - 1).clamp_min(0)
        network = self.model if required.logits else self.model.base_model  # without logits, which are large
        output = network(**tokens, output_hidden_states=True, use_cache=False, return_dict=True)
        mask = labels != IGNORED
        hidden = {*required.hidden_layers, *(required.tokens.hidden if required.tokens else ())}
        pooled = required.embedding or required.vector or required.experts
        vector = pool_states(output.hidden_states[-1], pooling_weights(mask, "mean")) if pooled else None
        mixed = {}
        if required.experts:
            assert self.mixture is not None and vector is not None
            with torch.autocast(vector.device.type, enabled=False):
                mixed = self.mixture({"sentence_embedding": vector})
        return CausalOutputs(
            embedding=vector if required.embedding else None,
            vector=vector,
            hidden_layers={number: full_precision(output.hidden_states[self._layer(number)]) for number in hidden},
            mask=mask,
            gates=mixed.get("gates"),
            experts=mixed.get("experts"),
            next_tokens=NextTokens(self.model, output.logits, output.hidden_states[-1], tokens["input_ids"], labels)
            if required.logits
            else None,
        )


class CausalTeacher:
    """Runs the teacher in every step, in evaluation mode, without gradient and in its own precision; fp32 comes out.

    Nothing of a causal teacher is cached: the states of all response tokens of several layers are far larger than the
    texts. Without a model there are no outputs: the student learns from the responses alone.
    """

    def __init__(self, model: PreTrainedModel | None, tokens: Tokens | None, required: OutputSpec) -> None:
        self.encoder = CausalEncoder(model.eval().requires_grad_(False)) if model is not None else None
        self.tokens, self.required = tokens, required

    @torch.no_grad()
    def signals(self, batch: TextBatch) -> ModelOutputs:
        """The required outputs of the batch's rows, in the teacher's own tokens."""
        if self.encoder is None or self.tokens is None:
            return ModelOutputs()
        tokens = self.tokens.batch(batch.rows.cpu().numpy())
        own = TextBatch(batch.rows, tokens, batch.sources).to(batch.rows.device)
        with torch.autocast(batch.rows.device.type, enabled=False):
            found: ModelOutputs = self.encoder.to(batch.rows.device)(own, self.required)
        return found


class CausalObjective(Objective):
    """(1 - w) task + w times the method's weighted terms (paper 001, eq. 14); without a method the task alone.

    w is distillation_weight.

    task: the mean cross-entropy of a response's tokens. The method's texts are the responses: the mean of their last
    hidden states as vectors, their tokens' states as hidden states. `weights` replaces these weights, term by term.

    Note: the paper calls the pipeline "identical" and gives no more; the choice of the tokens is ours.
    """

    in_teacher_space = False

    def __init__(
        self,
        context: ObjectiveContext,
        method: Objective | None,
        weights: Weights | None = None,
        distillation_weight: float | None = None,
    ) -> None:
        if distillation_weight is not None and not 0 <= distillation_weight <= 1:
            raise option_error("distillation_weight", distillation_weight, "a number from 0 to 1")
        task, rest = task_shares(distillation_weight)
        shares = {} if method is None else {name: rest * weight for name, weight in method.weights.items()}
        super().__init__(context, weights or {}, {"task": 1.0 if method is None else task, **shares})
        self.method = method
        self.student_outputs, self.teacher_outputs = OutputSpec(logits=True), OutputSpec()
        if method is not None:
            self.needs_fixed_batch = method.needs_fixed_batch
            self.student_outputs |= method.student_outputs
            self.teacher_outputs = method.teacher_outputs

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the task's term and the method's."""
        assert isinstance(student, CausalOutputs) and student.losses is not None
        if self.method is None:
            return {"task": student.losses}
        self.method.matmul_dtype = self.matmul_dtype  # the trainer knows this objective alone
        return {"task": student.losses, **self.method(batch, student, teacher)}

    def metrics(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> dict[str, Float[Tensor, ""]]:
        """Return the method's own metrics."""
        return self.method.metrics(batch, student, teacher) if self.method is not None else {}


def build_causal_objective(section: CausalMethodSection, context: ObjectiveContext) -> CausalObjective:
    """Combine the recipe's method with the task; the task's share and a weight of "task" are those of the whole."""
    options = dict(section.options)
    distillation_weight = options.pop("distillation_weight", None)
    own = {term: weight for term, weight in section.weights.items() if term != "task"}
    if section.name in METHODS:
        check_options(section.name, METHODS[section.name].__init__, options)
        method: Objective = METHODS[section.name](context, own, **options)
    elif section.name in ON_PREDICTIONS:
        method = OnPredictions(build_objective(section.name, {**options, "on": "hidden"}, own, context))
    else:
        method = build_objective(section.name, options, own, context)
    return CausalObjective(context, method, section.weights, distillation_weight)
