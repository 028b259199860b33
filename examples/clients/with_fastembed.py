"""Vectors from fastembed, without torch: python with_fastembed.py STUDENT/onnx/model.onnx QUERY DOCUMENT ..."""

# pip install fastembed==0.9.1
# pip install fastembed==0.7.4

import json
import sys
from pathlib import Path

from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

file, query, *documents = sys.argv[1:]
folder = Path(file).parents[1]
prompts = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))["prompts"]
TextEmbedding.add_custom_model(
    "student",
    pooling=PoolingType.DISABLED,  # the file's first output is pooled, and normalised if the teacher is
    normalization=False,
    sources=ModelSource(url="http://localhost"),  # not read: the folder is local
    dim=384,  # of the vectors
    model_file=str(Path(file).relative_to(folder)),
)
model = TextEmbedding("student", specific_model_path=str(folder))


def embed(texts: list[str], role: str) -> list[list[float]]:
    return [vector.tolist() for vector in model.embed([prompts.get(role, "") + text for text in texts])]


print(json.dumps({"queries": embed([query], "query"), "documents": embed(documents, "document")}))
