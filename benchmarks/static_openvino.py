"""sentence-transformers' own int8 for OpenVINO, with its defaults; for a Python with sentence-transformers[openvino].

    PYTHON benchmarks/static_openvino.py MODEL OUT TEXTS      `benchmarks.int8 --peer-python PYTHON` runs it

TEXTS is a folder with a JSONL file of texts, `sentence`, in place of sst2 from the hub, by which it calibrates.
"""

from __future__ import annotations

import sys

from sentence_transformers import SentenceTransformer, export_static_quantized_openvino_model

if __name__ == "__main__":
    folder, out, texts = sys.argv[1:]
    model = SentenceTransformer(folder, backend="openvino", model_kwargs={"export": True})
    export_static_quantized_openvino_model(
        model,
        None,
        out,
        dataset_name=texts,
        dataset_config_name="default",
        dataset_split="train",
        column_name="sentence",
    )
