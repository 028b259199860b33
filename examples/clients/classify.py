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


has_several = head["task"]["kind"] == "multilabel"  # labels of a text


def probabilities(text: str) -> np.ndarray:
    tokens = tokenizer.encode(head["prompt"] + text.strip())
    inputs = {"input_ids": np.array([tokens.ids]), "attention_mask": np.array([tokens.attention_mask])}
    logits = session.run(["logits"], inputs)[0][0]
    if has_several:  # each label by itself
        return 1 / (1 + np.exp(-logits))
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()  # in the order of head.json's classes


for text in texts:
    found = dict(zip(head["classes"], probabilities(text).tolist(), strict=True))
    if has_several:
        answer = {"classes": [name for name, share in found.items() if share > 0.5]}
    else:
        answer = {"class": max(found, key=found.get)}
    print(json.dumps({"text": text, **answer, "probabilities": found}, ensure_ascii=False))
