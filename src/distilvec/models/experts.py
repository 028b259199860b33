"""A mixture of experts on the pooled vector: what DistillMoE adds to a student (section 3.1.1).

This file needs torch and safetensors alone: a copy of it lies beside every student that has experts (formats/sentence_transformers.py), so
that such a student loads without distilvec, too.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class Experts(nn.Module):
    """`experts` feed-forward networks (`dim` to `width` to `dim`, ReLU, dropout), added up by the weights of a gate.

    The gate is linear, or, where `gate_width` is given, has a hidden layer. A SentenceTransformer module: it takes the features'
    "sentence_embedding" [batch, dim] and puts the mixture in its place, the gates' weights [batch, experts] (of sum 1) and the
    experts' outputs [batch, experts, dim] beside it, as "gates" and "experts".
    """

    def __init__(
        self, dim: int, experts: int = 3, width: int = 1024, gate_width: int | None = None, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.dim, self.experts, self.width, self.gate_width, self.rate = dim, experts, width, gate_width, dropout
        self.up = nn.Linear(dim, experts * width)
        self.down = nn.Parameter(
            torch.empty(experts, width, dim).uniform_(-1, 1) / math.sqrt(width)
        )  # as nn.Linear begins
        self.bias = nn.Parameter(torch.empty(experts, 1, dim).uniform_(-1, 1) / math.sqrt(width))
        self.dropout = nn.Dropout(dropout)
        if gate_width is None:
            self.gate: nn.Module = nn.Linear(dim, experts)
        else:
            self.gate = nn.Sequential(
                nn.Linear(dim, gate_width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(gate_width, experts)
            )

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """The same features with the mixture as "sentence_embedding"."""
        pooled: Tensor = features["sentence_embedding"]
        hidden = self.dropout(torch.relu(self.up(pooled))).view(-1, self.experts, self.width)
        outputs = torch.baddbmm(self.bias, hidden.transpose(0, 1), self.down).transpose(0, 1)
        gates = torch.softmax(self.gate(pooled), dim=-1)
        mixture = torch.bmm(gates[:, None], outputs)[:, 0]
        return {**features, "sentence_embedding": mixture, "gates": gates, "experts": outputs}

    def settings(self) -> dict[str, Any]:
        """What `__init__` was called with."""
        return {
            "dim": self.dim,
            "experts": self.experts,
            "width": self.width,
            "gate_width": self.gate_width,
            "dropout": self.rate,
        }

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write config.json and model.safetensors into a folder."""
        folder = Path(output_path)
        (folder / CONFIG).write_text(json.dumps(self.settings(), indent=2) + "\n", encoding="utf-8")
        weights = {name: value.detach().float().cpu().contiguous() for name, value in self.state_dict().items()}
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})

    @staticmethod
    def load(input_path: str) -> Experts:
        """The module that `save` wrote into a folder."""
        folder = Path(input_path)
        with torch.device("meta"):  # no weights are drawn: torch's generator stays as it is
            experts = Experts(**json.loads((folder / CONFIG).read_text(encoding="utf-8")))
        experts.load_state_dict(load_file(folder / WEIGHTS), assign=True)
        return experts.eval()

    def get_sentence_embedding_dimension(self) -> int:
        """The width of what comes out."""
        return self.dim
