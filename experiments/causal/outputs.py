"""Outputs of a causal language model, and all that concerns the prediction of its response's tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.func import functional_call
from transformers import PreTrainedModel

from distilvec.core.device import full_precision
from distilvec.core.outputs import ModelOutputs
from experiments.causal.data import IGNORED

PerToken = Float[Tensor, "batch responses dim"]


@dataclass(frozen=True)
class NextTokens:
    """Predictions of the response's tokens: row k of a text is that of its k-th one; False in `mask` at padding.

    Nothing is computed before it is read. `all_logits`, `all_states`, `ids` and `labels` are those of all tokens.
    """

    model: PreTrainedModel
    all_logits: Float[Tensor, "batch tokens vocabulary"]
    all_states: Float[Tensor, "batch tokens hidden"]
    ids: Int[Tensor, "batch tokens"]
    labels: Int[Tensor, "batch tokens"] = field(metadata={"fill": IGNORED})

    @cached_property
    def mask(self) -> Bool[Tensor, "batch responses"]:
        """True where a text has a response token."""
        counts = self._predicted.sum(1, keepdim=True)
        return torch.arange(int(counts.max()), device=counts.device) < counts

    @cached_property
    def logits(self) -> Float[Tensor, "batch responses vocabulary"]:
        """The logits of every response token, in fp32 at least."""
        return full_precision(self._rows(self.all_logits[:, :-1]))

    @cached_property
    def states(self) -> PerToken:
        """The last hidden states that the logits come from."""
        return full_precision(self._rows(self.all_states[:, :-1]))

    @cached_property
    def targets(self) -> Int[Tensor, "batch responses"]:
        """The response's tokens; another token at padding."""
        return self._rows(self.ids[:, 1:])

    @cached_property
    def embeddings(self) -> tuple[PerToken, PerToken]:
        """The input embeddings of the token before and of the response's token, without gradient."""
        table = self.model.get_input_embeddings()
        with torch.no_grad():
            before, target = table(self._rows(self.ids[:, :-1])), table(self.targets)
        return full_precision(before), full_precision(target)

    @cached_property
    def losses(self) -> Float[Tensor, " batch"]:
        """The mean cross-entropy of each text's response tokens, each predicted from the tokens before it.

        Note: texts count alike; in transformers' own loss tokens count alike, so that long responses weigh more.
        """
        with torch.autocast(self.all_logits.device.type, enabled=False):
            logits, labels = self.all_logits[:, :-1].mT.float(), self.labels[:, 1:]
            each = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
        return each.sum(1) / self._predicted.sum(1).clamp_min(1)

    def frozen_head(self, states: PerToken) -> Float[Tensor, "batch responses vocabulary"]:
        """The logits of other states by the model's output layer, without gradient for its weights."""
        head = self.model.get_output_embeddings()
        weights = {name: value.detach() for name, value in head.named_parameters()}
        logits: Tensor = functional_call(head, weights, (states.to(next(iter(weights.values())).dtype),))
        return full_precision(logits)

    @cached_property
    def _predicted(self) -> Bool[Tensor, "batch others"]:
        return self.labels[:, 1:] != IGNORED

    def _rows(self, values: Tensor) -> Tensor:
        """Values at the predicted tokens, moved to the front."""
        order = self._predicted.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : self.mask.shape[1]]
        return values[torch.arange(len(order), device=order.device)[:, None], order]


@dataclass(frozen=True)
class CausalOutputs(ModelOutputs):
    """Outputs of a causal model: `vector` and `embedding` are the mean of the response's last hidden states.

    `mask` is True at the response's tokens. `next_tokens` is None unless logits are required.
    """

    next_tokens: NextTokens | None = None

    @property
    def losses(self) -> Float[Tensor, " batch"] | None:
        """Next-token cross-entropies (nats), averaged over each text's response."""
        return None if self.next_tokens is None else self.next_tokens.losses
