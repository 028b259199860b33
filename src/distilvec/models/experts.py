"""Mixture of experts on the pooled vector, which DistillMoE adds to a student (section 3.1.1).

Imports torch and safetensors alone. formats/sentence_transformers.py copies this file into the folder of every student
with experts, so that the student loads without distilvec. So names of weights, settings and arguments must stay: the
copies of students saved today, and config.json beside them, have them.
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
    """`experts` feed-forward networks (`dim` to `width` to `dim`, ReLU, dropout), summed by a gate's weights.

    The gate is linear; with `gate_width` the gate has one hidden layer. `forward` reads the features' key
    "sentence_embedding" [batch, dim] and replaces the vector by the mixture. It adds "gates" [batch, experts], of sum
    1, and "experts" [batch, experts, dim], the outputs of the experts. With `residual` each network's output is added
    to its input and is 0 at first, so that a model with experts begins as the model without them.
    """

    def __init__(
        self,
        dim: int,
        experts: int = 3,
        width: int = 1024,
        gate_width: int | None = None,
        dropout: float = 0.1,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.experts = experts
        self.width = width
        self.gate_width = gate_width
        self.rate = dropout
        self.residual = residual
        root = math.sqrt(width)  # bounds of the weights as in nn.Linear
        self.up = nn.Linear(dim, experts * width)
        self.down = nn.Parameter(torch.empty(experts, width, dim).uniform_(-1, 1) / root)
        self.bias = nn.Parameter(torch.empty(experts, 1, dim).uniform_(-1, 1) / root)
        if residual:
            nn.init.zeros_(self.down)
            nn.init.zeros_(self.bias)
        self.dropout = nn.Dropout(dropout)
        if gate_width is None:
            self.gate: nn.Module = nn.Linear(dim, experts)
        else:
            layers = [nn.Linear(dim, gate_width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(gate_width, experts)]
            self.gate = nn.Sequential(*layers)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Return the same features with the mixture as "sentence_embedding"."""
        pooled: Tensor = features["sentence_embedding"]
        hidden = self.dropout(torch.relu(self.up(pooled))).view(-1, self.experts, self.width)
        outputs = torch.baddbmm(self.bias, hidden.transpose(0, 1), self.down).transpose(0, 1)
        if self.residual:
            outputs = outputs + pooled[:, None]
        gates = torch.softmax(self.gate(pooled), dim=-1)
        mixture = torch.bmm(gates[:, None], outputs)[:, 0]
        return {**features, "sentence_embedding": mixture, "gates": gates, "experts": outputs}

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `__init__`."""
        settings = {name: getattr(self, name) for name in ("dim", "experts", "width", "gate_width")}
        settings["dropout"] = self.rate
        if self.residual:
            settings["residual"] = True
        return settings

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write config.json and model.safetensors into a folder."""
        folder = Path(output_path)
        (folder / CONFIG).write_text(json.dumps(self.settings(), indent=2) + "\n", encoding="utf-8")
        weights = {name: value.detach().float().cpu().contiguous() for name, value in self.state_dict().items()}
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})

    @staticmethod
    def load(input_path: str) -> Experts:
        """Read the module that `save` wrote into a folder."""
        folder = Path(input_path)
        with torch.device("meta"):  # no weights are drawn: torch's generator keeps its state
            experts = Experts(**json.loads((folder / CONFIG).read_text(encoding="utf-8")))
        experts.load_state_dict(load_file(folder / WEIGHTS), assign=True)
        return experts.eval()

    def get_sentence_embedding_dimension(self) -> int:
        """Return the dim of the output."""
        return self.dim
