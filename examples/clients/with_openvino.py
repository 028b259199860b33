"""Vectors from OpenVINO, by Sentence Transformers: python with_openvino.py STUDENT/openvino/FILE QUERY DOCUMENT ..."""

# pip install sentence-transformers==6.2.0 optimum-intel==2.2.0

import json
import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer

file, query, *documents = Path(sys.argv[1]), *sys.argv[2:]
settings = {"file_name": file.name, "ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}  # else bf16 where there is bf16
model = SentenceTransformer(str(file.parents[1]), backend="openvino", model_kwargs=settings, local_files_only=True)
queries = model.encode_query([query])  # the student's prompts are prepended by role
print(json.dumps({"queries": queries.tolist(), "documents": model.encode_document(documents).tolist()}))
