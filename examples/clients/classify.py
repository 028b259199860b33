"""Classes and probabilities from ONNX Runtime, without torch: python classify.py STUDENT/onnx/model.onnx TEXT ..."""

# pip install onnxruntime==1.32.0 tokenizers==0.23.3 numpy

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

file, *texts = sys.argv[1:]
folder = Path(file).parents[1]  # next to the file are needed: head.json, tokenizer.json, tokenizer_config.json
head = json.loads((folder / "head.json").read_text(encoding="utf-8"))
settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.enable_truncation(settings["model_max_length"], direction=settings["truncation_side"])
session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def probabilities(text: str) -> np.ndarray:
    tokens = tokenizer.encode(head["prompt"] + text)
    inputs = {"input_ids": np.array([tokens.ids]), "attention_mask": np.array([tokens.attention_mask])}
    logits = session.run(["logits"], inputs)[0][0]
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()  # in the order of head.json's classes


for text in texts:
    found = dict(zip(head["classes"], probabilities(text).tolist(), strict=True))
    print(json.dumps({"text": text, "class": max(found, key=found.get), "probabilities": found}, ensure_ascii=False))
