#!/usr/bin/env bash
# transformers 5.23.0: a tokenizer that 4.57.6 saved as BertTokenizerFast loses its normalizer, its splits of digits,
# its longest word and its template, without a warning.
#
# In 4.57.6 a BertTokenizerFast is what its tokenizer.json states. 5.23.0 makes a BertTokenizer of the vocabulary alone,
# with the parts of BERT, and is_fast stays True. Communities that gave BERT a normalizer for their language (here the
# dotless Turkish I) get other tokens of the same folder, and so other vectors than those they stored. With
# "tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json, 5.23.0 reads the whole file.
# Known in kind, for other classes: huggingface/transformers#45701, generative-computing/mellea#947.
#
# Fails if that changes. Output seen on 2026-11-30:
#   4.57.6 BertTokenizerFast: ['ıstanbul', '2', '0', '[UNK]']
#   5.23.0 BertTokenizer: ['[CLS]', 'istanbul', '20', 'constantinople', '[SEP]']
#   5.23.0 TokenizersBackend: ['ıstanbul', '2', '0', '[UNK]']
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 4.57.6 5.23.0; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet --disable-pip-version-check "transformers==$version"
done
cat > "$folder/save.py" <<'PY'
import sys

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertTokenizerFast

special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
words = [*special, "istanbul", "\u0131stanbul", "constantinople", "2", "0", "20"]
vocabulary = {word: number for number, word in enumerate(words)}
tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=10))
tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("I", "\u0131"), normalizers.Lowercase()])
tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)]
)
BertTokenizerFast(tokenizer_object=tokenizer).save_pretrained(sys.argv[1])
PY
cat > "$folder/read.py" <<'PY'
import sys

import transformers

tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
tokens = tokenizer.convert_ids_to_tokens(tokenizer("Istanbul 20 Constantinople")["input_ids"])
print(f"{transformers.__version__} {type(tokenizer).__name__}: {tokens}")
PY
export TRANSFORMERS_VERBOSITY=error PYTHONIOENCODING=utf-8
"$folder/4.57.6/bin/python" "$folder/save.py" "$folder/model"
{
    "$folder/4.57.6/bin/python" "$folder/read.py" "$folder/model"
    "$folder/5.23.0/bin/python" "$folder/read.py" "$folder/model"
    sed -i 's/"BertTokenizer[A-Za-z]*"/"PreTrainedTokenizerFast"/' "$folder/model/tokenizer_config.json"
    "$folder/5.23.0/bin/python" "$folder/read.py" "$folder/model"
} | tee "$folder/output"
diff - "$folder/output" <<'EXPECTED'
4.57.6 BertTokenizerFast: ['ıstanbul', '2', '0', '[UNK]']
5.23.0 BertTokenizer: ['[CLS]', 'istanbul', '20', 'constantinople', '[SEP]']
5.23.0 TokenizersBackend: ['ıstanbul', '2', '0', '[UNK]']
EXPECTED
