import json

import pytest

from distilvec.data import docstrings as subject
from distilvec.data.docstrings import (
    Docstring,
    is_evaluated,
    spell_out,
    split_first_sentence,
    write_retrieval_task,
)


def collapsed(text):
    return " ".join(text.split())


def loose(text):
    return collapsed(text.casefold())


def test_the_standard_library_is_a_corpus():
    found = subject.docstrings()
    assert len(found) > 5000
    names = {docstring.name for docstring in found}
    assert {"json.loads", "posixpath.expandvars", "textwrap.TextWrapper.wrap", "argparse"} <= names
    assert not any(name.startswith(("test.", "idlelib.idle_test")) or ".tests." in name for name in names)
    assert found == subject.docstrings()
    assert len(list(subject.passages())) > 10_000


def test_order_and_names_of_a_folder(tmp_path):
    (tmp_path / "package" / "test").mkdir(parents=True)
    (tmp_path / "package" / "test" / "b.py").write_text('"""Left out."""')
    (tmp_path / "package" / "__init__.py").write_text(
        '"""Package."""\nif True:\n    def f():\n        "Function f."\n        def g(): "Inner."\n'
    )
    (tmp_path / "package" / "z.py").write_text(
        'class C:\n    """Class.\n\n    Example:\n        indented\n    """\n    async def m(self): "Method."\n'
    )
    (tmp_path / "broken.py").write_text("def (:\n")
    assert list(subject.docstrings(tmp_path)) == [
        ("package", False, "Package."),
        ("package.f", True, "Function f."),
        ("package.f.g", True, "Inner."),
        ("package.z.C", False, "Class.\n\nExample:\n    indented"),
        ("package.z.C.m", True, "Method."),
    ]


def test_first_sentence():
    assert split_first_sentence("Split a path, e.g. a.b.c into\nparts.  Returns two.\n\nMore.") == (
        "Split a path, e.g. a.b.c into parts.",
        "Returns two. More.",
    )
    assert split_first_sentence("A heading\n\nThe body.") == ("A heading", "The body.")
    assert split_first_sentence("Version 3.11 only.") == ("Version 3.11 only.", "")


def test_spelled_out_names():
    assert spell_out("os.path.splitext") == "os path splitext"
    assert (
        spell_out("concurrent.futures.ThreadPoolExecutor.shut_down")
        == "concurrent futures thread pool executor shut down"
    )
    assert spell_out("http.server.HTTPServer.__init__") == "http server http server init"


def test_hold_out_takes_functions_with_a_sentence_and_more():
    text = "Return the first of many things.\n\nThe others are left where they are."
    held = [is_evaluated(Docstring(f"module.function{i}", True, text)) for i in range(2000)]
    assert 0.07 < sum(held) / 2000 < 0.13
    assert not any(is_evaluated(Docstring(f"module.C{i}", False, text)) for i in range(100))
    assert not any(is_evaluated(Docstring(f"module.function{i}", True, "Return the first.")) for i in range(100))


def test_nothing_held_out_is_in_the_passages():
    passages = {loose(passage) for passage in subject.passages()}
    held = [docstring for docstring in subject.docstrings() if is_evaluated(docstring)]
    assert len(held) > 150
    for docstring in held:
        first, rest = split_first_sentence(docstring.text)
        assert not {loose(first), loose(rest), loose(docstring.text)} & passages
    queries = tuple({loose(split_first_sentence(docstring.text)[0]) + " " for docstring in held})
    assert not [passage for passage in passages if passage.startswith(queries)]


def test_retrieval_task_files(tmp_path):
    write_retrieval_task(tmp_path / "a", seed=0)
    write_retrieval_task(tmp_path / "b", seed=0)
    write_retrieval_task(tmp_path / "c", seed=1)
    assert (tmp_path / "a" / "suite.yaml").read_text().count("type: retrieval") == 2
    for task in ("docstring-sentence", "docstring-name"):
        folders = [tmp_path / name / task for name in "abc"]
        for file in ("corpus.jsonl", "queries.jsonl", "qrels.tsv"):
            assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes()
        assert (folders[0] / "corpus.jsonl").read_bytes() != (folders[2] / "corpus.jsonl").read_bytes()
        documents = {
            row["id"]: row["text"] for row in map(json.loads, (folders[0] / "corpus.jsonl").read_text().splitlines())
        }
        queries = {
            row["id"]: row["text"] for row in map(json.loads, (folders[0] / "queries.jsonl").read_text().splitlines())
        }
        header, *lines = (folders[0] / "qrels.tsv").read_text().splitlines()
        assert header == "query-id\tcorpus-id\tscore"
        judged = [line.split("\t") for line in lines]
        assert {query for query, _, _ in judged} == set(queries) and {document for _, document, _ in judged} == set(
            documents
        )
        assert len(set(documents.values())) == len(documents) > 150
        assert len(set(queries.values())) == len(queries) > 150
        assert all(score == "1" for _, _, score in judged)
        if task == "docstring-sentence":
            assert not any(documents[document].startswith(queries[query]) for query, document, _ in judged)


def test_the_suite_of_a_run_is_written_once(tmp_path, monkeypatch, tiny_recipe):
    from distilvec.core.artifacts import ArtifactStore
    from distilvec.pipeline.texts import load_tasks

    section, store = tiny_recipe(evaluation__builtin="python-docstrings").evaluation, ArtifactStore(tmp_path)
    first = [task.name for task in load_tasks(section, store)]
    assert first == ["docstring-sentence", "docstring-name"]
    write_retrieval_task(tmp_path / "alone", seed=0)
    (folder,) = (tmp_path / "suites").glob("[!.]*")
    for path in (tmp_path / "alone").rglob("*.*"):
        assert (folder / path.relative_to(tmp_path / "alone")).read_bytes() == path.read_bytes()
    monkeypatch.setattr(subject, "write_retrieval_task", lambda *arguments, **options: pytest.fail("written again"))
    assert [task.name for task in load_tasks(section, store)] == first
