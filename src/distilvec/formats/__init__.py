"""What a student is saved as: the sentence-transformers folder, ONNX, int8, OpenVINO, two models in one folder."""

import os
import sys

# ONNX Runtime's wheels for Linux (1.31) keep an id below ~/.cache/Microsoft and send events; read when it is imported
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# OpenVINO (2026.4) and NNCF send events to Google Analytics when they are imported; without this package they do not
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
