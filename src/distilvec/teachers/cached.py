"""Teachers of a training step: outputs for a batch, from a cache, a model that runs, several teachers, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn import functional

from distilvec.core.batch import Alignment, TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs, OutputSpec, TokenOutputSpec, change_tensors
from distilvec.data.tokens import TokenStore
from distilvec.models.load import evaluating
from distilvec.students.encoder import Encoder
from distilvec.teachers.cache.index import Keys
from distilvec.teachers.cache.signals import decompress
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.embedder import BatchTeacher
from distilvec.teachers.model_embedder import ModelEmbedder

Finish = Callable[[TextBatch], ModelOutputs]


def read_ahead(teacher: BatchTeacher, batch: TextBatch) -> Finish:
    """Read the caches for a batch on the CPU; the result gives the teacher's outputs for the batch on its device.

    A teacher that runs has nothing to read, and runs in the result. Threads may call this, but not the result.
    """
    if isinstance(teacher, CachedTeacher):
        return teacher.read(batch)
    if isinstance(teacher, SeveralTeachers):
        first = read_ahead(teacher.first, batch)
        others = [read_ahead(other, batch) for other in teacher.others]
        return lambda batch: replace(first(batch), others=tuple(other(batch) for other in others))
    return teacher.signals


class CachedTeacher:
    """Reads a teacher's outputs from its cache; the model is not in memory.

    `keys` are those of all corpus rows. `head` is the head of the task that the teacher was fine-tuned for: logits are
    its outputs for the cached vectors.
    """

    def __init__(self, cache: TeacherCache, keys: Keys, required: OutputSpec, head: nn.Module | None = None) -> None:
        if missing_outputs := uncached(required):
            raise DistilvecError(
                f"no cache holds {', '.join(missing_outputs)}.", "Set teacher.live=true.", key="teacher.live"
            )
        fix = "Fill one for this recipe: distilvec cache fill."
        if required.tokens and not cache.manifest.tokens:
            raise DistilvecError(f"{cache.folder} has no token signals, which the method requires.", fix, key="cache")
        self.positions = cache.positions(keys)
        if missing := int((self.positions < 0).sum()):
            raise DistilvecError(
                f"{missing:,} of {len(keys):,} rows have no vector in {cache.folder}.", fix, key="cache"
            )
        self.cache, self.required, self.head = cache, required, None if head is None else head.eval()
        self._settings = cache.manifest.tokens if required.tokens else None
        self._token_signals = list(self._settings.signals) if self._settings else []

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """Outputs for the batch's rows, float32; token signals are padded on the right."""
        return self.read(batch)(batch)

    def read(self, batch: TextBatch) -> Finish:
        """Read the cache for the batch's rows, into pinned memory if the batch is there; see `read_ahead`."""
        required, positions = self.required, self.positions[batch.rows.cpu().numpy()]
        names = {"embedding": required.embedding, "pre_dense": required.pre_dense}
        names["vector"] = required.vector or required.logits
        stored = {name: torch.from_numpy(self.cache.read(positions, name)) for name, needed in names.items() if needed}
        if batch.rows.is_pinned():
            stored = {name: value.pin_memory() for name, value in stored.items()}
        tokens = {name: self.cache.read_ragged(positions, name) for name in self._token_signals}

        @torch.no_grad()
        def finish(batch: TextBatch) -> ModelOutputs:
            device = batch.rows.device
            tensors = {name: value.to(device, non_blocking=True) for name, value in stored.items()}
            logits = self.head.to(device)(tensors["vector"]) if required.logits and self.head is not None else None
            return ModelOutputs(
                embedding=tensors.get("embedding"),
                pre_dense=tensors.get("pre_dense"),
                vector=tensors["vector"] if required.vector else None,
                logits=logits,
                **(decompress(tokens, self._settings, device) if self._settings and tokens else {}),
            )

        return finish


class SeveralTeachers:
    """A recipe's first teacher; `others` of its outputs are those of the further ones."""

    def __init__(self, first: BatchTeacher, others: Sequence[BatchTeacher]) -> None:
        self.first, self.others = first, others

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """Every teacher's outputs."""
        return replace(self.first.signals(batch), others=tuple(other.signals(batch) for other in self.others))


class NoTeacher:
    """Teacher of a method that requires none."""

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """No outputs."""
        return ModelOutputs()


def uncached(required: OutputSpec) -> list[str]:
    """Required outputs that no cache keeps, in words."""
    named = {
        "attention maps": required.attention_layers,
        "hidden states of layers": required.hidden_layers,
        "queries, keys and values": required.projection_layers,
        "a second view": required.second_view,
        "pooled states of layers": required.pooled_layers,
        "gates and experts": required.experts,
    }
    return [name for name, layers in named.items() if layers]


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

    converted: ModelOutputs = change_tensors(outputs, convert)
    return converted


def token_reading(required: TokenOutputSpec | None) -> OutputSpec:
    """Outputs of the model from which `token_signals` computes these."""
    if required is None:
        return OutputSpec()
    last = {-1} if required.importance or required.gram_layers else set[int]()
    return OutputSpec(hidden_layers=required.hidden, attention_layers=tuple(sorted({*last, *required.gram_layers})))


def token_signals(
    read: ModelOutputs,
    required: TokenOutputSpec | None,
    alignment: Alignment | None,
    ordinary: Bool[Tensor, "batch tokens"] | None = None,
) -> ModelOutputs:
    """`read` (the outputs of `token_reading`) with importance, selected pairs and Gram matrices.

    `ordinary` is False at the teacher's special tokens; pairs of those are selected only without `ordinary`.
    Errors: DistilvecError for Gram matrices of texts without an alignment.
    """
    if required is None or not (required.importance or required.gram_layers):
        return read

    from distilvec.losses.emo import importance, select, selected_gram  # for the methods that read tokens

    assert read.mask is not None
    received = importance(read.attentions[-1], read.mask)
    if not required.gram_layers:
        return replace(read, importance=received)
    if alignment is None:
        raise DistilvecError(
            "Gram matrices of a teacher's tokens need an alignment; this batch has none.",
            "Give the teacher and the student fast tokenizers.",
            key="method.name",
        )
    selected = select(alignment.pairs, received, required.divisor, ordinary)
    grams = {layer: selected_gram(read.attentions[layer], selected[..., 1]) for layer in required.gram_layers}
    return replace(read, importance=received if required.importance else None, selected=selected, grams=grams)
