"""Collapse: all texts get nearly the same vector, or vectors in a few directions; the loss may go on falling.

The thresholds lie between what healthy batches of sentences show (also of a network drawn at random, and of texts that differ
in one number) and what all-MiniLM-L6-v2's lower layers show where they are pooled by [CLS].
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from distilvec.core.batch import TextBatch
from distilvec.core.outputs import ModelOutputs

MOST_ALIKE = 0.98  # mean cosine
LEAST_RANK = 0.1  # effective rank
TEXTS_ALIKE = 0.9  # mean cosine of the teacher's vectors, above which the texts are to blame
FEWEST_TEXTS = 8  # distinct ones, below which a batch is not judged
MOST_TEXTS = 256  # of a larger batch the first ones are looked at


@dataclass(frozen=True)
class Spread:
    """How far apart the vectors of a batch lie."""

    mean_cosine: float
    effective_rank: float

    @property
    def collapsed(self) -> bool:
        """Whether one of the two has passed its threshold."""
        return self.mean_cosine > MOST_ALIKE or self.effective_rank < LEAST_RANK


@dataclass(frozen=True)
class Sight:
    """A micro-batch as the watch sees it: detached, and on the CPU only once it is judged. `figures` are the objective's."""

    batch: TextBatch
    student: ModelOutputs
    teacher: ModelOutputs
    figures: dict[str, Tensor] = field(default_factory=dict)


def take_sight(batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Sight:
    """Keep the embedding, the pooled layers and the gates, without what is needed for gradients."""
    embedding = None if student.embedding is None else student.embedding.detach()
    layers = {number: layer.detach() for number, layer in student.pooled_layers.items()}
    gates = None if student.gates is None else student.gates.detach()
    seen = ModelOutputs(embedding=embedding, pooled_layers=layers, gates=gates)
    return Sight(batch, seen, replace(teacher, hidden_layers={}, attentions={}, others=()))


def spread(vectors: Float[Tensor, "batch width"]) -> Spread:
    """Mean cosine of all pairs, and effective rank: exp(entropy of the singular values' shares) / min(batch, width).

    The rank (Roy & Vetterli, 2007) is of the unit vectors as they are, not centred: centred, the noise that is left of
    equal vectors has full rank. One direction gives 1 / min(batch, width), orthogonal vectors of equal weight 1.
    """
    unit = F.normalize(vectors.detach()[:MOST_TEXTS].double().cpu(), dim=-1)
    rows = len(unit)
    cosine = (unit.sum(0).square().sum() - unit.square().sum()) / (rows * (rows - 1))
    values = torch.linalg.svdvals(unit)
    rank = torch.special.entr(values / values.sum()).sum().exp()
    return Spread(float(cosine), float(rank) / min(unit.shape))


class CollapseWatch:
    """Looks at a batch now and then and warns once a run; `pooling` and `layer_pooling` are how embedding and layers are pooled."""

    def __init__(self, pooling: str, layer_pooling: str, warned: bool = False) -> None:
        self.pooling, self.layer_pooling, self.warned = pooling, layer_pooling, warned

    def judge(self, sight: Sight | None) -> tuple[dict[str, float], str | None]:
        """The embedding's figures for the metrics, and a warning where embedding or layers collapsed for the first time.

        A batch is not judged with fewer than 8 distinct texts, or where the teacher finds its texts alike, too; texts are
        distinct where their tokens are.
        """
        if sight is None or len(torch.unique(sight.batch.tokens["input_ids"], dim=0)) < FEWEST_TEXTS:
            return {}, None
        vectors = {} if sight.student.embedding is None else {"embedding": sight.student.embedding}
        vectors |= (
            {f"layer {number}": layer for number, layer in sight.student.pooled_layers.items()}
            if not self.warned
            else {}
        )
        found = {name: spread(value) for name, value in vectors.items()}
        own = found.get("embedding")
        figures = {} if own is None else {"mean_cosine": own.mean_cosine, "effective_rank": own.effective_rank}
        collapsed = {name: figure for name, figure in found.items() if figure.collapsed}
        if (
            self.warned
            or not collapsed
            or (sight.teacher.embedding is not None and spread(sight.teacher.embedding).mean_cosine > TEXTS_ALIKE)
        ):
            return figures, None
        self.warned = True
        return figures, self._warning(collapsed)

    def _warning(self, collapsed: dict[str, Spread]) -> str:
        what = "embeddings" if "embedding" in collapsed else "layers' vectors"
        figures = "; ".join(f"{name}: {s.mean_cosine:.4f} and {s.effective_rank:.3f}" for name, s in collapsed.items())
        return (
            f"The {what} collapsed: nearly the same for every text. Mean cosine (at most {MOST_ALIKE}) and effective rank "
            f"(at least {LEAST_RANK}): {figures}. {self._cause(collapsed)}"
        )

    def _cause(self, collapsed: dict[str, Spread]) -> str:
        layers = [name for name in collapsed if name != "embedding"]
        pooling = self.pooling if self.layer_pooling == "own" or not layers else self.layer_pooling
        token = {"cls": "CLS", "lasttoken": "last-token"}.get(pooling)
        if layers and token:
            return (
                f"Likely cause: {token} pooling of lower layers, where that one token hardly depends on the text yet. "
                "Pool these layers by their mean, or take only the last ones [method.options]."
            )
        if token:
            return (
                f"Likely cause: {token} pooling of a student whose layers were never trained for it [student.pooling], or a loss "
                "in which no term keeps texts apart [method.weights]."
            )
        return (
            "Likely cause: no term of the loss keeps texts apart, or one that pulls them together outweighs it [method.weights]; "
            "or too high a rate [train.learning_rate]."
        )
