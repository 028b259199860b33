#!/usr/bin/env bash
# tokenizers 0.23.3: the same texts, size and kind give another tokenizer in every process, but for BPE.
#
# WordPieceTrainer: the letters inside words (##a) get their ids in the order of a hash table that is seeded anew in every
# process. Of equally frequent pairs the one of lower ids is merged, so that pieces differ as well.
# UnigramTrainer: letters that no piece needs get the scores min, min + 0.0001, ... in such an order.
# BpeTrainer sorts its letters: equal.
# PYTHONHASHSEED and RAYON_NUM_THREADS=1 do not help. Giving the letters as `initial_alphabet` does not help WordPiece either:
# those are the letters at the beginning of words; as special tokens ("##a") it does.
#
# Fails if that changes. Output seen on 2026-11-28:
#   wordpiece: 6 vocabularies of 6 processes; letters inside words given in order: 1
#   unigram: 6 vocabularies of 6 processes
#   bpe: 1 vocabulary of 6 processes
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
cat > "$folder/train.py" <<'PY'
import hashlib, sys
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

kind = sys.argv[1]
words = [a + b + c for a in ("ka", "lo", "mi", "tu") for b in ("ner", "vas", "pil", "dor") for c in ("", "s", "ing", "é", "ö", "ğ")]
texts = [" ".join(words[(7 * n + k) % len(words)] for k in range(8)) for n in range(300)]
letters = sorted(set("".join(words)))
given = [f"##{letter}" for letter in letters] if kind == "wordpiece-given" else []
if kind.startswith("wordpiece"):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=["[UNK]", *given], show_progress=False)
elif kind == "unigram":
    tokenizer = Tokenizer(models.Unigram())
    trainer = trainers.UnigramTrainer(vocab_size=60, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
else:
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=90, show_progress=False)
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.train_from_iterator(texts, trainer)
print(hashlib.sha256(tokenizer.to_str().encode()).hexdigest())
PY
distinct() {
  for _ in 1 2 3 4 5 6; do
    PYTHONHASHSEED=0 RAYON_NUM_THREADS=1 "$folder/venv/bin/python" "$folder/train.py" "$1"
  done | sort -u | wc -l
}
wordpiece=$(distinct wordpiece); given=$(distinct wordpiece-given); unigram=$(distinct unigram); bpe=$(distinct bpe)
echo "wordpiece: $wordpiece vocabularies of 6 processes; letters inside words given in order: $given"
echo "unigram: $unigram vocabularies of 6 processes"
echo "bpe: $bpe vocabulary of 6 processes"
[ "$wordpiece" -gt 1 ] && [ "$given" = 1 ] && [ "$unigram" -gt 1 ] && [ "$bpe" = 1 ]
