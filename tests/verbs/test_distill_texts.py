"""What a user names as texts and as a test, as sources and suites."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused

from distilvec.config import recipe as recipes
from distilvec.config.schema import SourceSection, TeacherSection
from distilvec.core.errors import about
from distilvec.data.sources import read_source
from distilvec.evaluation.suite import load_suite
from distilvec.pipeline.inputs import teacher_keys
from distilvec.teachers.open import open_table
from distilvec.teachers.sources import index_keys
from distilvec.verbs.distill.evaluation_data import suite_of
from distilvec.verbs.distill.recipe import make_recipe
from distilvec.verbs.distill.request import Request
from distilvec.verbs.distill.texts import text_sources, with_column, with_pieces
from distilvec.verbs.distill.words import check_texts
from distilvec.verbs.finetune import finetune_recipe

DOCUMENT = {"role": "document", "language": None}


def write_lines(path: Path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# -- texts ---------------------------------------------------------------------------------------------------------


def test_files_folders_and_globs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "c.jsonl"):
        Path(name).write_text("text\n")
    assert text_sources("a.txt", tmp_path, **DOCUMENT) == [{"path": str(tmp_path / "a.txt"), "role": "document"}]
    paths = [source["path"] for source in text_sources([Path("*.txt"), Path("c.jsonl")], tmp_path, **DOCUMENT)]
    assert paths == [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.jsonl")]


def test_standard_input_is_one_text_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("first\nsecond\n"))
    (source,) = text_sources([Path("-")], tmp_path, role="query", language="tr")
    rows = [json.loads(line) for line in Path(source["path"]).read_text().splitlines()]
    assert rows == [{"text": "first"}, {"text": "second"}]
    assert (source["role"], source["language"]) == ("query", "tr")


@pytest.mark.parametrize("line_end", ["\r\n", "\r"])
def test_standard_input_is_read_as_a_text_file_is(tmp_path, monkeypatch, line_end):
    content = line_end.join(["\ufefffirst", "second\u2028line", ""])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode()), encoding="utf-8", newline="\n"))
    (source,) = text_sources("-", tmp_path, **DOCUMENT)
    (tmp_path / "a.txt").write_bytes(content.encode())
    from_file = [text.rstrip("\r\n") for text in read_source(SourceSection(path=tmp_path / "a.txt"), 0)]
    assert list(read_source(SourceSection.model_validate(source), 0)) == from_file == ["first", "second\u2028line"]


def test_empty_standard_input_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    with refused("texts"):
        text_sources("-", tmp_path, **DOCUMENT)


def test_a_list_of_texts_is_not_a_list_of_files(tmp_path):
    (source,) = text_sources(["some words", "further words"], tmp_path, **DOCUMENT)
    lines = Path(source["path"]).read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["some words", "further words"]


@pytest.mark.parametrize("name", ["owner/name", "nyu-mll/glue"])
def test_data_sets_of_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert text_sources(name, tmp_path, **DOCUMENT) == [{"dataset": name, "role": "document"}]
    check_texts([name])


@pytest.mark.parametrize("name", ["texts.txt", "folder/texts.jsonl", "folder/texts", "nowhere.parquet", "plain"])
def test_missing_paths_are_refused_before_any_work(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    with refused("texts", name), about("texts"):
        check_texts([name])


def test_a_missing_path_names_the_nearest_file(tmp_path):
    (tmp_path / "documents.txt").write_text("text")
    with refused("texts", "documents.txt"), about("texts"):
        check_texts([str(tmp_path / "documnets.txt")])


def test_a_pattern_without_files_is_refused(tmp_path):
    with refused("texts"):
        text_sources(str(tmp_path / "*.txt"), tmp_path, **DOCUMENT)


def test_long_texts_are_trained_in_pieces_too(tmp_path):
    long = write_lines(tmp_path / "long.jsonl", [{"text": "A sentence of some words. " * 60}] * 3)
    short = write_lines(tmp_path / "short.jsonl", [{"text": "A sentence."}] * 3)
    sources = with_pieces(text_sources([long, short], tmp_path, **DOCUMENT))
    assert [(Path(source["path"]).name, source.get("pieces")) for source in sources] == [
        ("long.jsonl", None), ("long.jsonl", 400), ("short.jsonl", None),
    ]  # fmt: skip
    assert sources[1]["name"] == "long_pieces"


def test_a_file_that_cannot_be_read_is_left_to_the_corpus(tmp_path):
    """Which names it by its place among the sources: here it is not known."""
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1, and nothing of a table, PAR1")
    (source,) = text_sources([tmp_path / "damaged.parquet"], tmp_path, **DOCUMENT)
    assert with_pieces([source]) == [source] == with_column([source], "text", where_there=True)


# -- tests -----------------------------------------------------------------------------------------------------------


def load(path, tmp_path):
    (task,) = load_suite(suite_of(path, tmp_path / "cache"))
    return task


def test_scored_pairs(tmp_path):
    rows = [{"sentence1": f"first {n}", "sentence2": f"second {n}", "score": n} for n in range(5)]
    task = load(write_lines(tmp_path / "pairs.jsonl", rows), tmp_path)
    assert (task.type, task.name, list(task.gold)) == ("sts", "pairs", [0, 1, 2, 3, 4])


def test_matching_pairs_by_their_label(tmp_path):
    rows = [{"sentence1": "a", "sentence2": "b", "label": label} for label in ("no", "yes", "yes")]
    task = load(write_lines(tmp_path / "pairs.jsonl", rows), tmp_path)
    assert (task.type, list(task.positive)) == ("pair", [False, True, True])


def test_no_other_column_of_a_labelled_parquet_file_is_read(tmp_path, columns_read):
    rows = [{"text": f"{label} {n}", "label": label, "vector": [0.5]} for n in range(10) for label in ("x", "y")]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "intents.parquet")
    assert load(tmp_path / "intents.parquet", tmp_path).type == "classification"
    assert columns_read == {"text", "label"}


def test_pairs_without_a_clear_label_are_refused(tmp_path):
    rows = [{"sentence1": "a", "sentence2": "b", "label": label} for label in ("left", "right")]
    with refused("test", "left"):
        suite_of(write_lines(tmp_path / "pairs.jsonl", rows), tmp_path)


def test_one_of_three_numbers_is_no_label_of_matching_pairs(tmp_path):
    """SNLI counts entailment, neutral, contradiction from 0."""
    rows = [{"sentence1": "a", "sentence2": "b", "label": label} for label in (0, 1, 2)]
    with refused("test", "0, 1, 2"):
        suite_of(write_lines(tmp_path / "pairs.jsonl", rows), tmp_path)
    for row, label in zip(rows, ("entailment", "neutral", "contradiction"), strict=True):
        row["label"] = label
    assert list(load(write_lines(tmp_path / "named.jsonl", rows), tmp_path).positive) == [True, False, False]


def test_labelled_texts_without_a_split_are_split_by_label(tmp_path):
    rows = [{"text": f"{label} {n}", "label": label} for n in range(10) for label in ("x", "y")]
    rows.append({"text": "rare", "label": "z"})
    task = load(write_lines(tmp_path / "intents.jsonl", rows), tmp_path)
    assert task.type == "classification"
    assert sorted(task.test_labels) == ["x", "x", "y", "y"]
    assert len(task.train_texts) == 17
    assert not set(task.test_texts) & set(task.train_texts)


def test_a_split_of_the_file_is_kept(tmp_path):
    rows = [
        {"text": f"{split} {label}", "label": label, "split": split} for split in ("train", "test") for label in "xy"
    ]
    task = load(write_lines(tmp_path / "intents.jsonl", rows), tmp_path)
    assert task.test_texts == ["test x", "test y"]


def test_queries_and_their_documents_are_a_search_task(tmp_path):
    rows = [
        {"query": "how old", "document": "ten years"},
        {"query": "how far", "document": "ten miles"},
        {"query": "what distance", "document": "ten miles"},
    ]
    task = load(write_lines(tmp_path / "pairs.jsonl", rows), tmp_path)
    assert task.type == "retrieval"
    assert sorted(task.documents) == ["ten miles", "ten years"]
    assert sorted(task.queries) == ["how far", "how old", "what distance"]


def test_a_folder_in_the_form_of_beir(tmp_path):
    folder = tmp_path / "search"
    folder.mkdir()
    write_lines(folder / "corpus.jsonl", [{"_id": "d", "text": "document"}])
    write_lines(folder / "queries.jsonl", [{"_id": "q", "text": "query"}])
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    assert load(folder, tmp_path).queries == ["query"]


def test_a_folder_of_splits(tmp_path):
    folder = tmp_path / "topics"
    folder.mkdir()
    for split in ("train", "validation"):
        write_lines(folder / f"{split}.jsonl", [{"text": f"{split} {label}", "label": label} for label in "xy"])
    assert load(folder, tmp_path).test_texts == ["validation x", "validation y"]


def test_a_suite_is_taken_as_it_is(tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text("[]")
    assert suite_of(suite, tmp_path) == suite


SCORED = "sentence1,sentence2,score\na cat,a tiger,4\na dog,a lake,0\na sun,a star,3\n"


def linked(path, content):
    """A file as the caches of the hub and of DVC have it: a link with the ending to a file whose name is a hash."""
    blobs = path.parent.parent / "blobs"
    for folder in (blobs, path.parent):
        folder.mkdir(exist_ok=True)
    blob = blobs / f"{len(list(blobs.iterdir())):08x}"
    blob.write_bytes(content.encode() if isinstance(content, str) else content)
    path.symlink_to(f"../blobs/{blob.name}")
    return path


def test_a_link_has_the_ending_and_its_target_has_none(tmp_path):
    texts = linked(tmp_path / "snapshot" / "train.txt", "one\ntwo\n")
    for name in (texts, tmp_path / "snapshot" / "*.txt"):
        (source,) = text_sources(name, tmp_path, **DOCUMENT)
        assert len(list(read_source(SourceSection.model_validate(source), 0))) == 2

    scored = linked(tmp_path / "snapshot" / "scored.csv", SCORED)
    suite = linked(tmp_path / "snapshot" / "suite.yaml", "[{name: near, type: sts, path: scored.csv}]\n")
    assert [task.name for task in load_suite(suite_of(scored, tmp_path))] == ["scored"]
    assert [task.name for task in load_suite(suite_of(suite, tmp_path))] == ["near"]
    assert load_suite(suite_of(linked(tmp_path / "split" / "test.csv", SCORED).parent, tmp_path))

    table = tmp_path / "table.parquet"
    pq.write_table(pa.table({"text": ["one", "two"], "teacher_embedding_final": [[0.0, 1.0], [1.0, 0.0]]}), table)
    index = linked(tmp_path / "snapshot" / "index.parquet", table.read_bytes())
    for keys in (index_keys(index), teacher_keys(index, "-", tmp_path)):
        assert open_table(TeacherSection.model_validate(keys)).dim == 2
    assert index_keys(index, texts=texts)["texts"] == str(texts)


def test_recipes_name_links(tmp_path):
    texts = linked(tmp_path / "snapshot" / "train.txt", "one\ntwo\n")
    suite = linked(tmp_path / "snapshot" / "suite.yaml", "[{name: near, type: sts, path: scored.csv}]\n")
    rows = linked(tmp_path / "snapshot" / "rows.csv", "text,label\n")
    file = tmp_path / "recipe.yaml"
    file.write_text(
        "name: a\nteacher: {model: b}\nstudent: {model: teacher}\nmethod: {name: redact}\n"
        "corpus: {sources: snapshot/train.txt}\nevaluation: {suite: snapshot/suite.yaml}\n"
    )
    recipe = recipes.load(file)
    assert (recipe.corpus.sources[0].path, recipe.evaluation.suite) == (texts, suite)
    tree = finetune_recipe("model", rows, "classification", "joint", None)
    assert recipes.recipe_from(tree, {}, "a test").task.path == rows


@pytest.mark.parametrize("name", [".", "..", "../.hidden"])
def test_a_test_may_be_the_current_folder(name, tmp_path, monkeypatch):
    (tmp_path / ".hidden" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / ".hidden" / ("below" if name == ".." else ""))
    (tmp_path / ".hidden" / "test.csv").write_text(SCORED)
    (task,) = load_suite(suite_of(Path(name), tmp_path / "cache"))
    assert task.name == "hidden"


@pytest.mark.parametrize("rows", [[], [{"title": "a", "body": "b"}]])
def test_unknown_forms_are_refused(rows, tmp_path):
    with refused("test"):
        suite_of(write_lines(tmp_path / "rows.jsonl", rows), tmp_path)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"query": "a", "document": "b"}, {"query": "a"}),
        ({"query": "a", "document": "b"}, {"query": "a", "document": None}),
        ({"text": "a", "label": "b"}, {"text": "a"}),
        ({"text": "a", "label": "b"}, {"text": None, "label": "b"}),
        ({"text": "a", "label": "b"}, {"text": "a", "label": None}),
        ({"sentence1": "a", "sentence2": "b", "label": 1}, {"sentence1": "a", "sentence2": "b"}),
        ({"sentence1": "a", "sentence2": "b", "label": 1}, {"sentence1": "a", "sentence2": None, "label": 0}),
        ({"sentence1": "a", "sentence2": "b", "score": 1}, {"sentence1": "a", "sentence2": "b", "score": None}),
    ],
)
def test_rows_that_differ_from_the_first_are_named(first, second, tmp_path):
    with refused("test", "rows.jsonl, line 2"):
        suite_of(write_lines(tmp_path / "rows.jsonl", [first, second]), tmp_path)


def test_rows_of_other_splits_may_lack_labels(tmp_path):
    rows = [{"sentence1": "a", "sentence2": "b", "label": label, "split": "dev"} for label in (True, False)]
    rows.append({"sentence1": "a", "sentence2": "b", "label": None, "split": "other"})
    task = load(write_lines(tmp_path / "pairs.jsonl", rows), tmp_path)
    assert list(task.positive) == [True, False]


def test_no_text_is_in_both_parts_of_labelled_texts(tmp_path, capsys):
    rows = [{"text": f"{label} {n}", "label": label} for n in range(10) for label in ("x", "y")]
    rows += [{"text": f"X  {n}", "label": "y"} for n in range(5)]
    task = load(write_lines(tmp_path / "intents.jsonl", rows), tmp_path)
    assert len(task.train_texts) == 16 and len(task.test_texts) == 4
    assert "5 rows repeat" in capsys.readouterr().err


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "TEST"), ("train", "valid"), ("train", "held_out")])
def test_a_split_with_another_name_is_scored(names, tmp_path):
    rows = [{"text": f"{split} {label}", "label": label, "split": split} for split in names for label in "xy"]
    task = load(write_lines(tmp_path / "intents.jsonl", rows), tmp_path)
    assert task.test_texts == [f"{names[1]} {label}" for label in "xy"]
    assert task.train_texts == [f"{names[0]} {label}" for label in "xy"]


def test_splits_of_which_several_could_be_the_test_are_refused(tmp_path):
    rows = [{"text": f"{split} {label}", "label": label, "split": split} for split in ("a", "b") for label in "xy"]
    with refused("test", "a, b"):
        suite_of(write_lines(tmp_path / "intents.jsonl", rows), tmp_path)


def test_a_missing_test_is_refused(tmp_path):
    with refused("test", "nowhere"):
        suite_of(tmp_path / "nowhere.csv", tmp_path)


# -- columns ----------------------------------------------------------------------------------------------------------


def test_the_column_of_the_texts_is_named_where_the_teacher_is_no_index(tmp_path):
    """The fix that the note on unread columns names; FlagEmbedding's rows have lists of texts."""
    rows = [{"query": f"q {number}", "pos": [f"p {number}"], "neg": [f"n {number}"]} for number in range(4)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    request = Request("org/teacher", [path], columns={"text": "pos"})
    (source,) = make_recipe(request, tmp_path / "cache").corpus.sources
    assert source.column == "pos" and list(read_source(source, 0)) == [f"p {number}" for number in range(4)]
    with refused("columns", "embedding=v"):
        make_recipe(replace(request, columns={"embedding": "v"}), tmp_path / "cache")


def test_a_file_of_test_rows_alone_is_split_as_one_without_splits(tmp_path):
    rows = [{"text": f"{label} {n}", "label": label, "split": "test"} for n in range(10) for label in ("x", "y")]
    task = load(write_lines(tmp_path / "intents.jsonl", rows), tmp_path)
    assert sorted(task.test_labels) == ["x", "x", "y", "y"] and len(task.train_texts) == 16


def test_blanks_beside_a_split_are_no_part_of_it(tmp_path):
    (tmp_path / "intents.csv").write_text("text,label,split\na,x,train\nb,y, train\nc,x,test\nd,y,test \n")
    task = load(tmp_path / "intents.csv", tmp_path)
    assert task.test_texts == ["c", "d"] and task.train_texts == ["a", "b"]


def test_a_few_texts_of_a_label_are_tested_too(tmp_path):
    rows = [{"text": f"{label} {n}", "label": label} for n in range(2) for label in ("x", "y")]
    task = load(write_lines(tmp_path / "intents.jsonl", rows), tmp_path)
    assert task.train_texts == ["x 0", "y 0"] and task.test_texts == ["x 1", "y 1"]
    rows = [{"text": label, "label": label} for label in ("x", "y")]
    with refused("test", "two texts"):
        suite_of(write_lines(tmp_path / "single.jsonl", rows), tmp_path)


def test_the_queries_of_the_test_rows_are_searched_among_all_documents(tmp_path):
    rows = [{"query": f"q{n}", "document": f"d{n}", "split": "test" if n < 2 else "train"} for n in range(10)]
    task = load(write_lines(tmp_path / "pairs.jsonl", rows), tmp_path)
    assert sorted(task.queries) == ["q0", "q1"] and len(task.documents) == 10
