"""What a user would take instead of a student: static vectors by model2vec, distilled from the same teacher.

    pip install 'model2vec[distill]'                              in an environment of its own
    python -m experiments.alternatives distil static-256 --dim 256         there
    python -m experiments.alternatives score static-256 --json results/alternatives.json

Layers cut without training are the column "untrained" of each student's own record.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.models import StaticEmbedding

from distilvec.models.load import resolve_model

TEACHER = "all-MiniLM-L6-v2"
SUITE = Path(__file__).parents[1] / "recipes" / "suites" / "english.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["distil", "score"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dim", type=int, default=256, help="dimensions after the principal components")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    if arguments.action == "distil":
        distil(arguments.folder, arguments.dim)
    else:
        score(arguments.folder, arguments.json)


def distil(folder: Path, dim: int) -> None:
    """Make a SentenceTransformer of static vectors with model2vec's defaults."""
    model = StaticEmbedding.from_distillation(resolve_model(TEACHER), pca_dims=dim, device="cpu")
    SentenceTransformer(modules=[model]).save(str(folder))


def score(folder: Path, path: Path) -> None:
    """Score the model on the eight English tasks, and add the scores to `path`."""
    import distilvec

    scores = distilvec.evaluate(str(folder), SUITE, teacher=TEACHER)
    model = SentenceTransformer(str(folder), device="cpu")
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found[folder.name] = {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "scores": scores.to_dataframe().to_dict("records"),
    }
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
