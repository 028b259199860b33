"""The table of public data covers what recipes and suites read; converters on lines as the sources have them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from refusals import refused

from distilvec.config import recipe as recipes
from distilvec.config.builtin import recipe_files, recipe_folder
from distilvec.config.paths import DATA, data_folder
from distilvec.config.yaml_dialect import read_yaml
from distilvec.data.public_table import OutFile, Part, data_set, data_sets, how_to_get, rows_of_files

CAUSAL = Path(__file__).parents[2] / "experiments" / "causal" / "dolly.yaml"
OTHERS = [*sorted((recipe_folder() / "suites").glob("*.yaml")), CAUSAL]


def paths_of(tree):
    """The paths below the data folder in plain data."""
    if isinstance(tree, str):
        return [tree] if tree.startswith(DATA) else []
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [path for value in values for path in paths_of(value)]


@pytest.mark.parametrize("path", [*recipe_files(), *OTHERS], ids=lambda path: path.stem)
def test_every_public_path_has_a_source(path):
    text = path.read_text(encoding="utf-8")
    assert "../shared/data" not in text, "write $DISTILVEC_DATA/..."
    for found in paths_of(read_yaml(path, "recipe", "")):
        assert how_to_get(data_folder() / found.removeprefix(f"{DATA}/")), found


def test_the_data_folder_is_one_setting(monkeypatch, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("corpus: {sources: [{path: $DISTILVEC_DATA/a.txt}]}\nvariants: {v: {task.path: $DISTILVEC_DATA/b}}")
    monkeypatch.setenv("DISTILVEC_DATA", str(tmp_path / "mine"))
    tree = recipes.resolved_tree(path, "v")
    assert tree["corpus"]["sources"][0]["path"] == str(tmp_path / "mine/a.txt")
    assert tree["task"]["path"] == str(tmp_path / "mine/b")
    monkeypatch.delenv("DISTILVEC_DATA")
    monkeypatch.chdir(tmp_path)
    assert recipes.resolved_tree(path)["corpus"]["sources"][0]["path"] == str(tmp_path / "data/a.txt")


def test_names_and_sums_of_the_table():
    for name, entry in data_sets().items():
        assert entry.manual or all(isinstance(file, OutFile) and file.parts for file in entry.files.values()), name
        parts = [part for file in entry.files.values() for part in file.parts]
        assert all(part.dataset or part.repository or entry.repository for part in parts), name
        assert all(file.sha256 is None or len(file.sha256) == 64 for file in entry.files.values()), name
    with refused("data", "'stsb'?"):
        data_set("stbs")


# -- converters --------------------------------------------------------------------------------------------------------


def part_of(name, number=0, file=0):
    return list(data_set(name).files.values())[file].parts[number]


@pytest.fixture
def convert(tmp_path):
    """Rows of a part of files with these contents."""

    def rows(part, *contents, names=None):
        names = names or [f"{number}.txt" for number in range(len(contents))]
        files = {}
        for number, (name, content) in enumerate(zip(names, contents, strict=True)):
            files[name] = tmp_path / str(number)
            files[name].write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(rows_of_files(part, files))

    return rows


@pytest.mark.parametrize("failure", [ConnectionError("no route to the hub"), ValueError("the answer is no JSON")])
def test_a_hub_that_fails_costs_nothing_that_was_downloaded(tmp_path, monkeypatch, failure):
    pytest.importorskip("datasets")
    from published import publish

    from distilvec.data.public_download import DOWNLOADS, get

    def fail(source):
        raise failure

    monkeypatch.setattr("distilvec.data.readers._load_dataset", fail)
    publish(monkeypatch, anli={"anli.jsonl.gz": [part_of("anli-r2").model_dump()]})
    downloaded = tmp_path / DOWNLOADS / "anli" / "another"
    downloaded.parent.mkdir(parents=True)
    downloaded.write_text("of another part")
    with refused("data", "another machine"):
        get("anli", tmp_path)
    assert downloaded.exists()


CASES = {
    "banking77": (
        ('text,category\n"Hi, where is it?",card_arrival\n',),
        {"split": "train", "text": "Hi, where is it?", "label": "card_arrival"},
    ),
    "stsb": (
        ('main-news\tdeft\t2015\t0001\t3.800\tA "flute".\t A man .\tx\n',),
        {
            "split": "train",
            "sentence1": 'A "flute".',
            "sentence2": "A man .",
            "score": 3.8,
            "genre": "main-news",
            "dataset": "deft",
        },
    ),
    "sts13": (
        ("one\ttwo\n", "0.6\n"),
        {"split": "test", "sentence1": "one", "sentence2": "two", "score": 0.6, "subset": "FNWN"},
    ),
    "mrpc": (
        ('\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tHe "said".\tShe.\r\n',),
        {"split": "train", "sentence1": 'He "said".', "sentence2": "She.", "label": 1},
    ),
    "wic": (
        ("carry\tV\t2-1\tYou must carry it .\tSound carries .\n", "F\n"),
        {
            "split": "train",
            "sentence1": "You must carry it .",
            "sentence2": "Sound carries .",
            "label": 0,
            "word": "carry",
            "pos": "V",
            "index": "2-1",
        },
    ),
    "tweeteval-sentiment": (("so good \n", "2\n"), {"split": "train", "text": "so good ", "label": "positive"}),
    "control-nli": (
        ('{"uid": 1, "premise": "p", "hypothesis": "h", "label": "e"}\n',),
        {"split": "train", "sentence1": "p", "sentence2": "h", "label": "e"},
    ),
    "talas-texts": ((",text,source\n0,a text,EMOTION\n",), {"text": "a text", "source": "EMOTION"}),
    "english-text": (("A B .\tA . <::::> B .\n",), {"text": "A B .", "lang": "en", "source": "wiki-split"}),
    "turkish-text": (
        ("# sent_id = 1\n# text = Çok güzel.\n1\tÇok\t_\n\n",),
        {"text": "Çok güzel.", "lang": "tr", "source": "ud-boun"},
    ),
    "english-queries": (
        ("1048585\twhat is it\n",),
        {"text": "what is it", "lang": "en", "source": "msmarco-passage-dev"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_of_the_published_form(convert, name):
    contents, expected = CASES[name]
    (row,) = convert(part_of(name), *contents)
    assert row == expected and list(row) == list(expected), "and the order of columns"


def test_reviews_of_imdb(convert):
    (row,) = convert(part_of("imdb"), "Good <br />.", names=["data/aclImdb/train/pos/12_9.txt"])
    assert row == {"split": "train", "text": "Good <br />.", "label": "pos", "id": "12_9"}


def test_cranfields_records_and_judgements(convert):
    documents = ".I 1\n.T\nwings in a\nslipstream .\n.A\nb,m.\n.W\nwings  in .\n.I 2\n.T\n.W\n"
    assert convert(part_of("cranfield"), documents) == [
        {"id": "1", "title": "wings in a slipstream .", "text": "wings in ."},
        {"id": "2", "title": "", "text": ""},
    ]
    assert convert(part_of("cranfield", file=1), ".I 004\n.W\nwhat is\nit .\n") == [
        {"id": "1", "text": "what is it .", "original_id": "004"}
    ]
    assert convert(part_of("cranfield", file=2), "1 184 2\n1 29  4 \n") == [
        {"query-id": "1", "corpus-id": "184", "score": 1},
        {"query-id": "1", "corpus-id": "29", "score": 1},
    ]


def test_questions_and_paragraphs(convert):
    asked = [{"question": "Kim?"}, {"question": "Ne?"}]
    paragraphs = [{"context": "Bir.", "qas": asked[:1]}, {"context": "Bir.", "qas": asked[1:]}]
    content = json.dumps({"data": [{"title": "T", "paragraphs": paragraphs}]})
    assert convert(part_of("tquad"), content) == [{"id": "d0", "title": "T", "text": "Bir."}]
    assert [row["id"] for row in convert(part_of("tquad", file=1), content)] == ["q0", "q1"]
    assert convert(part_of("tquad", file=2), content)[1] == {"query-id": "q1", "corpus-id": "d0", "score": 1}


WORDNET = """
00034778-n:
  definition: [an action, a deed]
  example:
  - how could you do such a thing?
  - {text: " do it", source: a book}
  members: [thing, deed]
  partOfSpeech: n
"""


def test_wordnet(convert):
    rows = convert(part_of("wordnet-definitions"), WORDNET)
    assert rows[1] == {"word": "deed", "pos": "noun", "definition": "an action; a deed", "synset": "00034778-n"}
    examples = Part(format="wordnet", rows="examples", clean="ends")
    assert [row["text"] for row in convert(examples, WORDNET)] == ["how could you do such a thing?", "do it"]


def test_paragraphs_and_tagged_words(convert):
    abc = Part(format="paragraphs", clean="spaces", longest=3)
    assert [row["text"] for row in convert(abc, "one\ntwo\n\n \nline one\nline two\n")] == [
        "one two",
        "line one",
        "line two",
    ]
    brown = Part(format="tagged")
    text = "\n\n\tThe/at jury/nn said/vbd ``/`` no/at ''/'' ,/, 1\\/2/cd (/( here/rb )/) ./.\n\n"
    assert [row["text"] for row in convert(brown, text)] == ['The jury said "no", 1\\/2 (here).']


def test_records_that_span_lines(convert):
    npl = next(part for part in data_set("technical-text").files["technical_text/technical_text.jsonl.gz"].parts[::-1])
    text = "1\ncompact memories  a\nsystem\n   /\n2\n3 coils\n   /\n   /\n"
    assert [row["text"] for row in convert(npl, text)] == ["compact memories a system", "3 coils"]


def test_repeated_and_zipped_lines(convert):
    part = Part(format="lines", distinct=True, clean="spaces")
    assert [row["text"] for row in convert(part, gzip.compress(b"a  b\n\na b\nc\n"))] == ["a b", "c"]
    several = Part(format="csv", columns={"text": ["x", "y"]}, each=True)
    assert [row["text"] for row in convert(several, "x,y\n1,2\n")] == ["1", "2"]


def test_names_of_files_have_the_language_and_pair_its_tables(convert):
    names = [f"data/tatoeba/v1/tatoeba.{name}" for name in ("tur-eng.tur", "epo-eng.epo", "epo-eng.eng", "tur-eng.eng")]
    contents = ("Bir .\nİki.\n", "Unu.\n", "One.\n", "One .\nTwo.\n")
    assert convert(part_of("tatoeba"), *contents, names=names) == [
        {"text": "Bir .", "en": "One .", "lang": "tur"},
        {"text": "İki.", "en": "Two.", "lang": "tur"},
        {"text": "Unu.", "en": "One.", "lang": "epo"},
    ]
    with refused("data", "tatoeba.tur-eng.eng: not the expected tsv"):
        convert(part_of("tatoeba"), "Bir.\n", "One.\nTwo.\n", names=[names[0], names[3]])


def test_names_in_braces_are_files_of_their_own(convert):
    part = part_of("miracl-queries", 1)
    names = part.file_names()
    assert names[0] == "topics/topics.miracl-v1.0-ar-train.tsv" and len(names) == 16
    (row, other) = convert(part, "7\tसौ\n", "8\tWas\tist das? \n", names=[names[0], "miracl-v1.0-de-train.tsv"])
    assert row == {"text": "सौ", "lang": "ar", "source": "miracl-train"}
    assert other["text"] == "Was\tist das?" and other["lang"] == "de"
    assert Part(format="lines", files=["a.txt", "b/{c,d}.txt"]).file_names() == ["a.txt", "b/c.txt", "b/d.txt"]


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("banking77", ("a,b\n1,2\n",)),
        ("sts13", ("a\tb\n", "1\n2\n")),
        ("control-nli", ("<html>\n",)),
        ("stsb", ("a\tb\n",)),
    ],
)
def test_other_content_is_refused(convert, name, contents):
    with refused("data", "0.txt"):
        convert(part_of(name), *contents)


def test_a_set_of_the_hub_is_read_through_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    from published import publish

    from distilvec.data.public_download import get

    rows = [{"premise": "p", "hypothesis": "h", "label": 1}]
    datasets.DatasetDict({"train_r2": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path / "hub")
    part = part_of("anli-r2").model_dump() | {"dataset": str(tmp_path / "hub")}
    with pytest.MonkeyPatch.context() as patch:
        publish(patch, anli={"anli.jsonl.gz": [part]})
        (path,) = get("anli", tmp_path / "data")
    with gzip.open(path, "rt") as file:
        assert json.loads(file.read()) == {"split": "train", "sentence1": "p", "sentence2": "h", "label": 1}
