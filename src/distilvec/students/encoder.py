"""The student (or a live teacher) as one module: tokens and wants in, exactly the wanted signals out.

The encoder wraps a SentenceTransformer, so what is trained is what is saved. This file is the one place that reaches
into sentence-transformers' modules; tests pin it for the supported versions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import LayerPooling, ModelOutputs, OutputSpec
from distilvec.models.experts import Experts
from distilvec.students.attention import install_attention, recording
from distilvec.students.dropout import install_fast_dropout
from distilvec.students.pooling import KINDS, Pool, full_precision, pool_states, pooling_inputs, pooling_weights


class Encoder(nn.Module):
    """A SentenceTransformer whose inside can be read. The wrapped model keeps its weights; nothing is copied."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.model = model
        modules = list(model)
        if not hasattr(modules[0], "auto_model"):
            raise DistilvecError(
                f"[student.model] its first module is a {type(modules[0]).__name__}; expected a transformer. Take another model."
            )
        config = self.backbone.config.get_text_config()
        self.layers: int = config.num_hidden_layers
        self.hidden_width: int = config.hidden_size
        self.experts: int = next((module.experts for module in modules if isinstance(module, Experts)), 0)
        install_attention(self.backbone)
        install_fast_dropout(self.backbone)

    @property
    def backbone(self) -> Any:
        """The transformers model inside; a property, so that its weights are registered once."""
        return self.model[0].auto_model

    @property
    def pooling(self) -> str:
        """How the model pools its last layer."""
        return str(list(self.model)[1].pooling_mode)

    def forward(
        self, batch: TextBatch, required: OutputSpec, attention_rows: Int[Tensor, "batch rows"] | None = None
    ) -> ModelOutputs:
        """Run the backbone once (twice the rows where a second view is wanted) and keep what is wanted.

        `attention_rows` are positions of tokens, counted from each text's first one (-1 fills up): attention maps are then
        theirs alone, [batch, rows, tokens], and 0 at -1.
        """
        rows, mask, tokens = len(batch), batch.mask, batch.tokens
        if (
            attention_rows is not None and "attention_mask" in tokens
        ):  # where the batch is padded on the left, a text begins later
            attention_rows = (attention_rows + mask.int().argmax(-1, keepdim=True)).where(attention_rows >= 0, -1)
        if required.second_view:
            mask = torch.cat([mask, mask])
            tokens = {name: torch.cat([value, value]) for name, value in tokens.items()}
        pooling = {self._layer(number) for number in required.pooled_layers}
        hidden = {self._layer(number) for number in required.hidden_layers}
        pool = self._pooling(required.layer_pooling, mask) if pooling else None
        attention, projections = (
            tuple(map(self._layer, numbers)) for numbers in (required.attention_layers, required.projection_layers)
        )
        with (
            recording(attention, projections, attention_rows) as kept,
            pooling_inputs(self.backbone, pooling - {self.layers}, pool) as pooled,
        ):
            output = self.backbone(**tokens, output_hidden_states=bool(hidden - {self.layers}), return_dict=True)
        last = output.last_hidden_state  # after the final norm, where there is one
        states = {layer: last if layer == self.layers else output.hidden_states[layer] for layer in hidden}
        if pool is not None and self.layers in pooling:
            pooled[self.layers] = pool(last)
        end = (
            self._after(last, mask)
            if required.embedding or required.pre_dense or required.second_view or required.vector or required.experts
            else {}
        )
        return ModelOutputs(
            embedding=end["embedding"][:rows] if required.embedding else None,
            pre_dense=end["pre_dense"][:rows] if required.pre_dense else None,
            pooled_layers={number: pooled[self._layer(number)][:rows] for number in required.pooled_layers},
            hidden_layers={number: states[self._layer(number)][:rows] for number in required.hidden_layers},
            attentions={number: kept.maps[self._layer(number)][:rows] for number in required.attention_layers},
            second_view=end["embedding"][rows:] if required.second_view else None,
            mask=mask[:rows],
            projections={
                number: kept.projections[self._layer(number)].first(rows) for number in required.projection_layers
            },
            vector=end["vector"][:rows] if required.vector else None,
            gates=end["gates"][:rows] if required.experts else None,
            experts=end["experts"][:rows] if required.experts else None,
        )

    def _layer(self, number: int) -> int:
        """A layer number counted from the embedding output (0), with negative numbers from the last."""
        layer = number if number >= 0 else self.layers + 1 + number
        if not 0 <= layer <= self.layers:
            raise DistilvecError(
                f"[method.options] layer {number} was asked for; the model has layers 0 (embeddings) to {self.layers}. Name one."
            )
        return layer

    def _after(self, states: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """What the modules after the backbone make of its last states, in fp32, by the names that ModelOutputs has for it."""
        found: dict[str, Tensor] = {}
        with torch.autocast(states.device.type, enabled=False):
            features: dict[str, Any] = {
                "token_embeddings": full_precision(states),
                "attention_mask": mask.to(torch.int64),
            }
            for module in list(self.model)[1:]:
                kind = type(module).__name__
                if kind in ("Dense", "Normalize"):
                    found.setdefault("vector", features["sentence_embedding"])
                if kind == "Dense":
                    found.setdefault("pre_dense", features["sentence_embedding"])
                features = module(features)
        found["embedding"] = features["sentence_embedding"]
        found |= {name: features[name] for name in ("gates", "experts") if name in features}
        return {"vector": found["embedding"], "pre_dense": found["embedding"], **found}

    def _pooling(self, kind: LayerPooling, mask: Tensor) -> Pool:
        """A function that pools hidden states [batch, tokens, inner]."""
        module = list(self.model)[1]
        if kind == "own":
            kind = getattr(module, "pooling_mode", "own")
        if kind in KINDS:
            return partial(pool_states, weights=pooling_weights(mask, kind))

        def pool(states: Tensor) -> Tensor:
            features = {"token_embeddings": full_precision(states), "attention_mask": mask.to(torch.int64)}
            vector: Tensor = module(features)["sentence_embedding"]
            return vector

        return pool
