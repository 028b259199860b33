"""The texts of a corpus source: columns, filters, folders, datasets, built-in texts, and what is refused."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused

from distilvec.config.schema import SourceSection
from distilvec.data import docstrings
from distilvec.data.sources import read_source, source_content, source_files


def read(path, position=0, **options):
    return list(read_source(SourceSection(path=path, **options), position))


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refuse(key, *parts, path, **options):
    with refused(key) as caught:
        read(path, **options)
    message = str(caught.value)
    assert all(part in message for part in (*parts, str(path))), message


def test_folder_is_read_sorted_at_any_depth(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("b/2.txt", "a.txt", "c.jsonl", "README.md", ".hidden/x.txt", "d.json"):
        (tmp_path / name).write_text(json.dumps({"text": name}) + "\n")
    files = source_files(SourceSection(path=tmp_path), 0)
    assert [str(file.relative_to(tmp_path)) for file in files] == ["a.txt", "b/2.txt", "c.jsonl"]
    assert read(tmp_path)[-1] == "c.jsonl"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"sentence": "s", "text": "t"}, ["t"]),
        ({"sentence": "s", "query": "q"}, ["s"]),
        ({"question": "q", "answer": "a"}, ["q"]),
        ({"anchor": "a", "positive": "p", "negative": "n"}, ["a", "p"]),
        ({"sentence1": "1", "sentence2": "2", "score": 0.5}, ["1", "2"]),
        ({"id": "7", "title": "a title", "text": "body"}, ["body"]),
        ({"id": "7", "title": "a title", "text": " "}, ["a title"]),
        ({"id": "7", "title": "a title", "text": None}, ["a title"]),
        ({"text": None}, [""]),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_columns_are_found_by_name(tmp_path, name, row, expected):
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    else:
        write_jsonl(path, [row])
    assert read(path) == expected


def test_of_query_and_document_the_role_decides(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"query": "q", "document": "d"}])
    assert read(path, role="query") == ["q"]
    assert read(path, role="document") == ["d"]
    assert read(path, column=["query", "document"]) == ["q", "d"]


def test_column_and_where(tmp_path):
    rows = [{"lang": lang, "label": label, "body": f"{lang}{label}"} for lang in ("en", "tr", "de") for label in (0, 1)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for file in (path, tmp_path / "a.parquet"):
        assert read(file, column="body", where={"lang": ["en", "de"], "label": 1}) == ["en1", "de1"]
        assert read(file, column=["body", "lang"], where={"lang": "tr", "label": "0"}) == ["tr0", "tr"]
    refuse("corpus.sources.3.where", "'langs'", "did you mean", path=path, position=3, where={"langs": "en"})
    refuse("corpus.sources.0.column", "'bodi'", "'body'", path=path, column="bodi")


def test_null_in_a_list_of_values_takes_rows_without_one(tmp_path, capsys):
    rows = [{"text": "one", "role": "query"}, {"text": "two", "role": None}, {"text": "three", "role": "document"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for file in (write_jsonl(tmp_path / "a.jsonl", [*rows, {"text": "four"}]), tmp_path / "a.parquet"):
        assert read(file, where={"role": ["query", None]})[:2] == ["one", "two"]
        assert "three" not in read(file, where={"role": ["query", None]})
    assert read(tmp_path / "a.jsonl", where={"role": ["document", None]}) == ["two", "three", "four"]
    assert "no row" not in capsys.readouterr().err


def test_a_condition_that_no_row_meets_is_said(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    write_jsonl(tmp_path / "texts" / "a.jsonl", [{"text": "one", "lang": "en", "part": 1}])
    write_jsonl(tmp_path / "texts" / "b.jsonl", [{"text": "iki", "lang": "tr", "part": 1}])
    assert read(tmp_path / "texts", where={"lang": ["en", "tr"], "part": "1"}) == ["one", "iki"]
    assert "no row" not in capsys.readouterr().err  # each value is in one of the files
    assert read(tmp_path / "texts", where={"lang": ["en", "TR"]}) == ["one"]
    said = capsys.readouterr().err
    assert "no row has 'TR' as 'lang'" in said and "found: 'tr'" in said and "corpus.sources.0.where" in said
    assert read(tmp_path / "texts", where={"lang": "en", "part": 2}) == []
    assert "no row has '2' as 'part'; found: 1 " in capsys.readouterr().err


def test_markdown_files_are_texts_where_a_folder_has_no_others(tmp_path):
    (tmp_path / "one.md").write_text("# One\n\nfirst")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.md").write_text("second\n")
    assert [text.strip() for text in read(tmp_path)] == ["second", "# One\n\nfirst"]
    (tmp_path / "texts.txt").write_text("a line\n")
    assert [text.strip() for text in read(tmp_path)] == ["a line"], "they describe the others"
    (tmp_path / "list.json").write_text('["a", "b"]')
    assert read(tmp_path / "list.json") == ["a", "b"]


def test_files_that_cannot_be_read_are_named(tmp_path):
    key = "corpus.sources.2.path"
    refuse(key, "not found", path=tmp_path / "none.txt", position=2)
    refuse(key, "'.json5'", ".jsonl", path=write_jsonl(tmp_path / "a.json5", [{}]), position=2)
    lines = write_jsonl(tmp_path / "a.json", [{"text": "a"}, {"text": "b"}])
    refuse(key, "not JSON", ".jsonl", path=lines, position=2)
    (tmp_path / "empty").mkdir()
    refuse(key, "no readable file", path=tmp_path / "empty", position=2)
    (tmp_path / "broken.jsonl").write_text("{")
    refuse(key, "line 1", path=tmp_path / "broken.jsonl", position=2)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_nul_is_refused(tmp_path, name):
    rows = [{"text": "good"}, {"text": "bad\0text"}]
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    else:
        write_jsonl(tmp_path / name, rows)
    refuse("corpus.sources.3.path", " 2: ", "NUL", path=tmp_path / name, position=3)


def test_rows_without_texts_are_named(tmp_path):
    path, key = tmp_path / "a.jsonl", "corpus.sources.0"
    refuse(f"{key}.path", "line 2", "'text'", "did you mean", path=write_jsonl(path, [{"text": "a"}, {"txt": "b"}]))
    refuse(f"{key}.column", "line 2", "'text' holds 5", path=write_jsonl(path, [{"text": "a"}, {"text": 5}]))
    refuse(
        f"{key}.column", "bodies, texts", "did you mean 'texts'", path=write_jsonl(path, [{"bodies": "", "texts": ""}])
    )
    pq.write_table(pa.table({"text": [["a"], ["b"]]}), tmp_path / "lists.parquet")
    refuse(f"{key}.column", "row 1", "'text' holds ['a']", path=tmp_path / "lists.parquet")


def test_builtin_docstrings_are_the_passages(monkeypatch):
    monkeypatch.setattr(docstrings, "passages_by_name", lambda: iter([("a.function", "a passage")]))
    assert list(read_source(SourceSection(builtin="python-docstrings"), 0)) == ["a passage"]


def test_missing_datasets_package_is_named(monkeypatch):
    monkeypatch.setattr("distilvec.core.extras._is_there", lambda name: name != "datasets")
    with refused("corpus.sources.1.dataset", "pip install"):
        list(read_source(SourceSection(dataset="some/data"), 1))


def test_saved_dataset_folder(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [0, 1]})
    data.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "many"))
    for name in ("one", "many"):
        section = SourceSection(dataset=str(tmp_path / name), where={"label": 1})
        assert list(read_source(section, 0)) == ["b", "d"]
        assert source_files(section, 0)
    with refused("corpus.sources.0.dataset", "found: train"):
        list(read_source(SourceSection(dataset=str(tmp_path / "many"), split="test"), 0))
    with refused("corpus.sources.0.path", "save_to_disk"):
        read(tmp_path / "one")
    with refused("corpus.sources.0.column", "sentence1, sentence2, label"):
        list(read_source(SourceSection(dataset=str(tmp_path / "one"), column="text"), 0))


class _PayloadError(Exception):
    """As the errors of aiohttp and httpx, it is neither an OSError nor a ValueError."""


@pytest.mark.parametrize("error", [_PayloadError("cut off"), ConnectionError("reset"), ValueError("not JSON")])
def test_a_stream_that_breaks_off_is_named_with_its_row(monkeypatch, error):
    datasets = pytest.importorskip("datasets")

    def rows():
        yield {"text": "a"}
        yield {"text": "b"}
        raise error

    stream = datasets.IterableDataset.from_generator(rows)
    monkeypatch.setattr("distilvec.data.readers._load_dataset", lambda source: stream)
    texts = read_source(SourceSection(dataset="some/data", streaming=True), 1)
    assert [next(texts), next(texts)] == ["a", "b"]
    with refused("corpus.sources.1.dataset", str(error)):
        next(texts)


def test_a_dataset_that_cannot_be_loaded_is_named(monkeypatch):
    pytest.importorskip("datasets")

    def load(source):
        raise _PayloadError("cut off")

    monkeypatch.setattr("distilvec.data.readers._load_dataset", load)
    with refused("corpus.sources.1.dataset", "_PayloadError: cut off"):
        list(read_source(SourceSection(dataset="some/data"), 1))


def test_facts_by_word(tmp_path):
    """The form of REDACT's Vocabulary set; such a file is read if it is named, not if a folder has it."""
    path = tmp_path / "vocabulary.json"
    path.write_text(json.dumps({"linking": ["Linking is joining.", "Linking combines code."], "Pinckney": []}))
    assert read(path) == ["Linking is joining.", "Linking combines code."]
    refuse("corpus.sources.0.path", "no readable file", path=tmp_path)
    path.write_text('["Linking is joining."]')
    assert read(path) == ["Linking is joining."]
    path.write_text('["Linking is joining.", 1]')
    refuse("corpus.sources.0.path", "row 2", path=path)
    path.write_text('{"linking": "Linking is joining."}')
    refuse("corpus.sources.0.path", "word 'linking'", path=path)
    path.write_text('{"linking": [')
    refuse("corpus.sources.0.path", "not JSON", path=path)


def test_every_token_of_a_tokenizer(tiny_model):
    from transformers import AutoTokenizer

    source = SourceSection(tokenizer=str(tiny_model))
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    texts = list(read_source(source, 0))
    assert len(texts) == len(tokenizer) - len(set(tokenizer.all_special_ids)) and "[CLS]" not in texts


def test_a_list_of_texts_is_several_texts(tmp_path):
    """FlagEmbedding's rows."""
    rows = [{"query": "q1", "pos": ["p1", "p2"], "neg": ["n1"]}, {"query": "q2", "pos": [], "neg": ["n2", "n3"]}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    assert read(path, column="pos") == ["p1", "p2"]
    assert read(path, column=["query", "neg"]) == ["q1", "n1", "q2", "n2", "n3"]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", column=["pos", "neg"]) == ["p1", "p2", "n1", "n2", "n3"]
    write_jsonl(path, [{"pos": ["a", 5]}])
    refuse("corpus.sources.0.column", "'pos' holds 5", path=path, column="pos")


def test_a_dotted_name_reaches_a_field(tmp_path):
    rows = [{"doc": {"text": "a", "meta": {"parts": ["b", "c"]}}, "id": 1}, {"doc": None, "id": 2}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    assert read(path, column=["doc.text", "doc.meta.parts"]) == ["a", "b", "c", "", ""]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", column="doc.text") == ["a", ""]
    refuse("corpus.sources.0.path", "no 'doc.txt'", "doc.text", path=path, column="doc.txt")
    write_jsonl(path, [{"doc.text": "with a dot", "doc": {"text": "inside"}}])
    assert read(path, column="doc.text") == ["with a dot"]


def test_a_dotted_name_reaches_the_fields_of_a_list_of_objects(tmp_path):
    rows = [{"passages": [{"text": "a"}, {"text": None}, {"text": "b"}]}, {"passages": []}, {"passages": None}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for file in (path, tmp_path / "a.parquet"):
        assert read(file, column="passages.text") == ["a", "", "b", ""]
    write_jsonl(path, [{"doc": {"passages": [{"lines": ["a", "b"]}, {"lines": ["c"]}]}}])
    assert read(path, column="doc.passages.lines") == ["a", "b", "c"]
    refuse("corpus.sources.0.path", "no 'doc.passages.line'", "lines", path=path, column="doc.passages.line")
    refuse("corpus.sources.0.path", "no 'doc.other.text'", path=path, column="doc.other.text")


@pytest.mark.parametrize("value", ["words", 3, ["words"], {"inner": "words"}])
def test_a_dotted_name_below_what_has_no_fields_is_refused(tmp_path, value):
    column = "meta.inner.text" if isinstance(value, dict) else "meta.text"
    path = write_jsonl(tmp_path / "a.jsonl", [{"meta": None}, {"meta": value}])
    refuse("corpus.sources.0.column", "line 2", "no field 'text'", path=path, column=column)


def test_columns_that_are_not_read_are_told(tmp_path, capsys):
    path = write_jsonl(tmp_path / "a.jsonl", [{"query": "q", "pos": ["p"], "neg": ["n"], "lang": "en"}])
    assert read(path) == ["q"]
    told = " ".join(capsys.readouterr().err.split())
    assert "read from query; pos, neg may also hold texts" in told and "lang" not in told
    read(path, column="query")
    read(write_jsonl(tmp_path / "b.jsonl", [{"query": "q", "document": "d", "id": "1"}]))
    assert capsys.readouterr().err == ""


def test_files_behind_a_link_to_a_folder_are_read(tmp_path):
    for name in ("texts", "more"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"{name}\n")
    (tmp_path / "texts" / "link").symlink_to(tmp_path / "more")
    (tmp_path / "texts" / "loop").symlink_to(tmp_path / "texts")
    assert read(tmp_path / "texts") == ["texts\n", "more\n"]


def test_links_to_folders_are_followed_once(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "texts").mkdir()
    write_jsonl(tmp_path / "elsewhere" / "more.jsonl", [{"text": "behind a link"}])
    write_jsonl(tmp_path / "texts" / "some.jsonl", [{"text": "beside it"}])
    (tmp_path / "texts" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "texts")
    source = SourceSection(path=tmp_path / "texts")
    assert sorted(file.name for file in source_files(source, 0)) == ["more.jsonl", "some.jsonl"]


def test_a_tokenizer_counts_by_its_content_wherever_it_lies(tiny_model, tmp_path, monkeypatch):
    """In the folder of a model's first module, and in the hub's cache."""
    inside = tmp_path / "model" / "0_Transformer"
    snapshot = tmp_path / "hub" / "models--some--tokens" / "snapshots" / ("a" * 40)
    for folder in (inside, snapshot):
        folder.mkdir(parents=True)
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny_model / name, folder)
    (tmp_path / "model" / "modules.json").write_text(json.dumps([{"path": "0_Transformer"}]))
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    contents = set()
    for name, folder in ((str(tmp_path / "model"), inside), ("some/tokens", snapshot)):
        source = SourceSection(tokenizer=name)
        contents.add(source_content(source, 0, []))
        text = (folder / "tokenizer.json").read_text()
        assert '"##eturn"' in text
        (folder / "tokenizer.json").write_text(text.replace('"##eturn"', '"##eturns"'))
        assert any("eturns" in token for token in read_source(source, 0))
        contents.add(source_content(source, 0, []))
    assert len(contents) == 2  # the same two in both places
