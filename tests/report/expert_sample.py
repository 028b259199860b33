"""What report.json holds of a student with three experts: figures of a believable size, the same every time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

FACETS = ("pointwise", "contrastive", "pairwise")
GROUPS = ("stsb", "banking77", "cranfield, queries", "cranfield, documents")
LENGTHS = ((1, 8), (9, 16), (17, 32), (33, 60))


def shares(rows: int, seed: int) -> dict[str, Any]:
    gates = np.random.default_rng(seed).dirichlet((6.0, 2.0, 5.0)).round(4).tolist()
    entropy = -sum(gate * math.log(gate) for gate in gates) / math.log(3)
    return {"rows": rows, "gates": gates, "entropy": round(entropy, 4), "decided": 0.02, "spread": 0.08}


def sample_experts() -> dict[str, Any]:
    return {
        "count": 3,
        **shares(400, 0),
        "groups": [{"name": name, **shares(100, number)} for number, name in enumerate(GROUPS, 1)],
        "lengths": [{"from": low, "to": high, **shares(rows, low)} for (low, high), rows in zip(LENGTHS, (40, 160, 120, 80), strict=True)],  # noqa: E501
        "cosines": [[1.0, 0.1, 0.05], [0.1, 1.0, 0.2], [0.05, 0.2, 1.0]],
    }  # fmt: skip


def routing_figures(step: int) -> dict[str, float]:
    """What a logged line of metrics.jsonl says of gates, facets and kept tokens."""
    lean = 0.25 * (1 - math.exp(-step / 500))
    gates = (1 / 3 + lean, 1 / 3 - 0.8 * lean, 1 / 3 - 0.2 * lean)
    entropy = -sum(gate * math.log(gate) for gate in gates) / math.log(3)
    found = {f"train/gate_{number}": round(gate, 5) for number, gate in enumerate(gates, 1)}
    found |= {"train/gate_entropy": round(entropy, 5), "train/gate_decided": 0.0, "train/gate_spread": 0.05}
    found |= {
        f"train/facet_{name}": round(scale * (0.4 + math.exp(-step / 400)), 5)
        for name, scale in zip(FACETS, (0.8, 2.5, 0.1), strict=True)
    }
    return found | {"train/kept_tokens": round(3 + 20 * math.exp(-step / 300), 3)}
