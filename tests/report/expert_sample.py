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
    generator = np.random.default_rng(4)
    groups = [group for group in GROUPS for _ in range(12)]
    centres = {
        "stsb": (0.4, 0.5),
        "banking77": (0.6, -0.6),
        "cranfield, queries": (-0.8, 0.0),
        "cranfield, documents": (-0.7, 0.2),
    }
    teacher = np.array([centres[group] for group in groups]) + 0.15 * generator.normal(size=(len(groups), 2))
    sets = [
        (teacher + noise * generator.normal(size=teacher.shape)).round(4).tolist() for noise in (0.1, 0.15, 0.2, 0.12)
    ]
    return {
        "count": 3,
        **shares(400, 0),
        "groups": [{"name": name, **shares(100, number)} for number, name in enumerate(GROUPS, 1)],
        "lengths": [{"from": low, "to": high, **shares(rows, low)} for (low, high), rows in zip(LENGTHS, (40, 160, 120, 80), strict=True)],  # noqa: E501
        "cosines": [[1.0, 0.1, 0.05], [0.1, 1.0, 0.2], [0.05, 0.2, 1.0]],
        "plane": {
            "teacher": teacher.round(4).tolist(), "experts": sets[:3], "mixture": sets[3], "likeness": [0.91, 0.84, 0.77, 0.88],  # noqa: E501
            "raw": sets,
            "axes": 9, "variance": 0.52, "groups": groups, "labels": [f"text {number}" for number in range(len(groups))],  # noqa: E501
        },
    }  # fmt: skip


def sample_planes() -> list[dict[str, Any]]:
    generator, rows = np.random.default_rng(8), []
    for text in ("the wing flutters at high speed", "a man plays a guitar"):
        words = text.split()
        places = generator.normal(size=(len(words), 2))
        sides = {
            name: places + noise * generator.normal(size=places.shape)
            for name, noise in (("teacher", 0), ("student", 0.3))
        }
        row: dict[str, Any] = {
            name: {"tokens": words, "places": found.round(4).tolist()} for name, found in sides.items()
        }
        split = [words[0], words[1][:2], "·" + words[1][2:], *words[2:]]
        row["untrained"] = {"tokens": split, "places": generator.normal(size=(len(split), 2)).round(4).tolist()}
        rows.append({"text": text, "models": row, "likeness": {"student": 0.81, "untrained": None if rows else 0.32}})
    return rows


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
