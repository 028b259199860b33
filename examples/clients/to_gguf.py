"""STUDENT/model.gguf for llama.cpp: python to_gguf.py LLAMA_CPP STUDENT

LLAMA_CPP is a clone of https://github.com/ggml-org/llama.cpp. Its convert_hf_to_gguf.py refuses every vocabulary that
is not on its list, so each one that distilvec trims or trains. This script leaves the list out: it serves BPE, and a
WordPiece vocabulary is in the file as it is. Unigram, BPE and Dense modules are refused: the converter knows none of
them in a BERT.
"""

# pip install distilvec gguf sentencepiece

import json
import sys
from pathlib import Path

llama_cpp, folder = sys.argv[1:]
tokenizer = json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))
modules = json.loads((Path(folder) / "modules.json").read_text(encoding="utf-8"))
found = {tokenizer["model"]["type"], *(one["type"].split(".")[-1] for one in modules)}
if not found <= {"WordPiece", "Transformer", "Pooling", "Normalize"}:
    sys.exit(
        f"llama.cpp cannot run {folder}: {sorted(found)}. Use a WordPiece vocabulary and no Dense module or experts."
    )

sys.path[:0] = [llama_cpp, str(Path(llama_cpp) / "gguf-py")]
import convert_hf_to_gguf  # noqa: E402
from conversion.base import TextModel  # noqa: E402

TextModel.get_vocab_base_pre = lambda model, tokenizer: "default"  # a pattern of BPE; WordPiece has none
sys.argv[1:] = [folder, "--outfile", str(Path(folder) / "model.gguf"), "--outtype", "f32"]
convert_hf_to_gguf.main()
