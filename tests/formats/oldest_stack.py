"""Run by test_portable_compat.py under PYTHONPATH=.compat: encodes texts with the oldest supported stack.

Usage: python oldest_stack.py JOB.json ANSWER.json; the job has `texts`, `folders` and of these the `trusted`, whose
code may run; the answer versions, vectors and token ids.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any


def hide_datasets() -> None:
    """Make sentence-transformers 5.1 believe `datasets` is not there: the installed one needs a newer huggingface-hub."""  # noqa: E501
    real = importlib.metadata.metadata

    def metadata(name: str) -> Any:
        if name == "datasets":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    importlib.metadata.metadata = metadata
    sys.modules["datasets"] = None


def main(job_file: str, answer_file: str) -> None:
    sys.modules["distilvec"] = None  # as where it is not installed
    hide_datasets()
    import sentence_transformers
    import transformers

    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    models: dict[str, Any] = {}
    for folder in job["folders"]:
        model = sentence_transformers.SentenceTransformer(
            folder, device="cpu", trust_remote_code=folder in job["trusted"]
        )
        models[folder] = {
            "document": model.encode(job["texts"]).tolist(),
            "query": model.encode_query(job["texts"]).tolist(),
            "ids": [model.tokenizer(text)["input_ids"] for text in job["texts"]],
            "modules": [type(module).__name__ for module in model],
            "max_length": model.max_seq_length,
            "prompts": model.prompts,
            "similarity": model.similarity_fn_name,
        }
    versions = {package.__name__: package.__version__ for package in (sentence_transformers, transformers)}
    Path(answer_file).write_text(json.dumps({"versions": versions, "models": models}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
