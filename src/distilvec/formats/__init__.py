"""What a student is saved as: the sentence-transformers folder, ONNX, int8, OpenVINO, two models in one folder."""

import os

# ONNX Runtime's wheels for Linux (1.31) keep an id below ~/.cache/Microsoft and send events; read when it is imported
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
