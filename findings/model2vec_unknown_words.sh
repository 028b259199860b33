#!/usr/bin/env bash
# model2vec 0.10.0 and sentence-transformers 6.2.0: two vectors of a text with unknown words from one folder.
#
# save_pretrained of model2vec writes a modules.json, so that sentence-transformers reads the same folder. model2vec
# leaves unknown tokens out of the mean of a text, sentence-transformers counts the row of [UNK]. A text of unknown words
# has length 0 in the former, and in the latter all such texts have one vector and are nearest to each other. Nothing
# warns. So documents embedded by the one library and queries by the other differ where a word is unknown.
# Known beside it: model2vec cuts texts after 512 tokens, sentence-transformers does not (embeddings-benchmark/mteb#5075).
#
# Fails if that changes. Output seen on 2026-11-30, each text by model2vec, then by sentence-transformers:
#   'red': [1.0, 0.0] [1.0, 0.0]
#   'red fox': [1.0, 0.0] [0.5, 2.0]
#   'fox': [0.0, 0.0] [0.0, 4.0]
#   'owl': [0.0, 0.0] [0.0, 4.0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    model2vec==0.10.0 sentence-transformers==6.2.0 torch==2.13.0
cat > "$folder/unknown.py" <<'PY'
import sys

import numpy as np
from model2vec import StaticModel
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers

tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "red": 1}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
rows = np.array([[0, 4], [1, 0]], dtype=np.float32)
StaticModel(rows, tokenizer, config={"normalize": False}).save_pretrained(sys.argv[1])

readers = StaticModel.from_pretrained(sys.argv[1]), SentenceTransformer(sys.argv[1], device="cpu")
for text in ("red", "red fox", "fox", "owl"):
    print(f"{text!r}:", *(reader.encode([text])[0].tolist() for reader in readers))
PY
"$folder/venv/bin/python" "$folder/unknown.py" "$folder/model" | tee "$folder/output"
diff - "$folder/output" <<'EXPECTED'
'red': [1.0, 0.0] [1.0, 0.0]
'red fox': [1.0, 0.0] [0.5, 2.0]
'fox': [0.0, 0.0] [0.0, 4.0]
'owl': [0.0, 0.0] [0.0, 4.0]
EXPECTED
