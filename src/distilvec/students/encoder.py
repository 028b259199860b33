"""A student or live teacher as one module: tokens and required outputs in, exactly these outputs out.

The encoder wraps a SentenceTransformer, so the trained weights are the saved ones. Tests pin the use of
sentence-transformers' modules for the supported versions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from distilvec.core.batch import TextBatch
from distilvec.core.device import full_precision
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import LayerPooling, ModelOutputs, OutputSpec
from distilvec.models.experts import Experts
from distilvec.models.parts import is_static
from distilvec.students.attention import has_interface, install_attention, recording
from distilvec.students.dropout import install_fast_dropout
from distilvec.students.pooling import KINDS, Pool, pool_states, pooling_inputs, pooling_weights


class Encoder(nn.Module):
    """A SentenceTransformer with readable layers. The wrapped model keeps its weights; nothing is copied."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.model = model
        modules = list(model)
        self.is_static = is_static(model)
        self.experts: int = 0
        if self.is_static:
            self.layers: int = 0
            self.hidden_size: int = modules[0].embedding_dim
            return
        if not hasattr(modules[0], "auto_model"):
            kind = type(modules[0]).__name__
            raise DistilvecError(f"begins with a {kind}; expected a transformer.", "Take another.", key="student.model")
        config = self.backbone.config.get_text_config()
        self.layers = config.num_hidden_layers
        self.hidden_size = config.hidden_size
        for module in modules:
            if type(module).__name__ == "Pooling":
                self.hidden_size = module.embedding_dimension  # of the last states, which a backbone may project
            if isinstance(module, Experts):
                self.experts = module.experts
        install_attention(self.backbone)
        install_fast_dropout(self.backbone)

    @property
    def backbone(self) -> Any:
        """The transformers model, or a static student's table; a property, so that its weights are registered once."""
        return self.model[0] if self.is_static else self.model[0].auto_model

    def forward(
        self, batch: TextBatch, required: OutputSpec, attention_rows: Int[Tensor, "batch rows"] | None = None
    ) -> ModelOutputs:
        """Run the backbone once (on twice the rows for a second view) and keep the required outputs.

        `attention_rows` are positions of tokens, counted from each text's first one; -1 fills up. Attention maps then
        hold these rows alone, [batch, rows, tokens], and 0 at -1.
        """
        if self.is_static:
            return self._forward_static(batch, required)
        rows = len(batch)
        mask = batch.mask
        tokens = batch.tokens
        if attention_rows is not None and "attention_mask" in tokens:  # padded on the left, a text begins later
            first_tokens = mask.int().argmax(-1, keepdim=True)
            attention_rows = (attention_rows + first_tokens).where(attention_rows >= 0, -1)
        if required.second_view:
            mask = torch.cat([mask, mask])
            tokens = {name: torch.cat([value, value]) for name, value in tokens.items()}
        # From the numbers of the requirement, which may be negative, to layers counted from 0
        pooled = {number: self._layer(number) for number in required.pooled_layers}
        hidden = {number: self._layer(number) for number in required.hidden_layers}
        attentions = {number: self._layer(number) for number in required.attention_layers}
        projections = {number: self._layer(number) for number in required.projection_layers}
        pool = self._pooling(required.layer_pooling, mask) if pooled else None
        inner = {*hidden.values()} - {self.layers}
        with (
            recording(tuple(attentions.values()), tuple(projections.values()), attention_rows) as recorded,
            pooling_inputs(self.backbone, {*pooled.values()} - {self.layers}, pool) as vectors,
        ):
            options = {"output_attentions": True} if attentions and not has_interface(self.backbone) else {}
            output = self.backbone(**tokens, output_hidden_states=bool(inner), return_dict=True, **options)
            if options:
                recorded.keep_returned(output.attentions or ())
        last = output.last_hidden_state  # after the final norm, if there is one
        if pool is not None and self.layers in pooled.values():
            vectors[self.layers] = pool(last)
        end: dict[str, Tensor] = {}
        if required.embedding or required.pre_dense or required.second_view or required.vector or required.experts:
            end = self._after(_features(last, mask))
        states = {layer: output.hidden_states[layer] for layer in inner} | {self.layers: last}
        return ModelOutputs(
            embedding=end["embedding"][:rows] if required.embedding else None,
            pre_dense=end["pre_dense"][:rows] if required.pre_dense else None,
            pooled_layers={number: vectors[layer][:rows] for number, layer in pooled.items()},
            hidden_layers={number: states[layer][:rows] for number, layer in hidden.items()},
            attentions={number: recorded.maps[layer][:rows] for number, layer in attentions.items()},
            second_view=end["embedding"][rows:] if required.second_view else None,
            mask=mask[:rows],
            projections={number: recorded.projections[layer].first(rows) for number, layer in projections.items()},
            vector=end["vector"][:rows] if required.vector else None,
            gates=end["gates"][:rows] if required.experts else None,
            experts=end["experts"][:rows] if required.experts else None,
        )

    def _layer(self, number: int) -> int:
        """A layer number counted from the embedding output (0); negative numbers count from the last layer."""
        layer = number if number >= 0 else self.layers + 1 + number
        if not 0 <= layer <= self.layers:
            raise DistilvecError(
                f"found layer {number}; expected 0 (embeddings) to {self.layers}.", "Name one.", key="method.options"
            )
        return layer

    def _forward_static(self, batch: TextBatch, required: OutputSpec) -> ModelOutputs:
        """Return the outputs of a static student: the mean of a text's rows, and the modules after it.

        Equal to StaticEmbedding's own forward pass, which takes flat ids and waits for their number on a GPU.
        """
        mask = batch.mask
        with torch.autocast(mask.device.type, enabled=False):
            weights = mask / mask.sum(1, keepdim=True).clamp_min(1)
            table = self.backbone.embedding.weight
            pooled = F.embedding_bag(batch.tokens["input_ids"], table, mode="sum", per_sample_weights=weights)
        end = self._after({"sentence_embedding": pooled})
        return ModelOutputs(
            embedding=end["embedding"] if required.embedding else None,
            pre_dense=end["pre_dense"] if required.pre_dense else None,
            mask=mask,
            vector=end["vector"] if required.vector else None,
        )

    def _after(self, features: dict[str, Any]) -> dict[str, Tensor]:
        """Outputs of the modules after the first one, in fp32, by their names in ModelOutputs."""
        outputs: dict[str, Tensor] = {}
        with torch.autocast(self.model.device.type, enabled=False):
            for module in list(self.model)[1:]:
                kind = type(module).__name__
                if kind in ("Dense", "Normalize"):  # the first one reads them
                    outputs.setdefault("vector", features["sentence_embedding"])
                if kind == "Dense":
                    outputs.setdefault("pre_dense", features["sentence_embedding"])
                features = module(features)
        embedding = features["sentence_embedding"]
        outputs["embedding"] = embedding
        outputs.setdefault("vector", embedding)
        outputs.setdefault("pre_dense", embedding)
        for name in ("gates", "experts"):
            if name in features:
                outputs[name] = features[name]
        return outputs

    def _pooling(self, kind: LayerPooling, mask: Tensor) -> Pool:
        """A function that pools hidden states [batch, tokens, inner]."""
        module = list(self.model)[1]
        kind = getattr(module, "pooling_mode", kind) if kind == "own" else kind
        if kind in KINDS:
            return partial(pool_states, weights=pooling_weights(mask, kind))
        return lambda states: module(_features(states, mask))["sentence_embedding"]


def _features(states: Tensor, mask: Tensor) -> dict[str, Any]:
    """Inputs of a sentence-transformers module after the backbone."""
    return {"token_embeddings": full_precision(states), "attention_mask": mask.to(torch.int64)}
