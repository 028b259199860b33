"""Vectors from ONNX Runtime, without torch: python with_onnxruntime.py STUDENT/onnx/model.onnx QUERY DOCUMENT ..."""

# pip install onnxruntime==1.32.0 tokenizers==0.23.3 numpy

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read at import: ONNX Runtime sends usage events otherwise

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

file, query, *documents = sys.argv[1:]
folder = Path(file).parents[1]
settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
prompts = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))["prompts"]
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.enable_truncation(settings["model_max_length"], direction=settings["truncation_side"])
pad = settings["pad_token"]
tokenizer.enable_padding(direction=settings["padding_side"], pad_id=tokenizer.token_to_id(pad), pad_token=pad)
session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def embed(texts: list[str], role: str) -> list[list[float]]:
    tokens = tokenizer.encode_batch([prompts.get(role, "") + text for text in texts])
    inputs = {"input_ids": [one.ids for one in tokens], "attention_mask": [one.attention_mask for one in tokens]}
    found = session.run(["sentence_embedding"], {name: np.array(rows) for name, rows in inputs.items()})
    return found[0].tolist()  # the whole model: pooled, in the teacher's space, normalised if the teacher is


print(json.dumps({"queries": embed([query], "query"), "documents": embed(documents, "document")}))
