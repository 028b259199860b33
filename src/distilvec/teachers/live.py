"""A teacher that runs in every step: for corpora seen once, and for outputs that no cache keeps."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from distilvec.core.batch import TextBatch
from distilvec.core.outputs import ModelOutputs, OutputSpec, change_tensors
from distilvec.data.tokens import TokenStore
from distilvec.models.load import evaluating
from distilvec.students.encoder import Encoder
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.token_signals import token_reading, token_signals


class LiveTeacher:
    """Runs the model for the `required` outputs, without gradient or dropout, in its own precision; returns fp32.

    `tokens` are the corpus's texts in the teacher's own tokens. `head` is the head of the task that the teacher was
    fine-tuned for: logits are its outputs for the pooled vectors. Padding is on the right on whatever side the
    tokenizer pads; attention does not see padding. The model is not copied, and its `embed` gives the same vectors as
    before. `encoder` wraps the teacher's model already, if it is sharded.
    """

    def __init__(
        self,
        teacher: ModelEmbedder,
        tokens: TokenStore,
        required: OutputSpec,
        head: nn.Module | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        self.teacher, self.tokens, self.required = teacher, tokens, required
        self.encoder = encoder or Encoder(teacher.model)
        self.head = None if head is None else head.eval().to(teacher.model.device)
        states = replace(required, tokens=None, logits=False)
        self.reading = states | token_reading(required.tokens) | OutputSpec(vector=required.logits)

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """Outputs for the batch's rows, float32, on the batch's device; tokens begin at position 0."""
        teacher = self.teacher
        required = self.required
        tokens = self.tokens.batch(batch.rows.cpu().numpy())
        teacher_batch = TextBatch(batch.rows, tokens, batch.sources, alignment=batch.alignment)
        teacher_batch = teacher_batch.to(teacher.model.device)
        with evaluating(teacher.model):
            with teacher.autocast():
                outputs = self.encoder(teacher_batch, self.reading)
            outputs = _convert(outputs, teacher.model.device)
            pooled = outputs.vector
            ordinary = self._ordinary(teacher_batch)
            outputs = token_signals(outputs, required.tokens, teacher_batch.alignment, ordinary)
            if required.logits:
                assert self.head is not None
                outputs = replace(outputs, logits=self.head(pooled).float())
        # the encoder gives more than is required: what logits and token signals are made of
        hidden_layers = {*required.hidden_layers, *token_reading(required.tokens).hidden_layers}
        outputs = replace(
            outputs,
            embedding=None if outputs.embedding is None else self._cut(outputs.embedding),
            pooled_layers={layer: outputs.pooled_layers[layer] for layer in required.pooled_layers},
            hidden_layers={layer: outputs.hidden_layers[layer] for layer in sorted(hidden_layers)},
            attentions={layer: outputs.attentions[layer] for layer in required.attention_layers},
            vector=outputs.vector if required.vector else None,
        )
        return _convert(outputs, batch.rows.device)

    def _ordinary(self, batch: TextBatch) -> Tensor | None:
        """True at tokens that are not special; None if special tokens take part. Unknown words are ordinary."""
        if self.required.tokens is None or self.required.tokens.special_tokens:
            return None
        tokenizer, ids = self.teacher.model.tokenizer, batch.tokens["input_ids"]
        special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id, tokenizer.mask_token_id}
        return ~torch.isin(ids, torch.tensor(sorted(special), dtype=ids.dtype, device=ids.device))

    def _cut(self, embedding: Tensor) -> Tensor:
        """The dimensions that the teacher keeps, of length 1 again if the model normalises."""
        if embedding.shape[1] == self.teacher.dim:
            return embedding
        cut = embedding[:, : self.teacher.dim]
        return functional.normalize(cut, dim=-1) if self.teacher.normalized else cut


def _convert(outputs: ModelOutputs, device: torch.device) -> ModelOutputs:
    """Every tensor of the outputs on `device`, floating point ones in float32."""

    def convert(value: Tensor, fill: int) -> Tensor:
        return value.to(device, torch.float32) if value.is_floating_point() else value.to(device)

    found: ModelOutputs = change_tensors(outputs, convert)
    return found
