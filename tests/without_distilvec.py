"""`python -m without_distilvec CACHE TEXTS FOLDER ...`: what saved students give where distilvec is not installed.

A process that `commands.Command` has forked need not import torch and transformers again, which takes seconds;
tests/formats/oldest_stack.py is a process from scratch.
"""

from __future__ import annotations

import json
import sys

from sentence_transformers import SentenceTransformer
from transformers import dynamic_module_utils

if __name__ == "__main__":
    for name in [name for name in sys.modules if name.partition(".")[0] == "distilvec"]:
        sys.modules[name] = None
    sys.modules["distilvec"] = None
    dynamic_module_utils.HF_MODULES_CACHE = sys.argv[1]  # of code that comes with models
    texts = json.loads(sys.argv[2])
    for folder in sys.argv[3:]:
        try:
            SentenceTransformer(folder, device="cpu")
            refused = ""
        except ValueError as error:
            refused = str(error)
        model = SentenceTransformer(folder, device="cpu", trust_remote_code=True)
        kinds = [f"{type(module).__module__.split('.')[-1]}.{type(module).__name__}" for module in model]
        vectors = {"vectors": model.encode(texts).tolist(), "queries": model.encode_query(texts).tolist()}
        print(json.dumps({"refused": refused, "kinds": kinds, **vectors}))
