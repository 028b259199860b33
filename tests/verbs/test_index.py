"""From an existing index to a judged query encoder: `distill`, `check`, and tables as full teachers."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import tempfile
from html import escape, unescape
from pathlib import Path

import architectures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused
from samples import make_texts
from servers import FaultyApi
from store_packages import needed

import distilvec
from benchmarks.indexes import DATABASES, stored
from distilvec.__main__ import run_command
from distilvec.config import recipe
from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError, about
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation import columns
from distilvec.evaluation.significance import mean_interval
from distilvec.evaluation.stored import draw_stored, stored_tasks
from distilvec.evaluation.tasks import KNOWN_ITEM, NEIGHBORS
from distilvec.models.load import load
from distilvec.pipeline import judgement
from distilvec.pipeline.caches import open_cache
from distilvec.pipeline.overview import overview
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.remote.client import Client
from distilvec.report.next_step import next_commands
from distilvec.report.verdicts import index_verdict
from distilvec.teachers.api_embedder import _PROBE
from distilvec.teachers.cache.columns import USUAL_NAMES
from distilvec.teachers.indexes import copy
from distilvec.teachers.open import open_table
from distilvec.teachers.table_embedder import SAMPLE, TableEmbedder
from distilvec.verbs.check.check import check_index
from distilvec.verbs.distill.made_by import recognize
from distilvec.verbs.evaluate.scores import score_models
from distilvec.verbs.export.export import parity_task
from distilvec.verbs.plan.plan import make_plan

TEXTS, NEW = make_texts(300), make_texts(400)[300:]
LINE = re.compile(r"finds (\d.\d\d) of the index's ten nearest (?:\(overlap@10\) )?\[(\d.\d\d), (\d.\d\d)\]")


@pytest.fixture(scope="module")
def teacher(tiny_model):
    return load(tiny_model, device="cpu")


@pytest.fixture(scope="module")
def vectors(teacher):
    return teacher.encode(TEXTS)


@pytest.fixture
def table(tmp_path, vectors):
    """A dump with the columns id, content, vector."""
    columns = {"id": list(range(len(TEXTS))), "content": TEXTS, "vector": list(vectors)}
    pq.write_table(pa.table(columns), tmp_path / "dump.parquet")
    return tmp_path / "dump.parquet"


@pytest.fixture(scope="module")
def near_teacher(tmp_path_factory, tiny_model):
    """A model near the teacher."""
    return near(tiny_model, tmp_path_factory.mktemp("near"))


def near(model, folder, change=0.01):
    """Save a model whose first layer's weights are changed, by default a little."""
    import torch

    own = load(model, device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in own[0].auto_model.encoder.layer[0].parameters():
            weight += change * torch.randn_like(weight)
    own.save_pretrained(str(folder), create_model_card=False)
    return folder


def write_judged(folder, documents, judged):
    """A suite with these documents by id, and queries by id with their text and relevant documents."""
    task = folder / "judged"
    task.mkdir()
    rows = {"corpus": documents, "queries": {name: text for name, (text, _) in judged.items()}}
    for name, texts in rows.items():
        lines = [json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items()]
        (task / f"{name}.jsonl").write_text("".join(lines))
    pairs = [f"{query}\t{document}\t1\n" for query, (_, relevant) in judged.items() for document in relevant]
    (task / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(pairs))
    (folder / "judged.yaml").write_text("- {name: judged, type: retrieval, path: judged}\n")
    return folder / "judged.yaml"


def test_documents_that_the_index_lacks_do_not_cost_the_score(tmp_path, table, near_teacher):
    """The score is that of the same task without them; queries with nothing else to find are left out."""
    documents = {f"d{row}": TEXTS[row] for row in range(40)}
    judged = {f"q{row}": (NEW[row], [f"d{row}"]) for row in range(12)}
    judged["q3"] = (NEW[3], ["d3", "gone-1"])
    judged["lost"] = (NEW[50], ["gone-2"])
    suite = write_judged(tmp_path, {**documents, "gone-1": NEW[60], "gone-2": NEW[61]}, judged)
    (tmp_path / "expected").mkdir()
    del judged["lost"]
    judged["q3"] = (NEW[3], ["d3"])
    expected = write_judged(tmp_path / "expected", documents, judged)

    section = TeacherSection(vectors=str(table))
    found = check_index(near_teacher, section, suite).scores["asymmetric"][0]
    wanted = check_index(near_teacher, section, expected).scores["asymmetric"][0]
    assert (found.task, found.metrics, found.rows) == ("judged", wanted.metrics, 12)
    assert any(
        "2 of 42 documents are not in the index" in note and "1 of 13 queries" in note for note in found.warnings
    )


def test_judged_queries_search_the_whole_index(tmp_path, table, vectors, near_teacher):
    """Not only the documents that the file of queries names: a switch searches all of them."""
    chosen = range(0, 300, 25)
    queries = {f"q{row}": (" ".join(TEXTS[row].split()[:3]), [f"d{row}"]) for row in chosen}
    suite = write_judged(tmp_path, {f"d{row}": TEXTS[row] for row in chosen}, queries)
    found = check_index(near_teacher, TeacherSection(vectors=str(table)), suite).scores["asymmetric"][0]
    vectors_of_queries = load(near_teacher, device="cpu").encode([text for text, _ in queries.values()])
    ranked = np.argsort(-(vectors_of_queries @ vectors.T), axis=1)[:, :10]
    gains = [
        1 / np.log2(2 + list(rows).index(row)) if row in rows else 0.0 for row, rows in zip(chosen, ranked, strict=True)
    ]
    assert found.metrics["ndcg@10"] == pytest.approx(100 * np.mean(gains), abs=1e-4)
    assert any("288 of them without a judgement" in note for note in found.warnings)


def test_every_part_of_a_report_searches_the_same_documents(
    tmp_path, table, tiny_recipe, tiny_model, near_teacher, no_pages
):
    """The whole index, but for a judged document that it lacks."""
    documents = {f"d{row}": TEXTS[row] for row in range(40)} | {"gone": NEW[60]}
    judged = {f"q{row}": (TEXTS[100 + row], [f"d{row}"]) for row in range(12)}
    recipe = tiny_recipe(
        teacher={"vectors": str(table), "name": "mine"},
        student={"model": str(near_teacher), "layers": 3},
        corpus={"sources": [{"builtin": "teacher"}], "validation_rows": 16},
        train__max_steps=2,
        evaluation={
            "suite": str(write_judged(tmp_path, documents, judged)),
            "stored": 30,
            "parts": ["agreement", "compression"],
        },
    )
    result = run(recipe, tmp_path / "run")
    assert not result.problems
    (score,) = (score for score in result.scores["asymmetric"] if score.task == "judged")
    assert any("texts of the index" in note for note in score.warnings)
    whole = [
        row.value
        for row in result.report.compression.rows
        if (row.column, row.task, row.precision, row.width) == ("asymmetric", "judged", "float32", 32)
    ]
    assert whole == [pytest.approx(score.value, abs=1e-6)]
    assert "judged" in result.report.agreement


def test_a_task_of_another_index_has_no_score(tmp_path, table, near_teacher):
    documents = {f"d{row}": NEW[row] for row in range(30)} | {"known": TEXTS[0]}
    suite = write_judged(tmp_path, documents, {"q": (NEW[40], ["known"])})
    scores = check_index(near_teacher, TeacherSection(vectors=str(table)), suite).scores
    assert "judged" not in {score.task for score in scores["asymmetric"]}


def write_suite(folder, queries):
    """A retrieval task whose documents are stored texts; query n is for document n."""
    (folder / "task").mkdir()
    rows = {"corpus": TEXTS[:50], "queries": queries}
    for name, texts in rows.items():
        lines = (json.dumps({"id": f"{name}{row}", "text": text}) for row, text in enumerate(texts))
        (folder / "task" / f"{name}.jsonl").write_text("\n".join(lines))
    judged = "\n".join(f"queries{row}\tcorpus{row}\t1" for row in range(len(queries)))
    (folder / "task" / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}\n")
    (folder / "suite.yaml").write_text("- {name: mine, type: retrieval, path: task}\n")
    return folder / "suite.yaml"


def test_tasks_are_made_from_the_table_itself(table, vectors):
    index = TableEmbedder(TeacherSection(vectors=table))
    overlap, items = stored_tasks(index, 20)
    assert (overlap.name, items.name, len(items.queries), len(items.documents)) == (NEIGHBORS, KNOWN_ITEM, 20, 300)
    assert not set(overlap.queries) & set(overlap.documents) and len(overlap.documents) == 280
    chosen = [TEXTS.index(text) for text in overlap.queries]
    rest = [row for row in range(300) if row not in chosen]
    for number, row in enumerate(chosen):
        near = np.argsort(-(vectors[rest] @ vectors[row]))[:10]
        found = overlap.judged[overlap.judged[:, 0] == number, 1]
        assert {overlap.documents[one] for one in found} == {TEXTS[rest[one]] for one in near}
    assert len(stored_tasks(index, 1000)[0].queries) == 60  # at most a fifth


@pytest.mark.parametrize("kind", ["parquet", "lancedb", "npy"])
@pytest.mark.parametrize("column", [None, "doc_id", "article"])
def test_no_chunk_of_a_searched_article_is_trained_on_or_its_neighbour(kind, column, tmp_path, tiny_recipe, tiny_model):
    """Chunks that overlap, or are told by a column, of a usual name or a stated one: queries are of other articles."""
    articles = [f"a{number}w{word}" for number in range(100) for word in range(200)]
    overlap = 25 if column is None else 0
    rows = []
    for number in range(100):
        words = articles[200 * number : 200 * number + 200]
        for start in range(0, 200, 50):
            text = " ".join(words[max(0, start - overlap) : start + 50])
            rows.append({"text": text, column or "length": f"doc {number}", "id": str(len(rows))})
    chunk_vectors = np.random.default_rng(0).normal(size=(len(rows), 8)).astype(np.float32)
    table = pa.Table.from_pylist(rows).append_column("vector", pa.array(list(chunk_vectors)))
    given = {"columns": {"origin": "article"}} if column == "article" else {}
    if kind == "parquet":
        pq.write_table(table, tmp_path / "chunks.parquet")
        given["vectors"] = tmp_path / "chunks.parquet"
    elif kind == "lancedb":
        pytest.importorskip("lancedb").connect(tmp_path / "db").create_table("chunks", table)
        given["vectors"] = tmp_path / "db" / "chunks.lance"
    else:
        np.save(tmp_path / "chunks.npy", chunk_vectors)
        (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
        given |= {"vectors": tmp_path / "chunks.npy", "texts": tmp_path / "texts.jsonl"}
    given = {name: value if name == "columns" else str(value) for name, value in given.items()}

    recipe = tiny_recipe(
        teacher=given,
        student={"model": str(tiny_model), "layers": 2},
        corpus={"sources": [{"builtin": "teacher"}]},
        evaluation__stored=60,
        cache__root=str(tmp_path / "cache"),
    )
    job = resolve(recipe, tmp_path / "run")

    def article_of(texts):
        return {text.split()[-1].partition("w")[0] for text in texts}

    overlap = next(task for task in job.tasks if task.name == NEIGHBORS)
    asked = article_of(overlap.queries)
    assert (len(overlap.queries), len(asked)) == (60, 20), "a fifth of the articles, with several chunks each"
    assert not asked & article_of(overlap.documents) and len(overlap.documents) == 320
    parts = [article_of(job.corpus.texts(rows)) for rows in (job.corpus.train_rows, job.corpus.holdout_rows)]
    assert not asked & (parts[0] | parts[1]) and not parts[0] & parts[1] and len(parts[1]) == 16


def test_an_index_of_few_documents_is_searched_where_they_are(tmp_path):
    """One handbook in chunks that overlap is judged chunk by chunk; of three unequal ones the smallest is asked."""
    words = [f"w{number}" for number in range(9000)]

    def handbook(first, count):
        return [" ".join(words[first + 20 * n : first + 20 * n + 60]) for n in range(count)]

    for name, texts, queries, others in (
        ("one", handbook(0, 100), 20, 80),
        ("three", [*handbook(0, 60), *handbook(3000, 40), *handbook(6000, 50)], 30, 110),
    ):
        vectors = np.random.default_rng(0).normal(size=(len(texts), 6)).astype(np.float32)
        pq.write_table(pa.table({"text": texts, "vector": list(vectors)}), tmp_path / f"{name}.parquet")
        overlap = stored_tasks(TableEmbedder(TeacherSection(vectors=tmp_path / f"{name}.parquet")), 50)[0]
        assert (len(overlap.queries), len(overlap.documents)) == (queries, others)
    assert all(60 <= texts.index(query) < 100 for query in overlap.queries)


@pytest.mark.parametrize("documents", [20, 25, 40])
def test_chance_among_few_documents_is_no_fit(documents, tmp_path, tiny_model):
    """Random vectors of chunks: of twenty documents a random choice finds six in ten of the nearest ten."""
    texts = make_texts(1000)
    vectors = np.random.default_rng(0).normal(size=(len(texts), 24)).astype(np.float32)
    names = [f"document {row % documents}" for row in range(len(texts))]
    pq.write_table(pa.table({"text": texts, "doc_id": names, "embedding": list(vectors)}), tmp_path / "t.parquet")
    check = distilvec.check(tiny_model, tmp_path / "t.parquet")
    judgement = check.judgement
    assert not check.fits and judgement.compatibility == "not yet"
    assert judgement.student.among.low <= judgement.by_chance
    if documents > 25:
        assert judgement.by_document and judgement.candidates == documents - documents // 5


def test_the_teacher_itself_overlaps_fully_and_another_model_does_not(table, tiny_model, near_teacher):
    section = TeacherSection(vectors=table)
    same = check_index(tiny_model, section, sample=50)
    whole = same.judgement.student.among
    assert whole.mean > 0.99 and same.fits and same.judgement.cosine > 0.999
    part = check_index(near_teacher, section, sample=50).judgement.student.among
    assert part.mean < whole.mean and part.low <= part.mean <= part.high


@pytest.mark.usefixtures("loopback")
def test_the_api_that_made_an_index_is_its_own_query_encoder(tmp_path):
    """No model is on this machine: queries are embedded by the API, documents are the index's."""
    texts = [*TEXTS, *_PROBE]
    vectors = np.random.default_rng(0).normal(size=(len(texts), 12)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    columns = {"text": TEXTS, "embedding": list(vectors[: len(TEXTS)])}
    pq.write_table(pa.table(columns), tmp_path / "api.parquet")
    with FaultyApi(dict(zip(texts, vectors, strict=True))) as server:
        check = check_index(server.address, TeacherSection(vectors=tmp_path / "api.parquet"), sample=50)
        assert sum(len(body["input"]) for body in server.bodies) < 150  # no document is embedded again
    assert check.judgement.student.among.mean == 1 and check.fits
    with refused("model", "api.parquet"):
        check_index(tmp_path / "api.parquet", TeacherSection(vectors=tmp_path / "api.parquet"))


def test_a_check_searches_for_a_sample_and_takes_no_file_of_queries(table, tiny_model, tmp_path, capsys):
    """--queries is a file of texts wherever it is an option; the number of stored texts has a name of its own."""
    words = ["check", str(tiny_model), str(table), "--json", str(tmp_path / "check.json")]
    assert run_command([*words, "--sample", "20"]) == 0
    assert json.loads((tmp_path / "check.json").read_text())["judgement"]["queries"] == 20
    capsys.readouterr()
    assert run_command([*words, "--queries", "20"]) == 2
    assert "--queries" in capsys.readouterr().err
    assert run_command([*words, "--sample", "0"]) == 2


def test_the_expected_overlap_agrees_with_new_texts(table, teacher, vectors, near_teacher):
    """Texts that were never stored: the overlap of two exact searches is inside the interval, widened by its own."""
    expected = check_index(near_teacher, TeacherSection(vectors=table), sample=60).judgement.student.among
    ours, theirs = load(near_teacher, device="cpu").encode(NEW), teacher.encode(NEW)
    top = [np.argsort(-(queries @ vectors.T), axis=1)[:, :10] for queries in (ours, theirs)]
    measured = np.array([len(set(one) & set(other)) / 10 for one, other in zip(*top, strict=True)])
    slack = 2 * measured.std() / np.sqrt(len(measured))
    assert expected.low - slack <= measured.mean() <= expected.high + slack


@pytest.mark.parametrize(("metric", "similarity"), [("METRIC_INNER_PRODUCT", "dot"), ("METRIC_L2", "euclidean")])
def test_an_index_of_vectors_of_any_length_is_judged_by_its_own_metric(
    metric, similarity, vectors, tiny_model, near_teacher, tmp_path
):
    """A model of the same directions is no encoder of an index that compares lengths: by cosine it would be perfect."""
    faiss = pytest.importorskip("faiss")
    lengths = np.random.default_rng(1).uniform(0.2, 5, size=(len(TEXTS), 1)).astype(np.float32)
    index = faiss.IndexFlat(vectors.shape[1], getattr(faiss, metric))
    index.add(np.ascontiguousarray(vectors * lengths))
    faiss.write_index(index, str(tmp_path / "table.faiss"))
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    section = TeacherSection(vectors=tmp_path / "table.faiss", texts=tmp_path / "texts.txt")
    check = check_index(near_teacher, section, sample=60)
    assert check.judgement.similarity == similarity
    table = open_table(section)
    texts, stored_vectors = table.documents()
    asked, others = draw_stored(texts, table.origins, 60, "")
    searched = faiss.IndexFlat(vectors.shape[1], getattr(faiss, metric))
    searched.add(np.ascontiguousarray(stored_vectors[others]))
    ours = load(near_teacher, device="cpu").encode([texts[row] for row in asked])
    found, right = (searched.search(np.ascontiguousarray(q), 10)[1] for q in (ours, stored_vectors[asked]))
    truth = np.mean([len({*a} & {*b}) / 10 for a, b in zip(found, right, strict=True)])
    assert check.judgement.student.among.mean == pytest.approx(truth, abs=1e-9)
    by_cosine = check_index(near_teacher, section.model_copy(update={"similarity": "cosine"}), sample=60)
    assert abs(by_cosine.judgement.student.among.mean - truth) > 0.1


def test_the_verdict_on_a_table_says_how_vectors_are_compared(table, near_teacher, vectors, capsys):
    section = TeacherSection(vectors=table)
    assert "by cosine, as the stored vectors have length 1" in check_index(near_teacher, section, sample=50).line
    columns = pq.read_table(table)
    longer = [(vector * (1.5 + row % 5)).tolist() for row, vector in enumerate(vectors)]
    pq.write_table(columns.set_column(2, "vector", pa.array(longer)), table)
    found = check_index(near_teacher, section, sample=50)
    assert (
        "by cosine, as the index states no similarity (--similarity); judged on stored texts; queries are" in found.line
    )
    words = ["check", str(near_teacher), str(table), "--sample", "50", "--similarity", "dot"]
    assert run_command(words) in (0, 1)
    printed = " ".join(capsys.readouterr().out.split())
    assert "by inner product, as stated;" in printed
    by_product = float(LINE.search(printed)[1])
    assert abs(by_product - found.judgement.student.among.mean) > 0.05


def test_messages_about_an_index_name_it_and_not_its_copy(vectors, tmp_path):
    """Integers are copied."""
    integers = pa.array([list(row) for row in np.round(vectors * 100).astype(np.int8)], pa.list_(pa.int8()))
    pq.write_table(pa.table({"text": TEXTS, "vector": integers}), tmp_path / "small-integers.parquet")
    section = TeacherSection(vectors=tmp_path / "small-integers.parquet")
    index = open_table(section)
    assert "indexes" in str(index.table.path)
    with refused("teacher.vectors", "no vector in small-integers, such as"), about("teacher"):
        index.embed(NEW[:1])


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """4,000 texts and their vectors by a model of one layer, 500 new texts with theirs, and a model near that one."""
    folder, texts = tmp_path_factory.mktemp("many"), make_texts(4_500)
    backbone = architectures.bert(folder / "backbone", num_hidden_layers=1)
    teacher = load(architectures.sentence_transformer(folder / "model", backbone), device="cpu")
    vectors = teacher.encode(texts, batch_size=256)
    return texts[:4_000], texts[4_000:], vectors[:4_000], vectors[4_000:], near(folder / "model", folder / "near")


@pytest.fixture
def folder():
    """A folder in memory where there is one: embedded Qdrant waits for the disk after each row."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as found:
        yield Path(found)


@pytest.mark.parametrize("kind", DATABASES)
def test_an_index_becomes_a_judged_encoder(kind, folder, tmp_path, many, capsys, no_pages):
    needed(kind)
    texts, new, vectors, theirs, near_many = many
    with stored(kind, folder / "index", texts, vectors) as index:
        out = tmp_path / "run"
        words = ["distill", index.address, "--student", str(near_many), "--out", str(out)]
        words += [
            "corpus.validation_rows=128",
            "student.dense=always",  # a fitted layer has nothing left to train here
            "train.learning_rate=1e-6",
            "train.max_steps=5",
            "train.precision=fp32",
            "train.device=cpu",
        ]
        assert run_command([*words, *index.distill_words]) == 0
        mean, low, high = map(float, LINE.search(" ".join(capsys.readouterr().out.split())).groups())
        assert "secret" not in (out / "recipe.yaml").read_text()
        run, words = distilvec.result(out), ["distilvec", "check", str(out / "student"), index.address]
        commands = [shlex.split(line) for line in next_commands(run.report, out / "student")]
        (check,) = (line[1:] for line in commands if line[:4] == words)  # reads the index as the training did
        assert run_command([*check, "--json", str(tmp_path / "check.json")]) in (0, 1)  # 1: a switch is not advised
        judgement = json.loads((tmp_path / "check.json").read_text())["judgement"]
        assert judgement["student"]["among"]["mean"] == pytest.approx(mean, abs=0.006)
        ours = load(out / "student", device="cpu").encode(new, batch_size=256)
        found, right = index.search(ours, 10), index.search(theirs, 10)
        shares = np.array([len(set(a) & set(b)) / 10 for a, b in zip(found, right, strict=True)])
        measured = mean_interval(shares)
        assert low - 0.005 <= measured[2] and measured[1] <= high + 0.005  # the intervals meet; printed to 0.01
        assert 0.3 < mean < 0.99  # the student is near the teacher, and another model


def test_an_encoder_is_judged_once_with_one_sentence(table, near_teacher, tmp_path, capsys, monkeypatch):
    """Page and card of `distill` have the sentence of `check`, its screen the beginning, from one evaluation."""
    out, judged, stored_scores = tmp_path / "run", [], []
    judge, score = judgement.judge_encoder, columns.score_task
    monkeypatch.setattr(judgement, "judge_encoder", lambda *a: judged.append(a) or judge(*a))
    monkeypatch.setattr(columns, "score_task", lambda *a: stored_scores.append(a) or score(*a))
    words = ["distill", str(table), "--student", str(near_teacher), "--out", str(out)]
    words += [
        "evaluation.stored=60",
        "train.learning_rate=1e-6",
        "train.max_steps=2",
        "train.device=cpu",
        "train.precision=fp32",
    ]
    assert run_command([*words, "--json", str(tmp_path / "distill.json")]) == 0
    assert len(judged) == 1 and len(stored_scores) == 4  # two tasks in two columns
    printed = capsys.readouterr().out
    report = json.loads(RunFolder(out).report.read_text())
    sentence = report["verdict"]["text"]
    assert LINE.match(sentence) and "a stored text is found at rank 1 to 10 with MRR" in sentence
    assert report["verdict"]["retention"] is report["verdict"]["asymmetric_retention"] is None
    lines = printed.splitlines()
    assert len(lines) <= 6 and LINE.search(lines[0]).groups() == LINE.match(sentence).groups()
    assert lines[0].startswith(f"{index_verdict(distilvec.result(out).record.overlap).capitalize()}: finds")
    page, (first, rest) = (out / "report.html").read_text(), sentence.split("; ", 1)
    for part in (first, rest):
        assert escape(part[1:], quote=False) in unescape(page).replace("&", "&amp;") and "Not evaluated" not in page
    assert f"It {first}" in (out / "student" / "README.md").read_text()
    assert run_command(["check", str(out / "student"), str(table), "--sample", "60",
                        "--json", str(tmp_path / "check.json")]) in (0, 1)  # fmt: skip
    distilled = json.loads((tmp_path / "distill.json").read_text())["verdict"]["text"]
    checked = json.loads((tmp_path / "check.json").read_text())["line"].replace("[", "(").partition("(")[0]
    assert distilled == sentence and sentence.replace("[", "(").startswith(checked)  # a check knows no start
    assert first in " ".join(capsys.readouterr().out.split())


def test_evaluate_takes_a_table_as_teacher(table, tiny_model, near_teacher, tmp_path):
    suite = write_suite(tmp_path, [*TEXTS[60:70]])  # stored texts
    scores = score_models(near_teacher, suite, table)
    assert set(scores.columns) == {"teacher", "student", "asymmetric"} and not scores.problems
    other = tmp_path / "other"
    other.mkdir()
    scores = score_models(near_teacher, write_suite(other, [*NEW[:10]]), table)  # queries that the table lacks
    assert set(scores.columns) == {"student", "asymmetric"} and not scores.problems
    alone = score_models(tiny_model, None, table)
    assert all(score.value > 98 for score in alone.columns["asymmetric"])


def test_a_text_is_not_searched_among_the_documents_of_its_own_model(table, near_teacher, vectors, tmp_path):
    """A score of 100 for every model. The same where the model has another width than the table."""
    scores = score_models(near_teacher, None, table).columns
    tasks = {name: [score.task for score in column] for name, column in scores.items()}
    assert tasks["student"] == [NEIGHBORS] and tasks["asymmetric"] == [NEIGHBORS, KNOWN_ITEM]
    narrow = tmp_path / "narrow.parquet"
    lists = pa.array([vector[:8].tolist() for vector in vectors])
    pq.write_table(pa.table({"text": TEXTS, "vector": lists}), narrow)
    assert [score.task for score in score_models(near_teacher, None, narrow).columns["student"]] == [NEIGHBORS]


def test_a_table_is_a_full_teacher_of_a_run(table, tiny_recipe, tiny_model, tmp_path, no_pages):
    """Teacher and asymmetric scores, agreement, compression; the user's documents stay in the corpus."""
    recipe = tiny_recipe(
        teacher={"vectors": str(table), "name": "mine"},
        student={"model": str(tiny_model), "layers": 3},
        corpus={"sources": [{"builtin": "teacher"}], "validation_rows": 16},
        evaluation={
            "suite": str(write_suite(tmp_path, TEXTS[60:70])),
            "stored": 30,
            "parts": ["agreement", "compression"],
        },
    )
    run(recipe, tmp_path / "run")
    report = json.loads(RunFolder(tmp_path / "run").report.read_text())
    assert report["failures"] == []
    assert {"teacher", "asymmetric", "student"} <= set(report["scores"]) == set(report["averages"])
    assert set(report["agreement"]) == {"mine", NEIGHBORS, KNOWN_ITEM}
    assert report["agreement"][NEIGHBORS]["models"]["asymmetric"].keys() >= {"overlap@10", "kendall_tau"}
    assert {row["column"] for row in report["compression"]["rows"]} == {"teacher", "student", "asymmetric"}
    record = json.loads(RunFolder(tmp_path / "run").record.read_text())
    assert record["data"]["train_rows"] + record["data"]["holdout_rows"] >= 300 - 10 - 30
    assert parity_task(tmp_path / "run" / "student", None).name.startswith("mine and")  # and more documents


def test_the_plan_of_a_small_index_says_how_many_texts_are_searched_for(table, tiny_recipe, tiny_model, tmp_path):
    recipe = tiny_recipe(
        teacher={"vectors": str(table)},
        student={"model": str(tiny_model), "layers": 3},
        corpus={"sources": [{"builtin": "teacher"}]},
        evaluation={"stored": 500},
    )
    plan = dict(make_plan(resolve(recipe, tmp_path / "run")).lines)
    assert plan["judgement"].startswith(f"{len(TEXTS) // 5} stored texts, ")


def test_the_first_screen_says_how_many_texts_of_the_index_are_searched_for(table, tiny_recipe, tiny_model, tmp_path):
    for asked, shown in ((500, len(TEXTS) // 5), (20, 20)):
        recipe = tiny_recipe(
            teacher={"vectors": str(table)},
            student={"model": str(tiny_model), "layers": 3},
            corpus={"sources": [{"builtin": "teacher"}]},
            evaluation={"stored": asked},
        )
        assert dict(overview(resolve(recipe, tmp_path / "run")))["test"].startswith(f"{shown} texts of the index")


def test_rows_of_an_index_without_a_role_are_trained_on(vectors, tiny_recipe, tiny_model, tmp_path):
    """They count for both roles."""
    roles = [*["query"] * 5, *["document"] * 5, *[None] * (len(TEXTS) - 10)]
    pq.write_table(pa.table({"text": TEXTS, "embedding": list(vectors), "role": roles}), tmp_path / "roles.parquet")
    for role, expected in (("document", TEXTS[5:]), ("query", TEXTS[:5] + TEXTS[10:])):
        recipe = tiny_recipe(
            teacher={"vectors": str(tmp_path / "roles.parquet"), "prompts": {"query": "find: "}},
            student={"model": str(tiny_model)},
            corpus={"sources": [{"builtin": "teacher", "role": role}], "validation_rows": 16},
        )
        corpus = resolve(recipe, tmp_path / role).corpus
        assert set(corpus.stored(range(len(corpus)))) == set(expected)


def test_documents_of_a_table_without_prompts_are_no_queries(vectors, tmp_path):
    roles = [*["query"] * 100, *["document"] * 100, *[None] * 100]
    columns = {"text": TEXTS, "embedding": list(vectors), "role": roles}
    bytes_too = columns | {"role": pa.array(roles, pa.string()).cast(pa.binary())}
    for name, rows in (("roles", columns), ("bytes", bytes_too)):
        pq.write_table(pa.table(rows), tmp_path / f"{name}.parquet")
        texts, found = TableEmbedder(TeacherSection(vectors=tmp_path / f"{name}.parquet")).documents()
        assert texts == TEXTS[100:]
        np.testing.assert_allclose(found, vectors[100:], atol=1e-6)


def test_candidates_are_recognized(table, tiny_model, near_teacher):
    index = TableEmbedder(TeacherSection(vectors=table))
    best, other = recognize(index, [str(near_teacher), str(tiny_model)])
    assert best.model == str(tiny_model) and best.same and other.cosine < best.cosine


QUERIES = make_texts(460)[400:]
FAST = {"evaluation.stored": 30, "train.max_steps": 2, "train.device": "cpu", "train.precision": "fp32"}


def cached(run):
    """The texts of a run's teacher cache, with their vectors."""
    job = resolve(run.recipe, run.folder)
    cache = open_cache(job, job.teacher)
    rows = np.arange(len(job.corpus))
    vectors = cache.read(cache.positions(job.teacher.corpus.keys[rows]))
    return dict(zip(job.corpus.stored(rows), vectors, strict=True))


def test_queries_of_an_index_are_embedded_by_the_model_that_made_it(
    table, teacher, tiny_model, near_teacher, tmp_path, no_pages
):
    """Documents have the stored vectors, queries those of the model; another model is refused before the work."""
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES))
    asked = {"queries": tmp_path / "queries.txt", "student": near_teacher, "overrides": FAST, "out": tmp_path / "run"}
    with refused("made_by", "--made-by"):
        distilvec.distill(table, **asked)
    with refused("made_by", "has not made the index"):
        distilvec.distill(table, made_by=[str(near(tiny_model, tmp_path / "other", change=0.5))], **asked)
    made = distilvec.distill(table, made_by=[str(near_teacher), str(tiny_model)], query_prompt="river ", **asked)
    assert made.recipe.teacher.made_by == str(tiny_model)
    vectors = cached(made)
    assert set(QUERIES) <= set(vectors) and len(vectors) == len(TEXTS) - 30 + len(QUERIES)
    expected = teacher.encode([f"river {text}" for text in QUERIES])
    np.testing.assert_allclose(np.stack([vectors[text] for text in QUERIES]), expected, atol=2e-3)


def test_a_recipe_states_the_prompts_of_the_model_that_made_a_table(
    table, teacher, tiny_recipe, tiny_model, near_teacher, tmp_path, no_pages
):
    """A model that puts something before queries is not asked without it in silence."""
    prompted = shutil.copytree(tiny_model, tmp_path / "prompted")
    path = prompted / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": {"query": "river ", "document": ""}}))
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES))

    def made(name, **stated):
        recipe = tiny_recipe(
            teacher={"vectors": str(table), "made_by": str(prompted), **stated},
            student={"model": str(near_teacher)},
            corpus={
                "sources": [{"builtin": "teacher"}, {"path": str(tmp_path / "queries.txt"), "role": "query"}],
                "validation_rows": 16,
            },
            train__max_steps=1,
        )
        run(recipe, tmp_path / name)
        return np.stack([cached(distilvec.result(tmp_path / name))[text] for text in QUERIES])

    with refused("teacher.prompts", "'river '"):
        made("unstated")
    expected = teacher.encode([f"river {text}" for text in QUERIES])
    np.testing.assert_allclose(made("stated", prompts={"query": "river "}), expected, atol=2e-3)
    np.testing.assert_allclose(made("none", prompts={}), teacher.encode(QUERIES), atol=2e-3)


def test_a_model_of_another_scale_has_not_made_a_table(vectors, near_teacher, tiny_model, tmp_path, no_pages):
    """Its cosines are right; its vectors beside the stored ones would be of another length."""
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES))
    pq.write_table(pa.table({"text": TEXTS, "embedding": list(5 * vectors)}), tmp_path / "scaled.parquet")
    with refused("made_by", "mean length of 1"):
        distilvec.distill(
            tmp_path / "scaled.parquet", queries=tmp_path / "queries.txt", made_by=[str(tiny_model)],
            student=near_teacher, overrides=FAST, out=tmp_path / "run",
        )  # fmt: skip


def test_queries_of_an_index_come_from_standard_input(table, near_teacher, tmp_path, monkeypatch, no_pages):
    """They are checked first, and trained on afterwards; the stream can be read once."""
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(TEXTS[:20])))
    asked = {"student": near_teacher, "overrides": FAST, "out": tmp_path / "run"}
    distilvec.plan(table, queries="-", **asked)
    with refused("queries", "absent"):
        distilvec.distill(table, queries=tmp_path / "absent.txt", **asked)
    (tmp_path / "damaged.parquet").write_text("no table")
    with refused("queries", "damaged"):
        distilvec.distill(table, queries=tmp_path / "damaged.parquet", **asked)


def test_texts_beside_an_index_are_embedded_by_its_model(table, tiny_model, near_teacher, tmp_path, no_pages):
    (tmp_path / "more.txt").write_text("\n".join([*TEXTS[200:], *NEW]))
    run = distilvec.distill(
        table, tmp_path / "more.txt", made_by=[str(tiny_model)], student=near_teacher, overrides=FAST,
        out=tmp_path / "run",
    )  # fmt: skip
    assert set(NEW) <= set(cached(run))


@pytest.mark.usefixtures("loopback")
def test_queries_are_embedded_by_the_api_that_made_the_index(near_teacher, tmp_path, monkeypatch, capsys, no_pages):
    """By the command; only queries and a sample are sent, and nothing twice when it runs again."""
    texts = [*TEXTS, *QUERIES, *_PROBE]
    vectors = np.random.default_rng(0).normal(size=(len(texts), 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    by_text = dict(zip(texts, vectors, strict=True))
    pq.write_table(pa.table({"text": TEXTS, "embedding": [by_text[text] for text in TEXTS]}), tmp_path / "api.parquet")
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES))
    with FaultyApi(by_text) as server:
        words = ["distill", str(tmp_path / "api.parquet"), "--queries", str(tmp_path / "queries.txt")]
        words += ["--made-by", server.address, "--student", str(near_teacher), "--out", str(tmp_path / "run")]
        words += [f"{key}={value}" for key, value in FAST.items()]
        assert run_command(words) == 0
        assert all(server.given[text] == 1 for text in QUERIES)
        assert sum(server.given[text] for text in TEXTS) <= 2 * SAMPLE
        assert run_command(words) == 0
        assert all(server.given[text] == 1 for text in QUERIES)
        found = cached(distilvec.result(tmp_path / "run"))
    for text in QUERIES:
        np.testing.assert_allclose(found[text], by_text[text], atol=2e-3)
    assert f"{len(QUERIES)} that the table lacks" not in capsys.readouterr().out


@pytest.mark.parametrize("limited_by", ["argument", "override"])
def test_a_refresh_is_of_the_copy_that_the_run_reads(table, near_teacher, tmp_path, monkeypatch, limited_by):
    """Below `cache.root`, and nothing in the user's own cache; the index is read once."""
    read = []
    read_index = copy._read_index

    def counted(section, address, folder, refresh):
        read.append(folder)
        return read_index(section, address, folder, refresh)

    overrides = {**FAST, "cache.root": str(tmp_path / "big")}
    asked = {"student": near_teacher, "overrides": overrides, "out": tmp_path / "run"}
    if limited_by == "argument":
        asked["limit"] = 200  # so that it is no table that is used as it is
    else:
        overrides["teacher.limit"] = 200
    distilvec.plan(table, **asked)
    monkeypatch.setattr(copy, "_read_index", counted)
    distilvec.plan(table, **asked)
    assert read == []
    distilvec.plan(table, refresh=True, **asked)
    assert len(read) == 1 and read[0].parent == tmp_path / "big" / "indexes"
    assert not (tmp_path / "cache" / "indexes").exists()
    overrides["teacher.refresh"] = True
    distilvec.distill(table, **asked)
    assert len(read) == 2
    section = {"vectors": str(table), "limit": 200, "refresh": True}
    tree = {"teacher": section, "student": {"model": str(near_teacher)}, "method": {"name": "redact"}}
    tree |= {"corpus": {"sources": [{"builtin": "teacher"}]}, "cache": {"root": str(tmp_path / "big")}}
    job = resolve(recipe.validate({"name": "again", **tree}), tmp_path / "again")
    assert len(read) == 3 and not job.recipe.teacher.refresh


@pytest.mark.usefixtures("loopback")
def test_the_connections_of_apis_are_closed(table, vectors, tmp_path, monkeypatch):
    """Also where the work fails, and where the server does not answer."""
    opened, closed = [], []
    start, close = Client.__init__, Client.close

    def start_counted(client, *args, **kwargs):
        opened.append(client)
        start(client, *args, **kwargs)

    def close_counted(client):
        closed.append(client)
        close(client)

    monkeypatch.setattr(Client, "__init__", start_counted)
    monkeypatch.setattr(Client, "close", close_counted)
    (tmp_path / "sts.csv").write_text("sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n")
    (tmp_path / "suite.yaml").write_text("- {name: mini, type: sts, path: sts.csv}\n")
    texts = [*TEXTS, "river", "stone", "bridge", *_PROBE]
    numbers = np.random.default_rng(0).normal(size=(len(texts), 32)).astype(np.float32)
    with FaultyApi(dict(zip(texts, numbers, strict=True))) as server:
        score_models(server.address, tmp_path / "suite.yaml", teacher=server.address)
        assert len(opened) >= 2 and set(opened) == set(closed)
        check_index(server.address, TeacherSection(vectors=table), sample=50)
        assert set(opened) == set(closed)
        monkeypatch.setattr("distilvec.verbs.check.check.judge_encoder", lambda *a: pytest.fail("no judgement"))
        with pytest.raises(pytest.fail.Exception):
            check_index(server.address, TeacherSection(vectors=table), sample=50)
        assert set(opened) == set(closed)
        server.refusal = 401
        with pytest.raises(DistilvecError):
            score_models(f"{server.address}#served", tmp_path / "suite.yaml")
    assert set(opened) == set(closed)


def test_a_cache_folder_that_cannot_be_written_is_named_by_its_variable(table, tiny_model, tmp_path, monkeypatch):
    """`check` and `evaluate` read no recipe, in which `cache.root` could be set."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / "file"))
    with refused("DISTILVEC_CACHE", "file"):
        distilvec.check(tiny_model, table)
    with refused("DISTILVEC_CACHE", "file"):
        score_models(tiny_model, teacher=table)


@pytest.mark.parametrize("fault", ["a text", "rows"])
def test_a_plan_refuses_what_the_run_would(fault, table, tiny_model, vectors, tmp_path, capsys):
    """A text that the table lacks; rows of one text whose vectors differ."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:100] + NEW[:1] * (fault == "a text")))
    if fault == "rows":
        columns = {"content": [*TEXTS, TEXTS[0]], "vector": [*vectors, vectors[1]]}
        pq.write_table(pa.table(columns), table)
    messages = []
    for words in (["--dry-run"], []):
        line = ["distill", str(table), str(tmp_path / "texts.txt"), "--student", str(tiny_model), *words]
        assert run_command([*line, "--out", str(tmp_path / "run"), "train.max_steps=2"]) == 2
        messages.append(capsys.readouterr().err.strip().splitlines()[-1])
    assert messages[0] == messages[1] and (NEW[0][:20] in messages[0] or TEXTS[0][:20] in messages[0])


def test_a_plan_says_what_the_model_of_an_index_embeds(table, tiny_model, near_teacher, tmp_path, capsys):
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES))
    words = ["distill", str(table), "--queries", str(tmp_path / "queries.txt"), "--made-by", str(tiny_model)]
    words += ["--student", str(near_teacher), "--out", str(tmp_path / "run"), "--dry-run"]
    assert run_command([*words, *(f"{key}={value}" for key, value in FAST.items())]) == 0
    assert f"{len(QUERIES)} that the table lacks" in " ".join(capsys.readouterr().out.split())


def shortened_index(path, vectors, dim):
    cut = vectors[:, :dim] / np.linalg.norm(vectors[:, :dim], axis=1, keepdims=True)
    pq.write_table(pa.table({"text": TEXTS, "vector": list(cut)}), path)
    return path


def test_a_shortened_index_is_searched_by_the_first_dims_of_its_model(
    vectors, tiny_model, near_teacher, tmp_path, capsys
):
    index = shortened_index(tmp_path / "short.parquet", vectors, 24)
    check = check_index(tiny_model, TeacherSection(vectors=index), sample=50)
    assert check.judgement.cosine > 0.9999 and check.judgement.student.among.mean > 0.99
    assert check.advice.endswith("Cut its vectors to the first 24 of 32 dimensions.")
    assert check.scores["asymmetric"][1].value == pytest.approx(check.scores["teacher"][1].value, abs=0.01)
    assert "the first 24 are compared" in " ".join(capsys.readouterr().err.split())
    not_cut = check_index(near_teacher, TeacherSection(vectors=index), sample=50)
    assert not_cut.judgement.cosine < check.judgement.cosine
    (best,) = recognize(TableEmbedder(TeacherSection(vectors=index)), [str(tiny_model)])
    assert best.same and "of its first 24 of 32 dimensions" in best.result(24)


def test_a_model_of_fewer_dims_has_no_cosine(vectors, tiny_model, tmp_path, capsys):
    wide = np.concatenate([vectors, vectors], axis=1) / np.sqrt(2)
    pq.write_table(pa.table({"text": TEXTS, "vector": list(wide)}), tmp_path / "wide.parquet")
    assert run_command(["check", str(tiny_model), str(tmp_path / "wide.parquet")]) == 2
    assert "32 dimensions, the index has 64" in " ".join(capsys.readouterr().err.split())
    (candidate,) = recognize(TableEmbedder(TeacherSection(vectors=tmp_path / "wide.parquet")), [str(tiny_model)])
    assert candidate.cosine is None and not candidate.same and "0.000" not in candidate.result(64)


def test_lengths_of_bfloat16_are_1(vectors, tiny_model, tmp_path):
    """As a model in bfloat16 gives them: lengths from 0.997 to 1.003."""
    import torch

    rounded = torch.from_numpy(vectors).bfloat16().float().numpy()
    pq.write_table(pa.table({"text": TEXTS, "vector": list(rounded)}), tmp_path / "t.parquet")
    lengths = np.linalg.norm(rounded, axis=1)
    assert np.abs(lengths - 1).max() > 1e-3
    check = check_index(tiny_model, TeacherSection(vectors=tmp_path / "t.parquet"), sample=50)
    assert check.judgement.cosine > 0.999 and check.fits
    assert TableEmbedder(TeacherSection(vectors=tmp_path / "t.parquet")).normalized


def test_one_text_with_several_vectors_by_one_rule_for_both_commands(
    vectors, tiny_model, near_teacher, tmp_path, no_pages
):
    """Chunks that carry the text of their parent; and a text that a server has embedded twice, in two batches."""
    noisy = vectors[7] + np.random.default_rng(0).normal(size=32).astype(np.float32) * 0.01
    noisy /= np.linalg.norm(noisy)  # the server normalises after its rounding
    for name, row in (("noisy", noisy), ("other", vectors[9])):
        columns = {"text": [*TEXTS, TEXTS[7]], "vector": [*vectors, row]}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    asked = {"student": near_teacher, "overrides": FAST}
    assert distilvec.check(tiny_model, tmp_path / "noisy.parquet", sample=50).fits
    distilvec.distill(tmp_path / "noisy.parquet", out=tmp_path / "run", **asked)
    with refused("index", TEXTS[7]):
        distilvec.check(tiny_model, tmp_path / "other.parquet", sample=50)
    with refused("teacher", TEXTS[7]):
        distilvec.distill(tmp_path / "other.parquet", out=tmp_path / "other", **asked)
    for repeats, count in (("first", len(TEXTS)), ("drop", len(TEXTS) - 1)):
        check = distilvec.check(tiny_model, tmp_path / "other.parquet", sample=50, repeats=repeats)
        assert check.judgement.texts == count
        run = distilvec.distill(tmp_path / "other.parquet", repeats=repeats, out=tmp_path / repeats, **asked)
        trained = cached(run)
        assert (TEXTS[7] in trained) == (repeats == "first") and len(trained) == count - 30
        if repeats == "first":
            np.testing.assert_allclose(trained[TEXTS[7]], vectors[7], atol=2e-3)


@pytest.mark.parametrize("limit", [None, 1000])
def test_bad_rows_of_an_index_stop_no_command(limit, vectors, tiny_model, near_teacher, tmp_path, no_pages, capsys):
    """Rows without text or vector, of zeros or NaN are left out of the training texts as well."""
    texts = [None if row == 3 else text.encode() for row, text in enumerate(TEXTS)]
    stored_vectors = [None if row == 4 else vector for row, vector in enumerate(vectors.copy())]
    stored_vectors[5] = stored_vectors[5] * 0
    stored_vectors[6] = np.where(np.arange(32) == 2, np.nan, stored_vectors[6])
    columns = {"id": [f"r{row}" for row in range(len(TEXTS))], "text": pa.array(texts, pa.binary()),
               "vector": stored_vectors}  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    check = distilvec.check(tiny_model, tmp_path / "t.parquet", sample=50, limit=limit)
    assert check.judgement.student.among.mean > 0.99 and check.judgement.texts == len(TEXTS) - 4
    told = " ".join(capsys.readouterr().err.split())
    for reason in ("a text (first id r3)", "a vector (first id r4)", "zeros (first id r5)", "infinity (first id r6)"):
        assert reason in told
    run = distilvec.distill(
        tmp_path / "t.parquet", limit=limit, student=near_teacher, overrides=FAST, out=tmp_path / "run"
    )
    assert set(cached(run)) <= set(TEXTS) - set(TEXTS[3:7]) and len(cached(run)) == len(TEXTS) - 4 - 30


def test_models_that_cannot_search_the_index(table, tmp_path, near_teacher, capsys):
    short = tmp_path / "short.parquet"
    own = pq.read_table(table)
    lists = [vector[:8] for vector in own.column("vector").to_pylist()]
    pq.write_table(own.set_column(2, "vector", pa.array(lists)), short)
    assert run_command(["check", str(near_teacher), str(short)]) == 0
    assert "the first 8 are compared" in " ".join(capsys.readouterr().err.split())
    random = np.random.default_rng(0).standard_normal((300, 32)).astype(np.float32)
    pq.write_table(own.set_column(2, "vector", pa.array(list(random))), table)
    assert run_command(["check", str(near_teacher), str(table)]) == 1
    assert distilvec.check(near_teacher, table).reason == "other space"
    capsys.readouterr()
    assert run_command(["check", str(near_teacher), "postgresql://me:word@host/db/t"]) == 2
    message = capsys.readouterr().err
    assert "[index]" in message and "word" not in message.replace("password", "").replace("PASSWORD", "")


def test_the_stored_texts_of_a_model_are_refused(tiny_recipe, tmp_path):
    from distilvec.pipeline.resolve import resolve

    with refused("evaluation.stored"):
        resolve(tiny_recipe(evaluation__stored=10), tmp_path / "run")
    with refused("corpus.sources.0.builtin"):
        resolve(tiny_recipe(corpus={"sources": [{"builtin": "teacher"}]}), tmp_path / "run")


def test_a_plain_teacher_and_a_table_give_equal_scores(table, tiny_model, near_teacher, tmp_path):
    suite = write_suite(tmp_path, [*TEXTS[60:70]])
    ours, theirs = score_models(near_teacher, suite, table), score_models(near_teacher, suite, tiny_model)
    for name in ("teacher", "asymmetric"):
        assert ours.columns[name][0].value == pytest.approx(theirs.columns[name][0].value, abs=0.01)


def test_the_advice_about_texts_beside_an_index_can_be_followed(table, tiny_model, near_teacher, tmp_path, capsys):
    """Its --column names the columns of the index."""
    rows = tmp_path / "rows.csv"
    rows.write_text("utterance,kind\n" + "".join(f"{text},a\n" for text in NEW))
    command = ["distill", str(table), str(rows), "--made-by", str(tiny_model), "--student", str(near_teacher)]
    assert run_command([*command, "--dry-run"]) == 2
    problem = capsys.readouterr().err
    assert "[corpus.sources.0.column]" in problem and "utterance" in problem
    assert run_command([*command, "--dry-run", "corpus.sources.0.column=utterance"]) == 0


@pytest.mark.parametrize("ending", ["npy", "faiss"])
def test_the_advice_about_the_texts_of_an_array_can_be_followed(
    ending, vectors, tiny_model, near_teacher, tmp_path, capsys
):
    """Each command takes the file of texts where its message says; `evaluate`, which takes none, advises a table."""
    array, texts, model = tmp_path / f"v.{ending}", tmp_path / "texts.txt", str(near_teacher)
    texts.write_text("\n".join(TEXTS))
    if ending == "npy":
        np.save(array, vectors)
    else:
        faiss = pytest.importorskip("faiss")
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        faiss.write_index(index, str(array))
    for command, key, addition in (
        (["distill", str(array), "--student", model, "--dry-run"], "[TEXTS]", [str(texts)]),
        (["check", model, str(array)], "[--texts]", ["--texts", str(texts)]),
    ):
        assert run_command(command) == 2
        problem = capsys.readouterr().err
        assert f"{key} {array} holds 300 vectors and no texts. Give the file of their texts" in problem
        assert "=FILE" not in problem
        assert run_command([*command, *addition]) == 0
    assert run_command(["evaluate", model, "--teacher", str(array)]) == 2
    assert "no texts. Give the file of their texts" in capsys.readouterr().err


def test_columns_without_usual_names_are_renamed_where_no_option_names_them(table, near_teacher, tmp_path, capsys):
    odd = tmp_path / "odd.parquet"
    pq.write_table(pq.read_table(table).rename_columns(["chunk_id", "chunk_text", "dense"]), odd)
    assert run_command(["evaluate", str(near_teacher), "--teacher", str(odd)]) == 2
    problem = capsys.readouterr().err
    assert "[--teacher]" in problem and "or rename the columns" in problem and "teacher.columns" not in problem


def test_an_index_of_few_texts_is_named_with_its_limit(table, near_teacher, capsys):
    command = ["distill", str(table), "--student", str(near_teacher), "--dry-run"]
    assert run_command([*command, "--limit", "40"]) == 2
    problem = capsys.readouterr().err
    assert "[--limit]" in problem and str(table) in problem
    assert run_command([*command, "--limit", "40", "evaluation.stored=20"]) == 2
    assert "[evaluation.stored]" in capsys.readouterr().err


def test_column_errors_name_the_option_that_was_typed(table, tiny_model, tmp_path, capsys):
    """A table without known names: the message has all names that were tried, and options that then work."""
    odd = tmp_path / "odd.parquet"
    pq.write_table(pq.read_table(table).rename_columns(["chunk_id", "chunk_text", "dense"]), odd)
    command = ["check", str(tiny_model), str(odd), "--sample", "20"]
    assert run_command(command) == 2
    problem = " ".join(capsys.readouterr().err.split())
    assert f"[--column] {odd} has the columns chunk_id, chunk_text, dense;" in problem
    for name in (*USUAL_NAMES["text"], "embedding", "vector", "embeddings", "vectors"):
        assert name in problem
    assert "teacher_embedding_final" not in problem and "columns:" not in problem and "teacher." not in problem
    assert problem.endswith("Name yours, as in text=NAME, embedding=NAME, or rename the columns.")
    assert run_command([*command, "--column", "text=chunk_txt", "--column", "embedding=dense"]) == 2
    problem = capsys.readouterr().err
    assert "did you mean 'chunk_text'" in problem and "[--column]" in problem
    assert run_command([*command, "--column", "text=chunk_text", "--column", "embedding=dense"]) == 0


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("[index]", "check MODEL TABLE"),
        ("[--teacher]", "evaluate MODEL --teacher TABLE"),
        ("[--teacher]", "evaluate MODEL --teacher TABLE --suite SUITE"),
        ("[TEACHER]", "distill TABLE --student MODEL --made-by MODEL"),
    ],
)
def test_rows_that_cannot_be_used_name_the_word_that_was_typed(key, command, vectors, tiny_model, tmp_path, capsys):
    """Also where they are found after the index was opened."""
    table = tmp_path / "dump.parquet"
    other_lengths = vectors.copy()
    other_lengths[-5:] *= 3
    twice = [*TEXTS[:-1], TEXTS[0]] if "SUITE" in command else TEXTS
    pq.write_table(pa.table({"text": twice, "vector": list(other_lengths)}), table)
    suite = write_judged(tmp_path, {"a": TEXTS[0]}, {"q": (NEW[0], ["a"])})
    words = {"MODEL": str(tiny_model), "TABLE": str(table), "SUITE": str(suite)}
    assert run_command([words.get(word, word) for word in command.split()]) == 2
    assert f"{key} {table}" in " ".join(capsys.readouterr().err.split())


def test_column_errors_of_texts_name_the_option(tiny_model, tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"utterance": "a b", "intent": "c"}\n')
    model, texts = str(tiny_model), str(tmp_path / "rows.jsonl")
    assert run_command(["align", "--teacher", model, "--student", model, "--texts", texts]) == 2
    problem = " ".join(capsys.readouterr().err.split())
    assert "[--column]" in problem and "(text, sentence, query," in problem
    assert "Name the right one, or call it 'text'" in problem
    assert (
        run_command(["align", "--teacher", model, "--student", model, "--texts", texts, "--column", "utterance"]) == 0
    )
