"""The same texts give the same tokenizer.json in every process, and every word of known letters has known tokens."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import architectures
import pytest

from distilvec.config.student import VocabularySection
from distilvec.core.model_name import ModelName
from distilvec.models.load import load_tokenizer
from distilvec.vocabulary.choose import choose
from distilvec.vocabulary.pieces import Pieces
from distilvec.vocabulary.train import train_tokenizer
from distilvec.vocabulary.trim import Words, hybrid

SYLLABLES = [first + second for first in "bcdfghklmnprst" for second in "aeiou"]
KINDS = [{"kind": kind, "size": 400} for kind in ("wordpiece", "unigram", "bpe")]
MIXED = {"kind": "hybrid", "target": "a", "share": 60, "size": 260}


def equal_words() -> list[str]:
    """Texts in which many pairs of letters are equally frequent."""
    draw = random.Random(0)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(1600)]
    return [" ".join(words[first : first + 8]) for first in range(0, len(words), 8)]


def write_all(folder: Path) -> None:
    """Save tokenizers of every kind in `folder`, chosen for two models of other kinds."""
    texts = {"a": lambda: iter(equal_words()), "b": lambda: iter(["a river", "stones"])}
    for name in ("bert", "xlm_roberta"):
        path = folder.parent / name
        pieces = Pieces(load_tokenizer(ModelName(str(path))), name)
        for section in (*KINDS, MIXED):
            made = choose(VocabularySection(**section), pieces, texts).tokenizer
            made.save_pretrained(folder / f"{name}-{section['kind']}")


def test_every_process_makes_the_same_files(tmp_path):
    for name in ("bert", "xlm_roberta"):
        getattr(architectures, name)(tmp_path / name)
    contents = []
    for seed, threads in (("1", "1"), ("2", "3")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        folder = tmp_path / seed
        subprocess.run([sys.executable, __file__, str(folder)], env=environment, check=True)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        contents.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
    assert sum(name.endswith("tokenizer.json") for name in contents[0]) == 8
    assert [name for name in contents[0] if contents[0][name] != contents[1][name]] == []


LETTERS = {
    "Thai": "กขคงจชดตถทนบปผพมยรลวสหอ",
    "Lao": "ກຂຄງຈສຊຍດຕຖທນບປຜຝພມ",
    "Khmer": "កខគងចជញដតថទនបផពមយរលវសហអ",
    "Japanese": "のにはをたがでてとしれさいるあっ日本語文字",
    "base64": "ABCDEFGHabcdefgh01234567",
    "emoji": "😀👩🏽🚀❤",
}


@pytest.mark.parametrize("language", LETTERS)
@pytest.mark.parametrize("name", ["bert", "xlm_roberta"])
def test_words_of_any_length_have_known_tokens(language, name, tmp_path):
    """Also letters that the texts of the training have at the beginning of words alone."""
    draw = random.Random(0)
    alphabet = sorted(LETTERS[language])
    texts = ["".join(draw.choices(alphabet[1:], k=length)) for length in (3, 40, 99, 101, 150, 900)]
    texts += [f"{alphabet[0]}{text}" for text in texts]
    new = ["".join(draw.choices(alphabet, k=length)) for length in (5, 200, 201, 5000)]
    pieces = Pieces(load_tokenizer(ModelName(str(getattr(architectures, name)(tmp_path / name)))), name)
    made = train_tokenizer(lambda: texts, "wordpiece", 200, pieces)
    tokens = [made(text, add_special_tokens=False)["input_ids"] for text in [*texts, *new]]
    assert all(made.unk_token_id not in row for row in tokens)
    assert len(set(map(tuple, tokens))) == len(tokens)
    letters = made.backend_tokenizer.normalizer.normalize_str(new[-1]) if made.backend_tokenizer.normalizer else new[-1]
    back = made.decode(tokens[-1], clean_up_tokenization_spaces=False)
    assert back.replace(" ", "") == letters.replace(" ", "")


def test_a_language_added_to_a_wordpiece_model_has_long_words(tmp_path):
    pieces = Pieces(load_tokenizer(ModelName(str(architectures.bert(tmp_path / "bert")))), "bert")
    word = "rivers" * 60
    made = hybrid(pieces, Words([word, "rivers"], pieces), lambda: [word, "rivers"], {}, 20, 200).tokenizer
    tokens = made(word, add_special_tokens=False)["input_ids"]
    assert len(tokens) > 1 and made.unk_token_id not in tokens


@pytest.mark.parametrize("name", ["bert", "xlm_roberta"])
def test_a_language_added_to_a_model_has_all_its_letters(name, tmp_path):
    """Also those that its texts have only in frequent words, and once."""
    pieces = Pieces(load_tokenizer(ModelName(str(getattr(architectures, name)(tmp_path / name)))), name)
    texts = ["กขคง จชด กขคง"] * 50 + ["ตถท"]
    always = len(hybrid(pieces, Words(["a"], pieces), lambda: ["a"], {}, 1, 1).tokenizer)
    made = hybrid(pieces, Words(texts, pieces), lambda: texts, {}, 60, always + 60).tokenizer
    for word in ("ทถตดชจ", "งคขก", "ก", "ท"):
        assert made.unk_token_id not in made(word, add_special_tokens=False)["input_ids"], word


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
