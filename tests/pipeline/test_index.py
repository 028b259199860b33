"""From an existing index to a judged query encoder: `index distill`, `index check`, and tables as full teachers."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import architectures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from samples import make_texts

from benchmarks.indexes import DATABASES, lacking, stored
from distilvec.__main__ import run_command
from distilvec.config.schema import TeacherSection
from distilvec.evaluation.evaluator import EmbeddingCache
from distilvec.evaluation.significance import mean_interval
from distilvec.evaluation.stored import KNOWN_ITEM, NEIGHBORS, overlaps, stored_tasks
from distilvec.models.load import load
from distilvec.pipeline.export import parity_task
from distilvec.pipeline.index import check_index, recognize
from distilvec.pipeline.run import run
from distilvec.pipeline.scores import score_models
from distilvec.teachers.precomputed import VectorsTeacher

TEXTS, NEW = make_texts(300), make_texts(400)[300:]
LINE = re.compile(r"expected overlap of the top 10 with your index: (\d.\d\d) \[(\d.\d\d), (\d.\d\d)\]")


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


def near(model, folder):
    """Save a model whose first layer's weights are changed a little."""
    import torch

    own = load(model, device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in own[0].auto_model.encoder.layer[0].parameters():
            weight += 0.01 * torch.randn_like(weight)
    own.save_pretrained(str(folder), create_model_card=False)
    return folder


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
    index = VectorsTeacher(TeacherSection(vectors=table))
    neighbors, items = stored_tasks(index, 20)
    assert (neighbors.name, items.name, len(items.queries), len(items.documents)) == (NEIGHBORS, KNOWN_ITEM, 20, 300)
    assert not set(neighbors.queries) & set(neighbors.documents) and len(neighbors.documents) == 280
    chosen = [TEXTS.index(text) for text in neighbors.queries]
    rest = [row for row in range(300) if row not in chosen]
    for number, row in enumerate(chosen):
        near = np.argsort(-(vectors[rest] @ vectors[row]))[:10]
        found = neighbors.judged[neighbors.judged[:, 0] == number, 1]
        assert {neighbors.documents[one] for one in found} == {TEXTS[rest[one]] for one in near}
    assert overlaps(neighbors, index, index, EmbeddingCache()).tolist() == [1.0] * 20
    assert len(stored_tasks(index, 1000)[0].queries) == 60  # at most a fifth


def test_the_teacher_itself_overlaps_fully_and_another_model_does_not(table, tiny_model, near_teacher):
    section = TeacherSection(vectors=table)
    same = check_index(tiny_model, section, queries=50)
    assert same.overlap[0] > 0.99 and same.fits and same.cosine > 0.999
    near = check_index(near_teacher, section, queries=50)
    assert near.overlap[0] < same.overlap[0] and near.overlap[1] <= near.overlap[0] <= near.overlap[2]


def test_the_expected_overlap_agrees_with_new_texts(table, teacher, vectors, near_teacher):
    """Texts that were never stored: the overlap of two exact searches is inside the interval, widened by its own."""
    expected = check_index(near_teacher, TeacherSection(vectors=table), queries=60).overlap
    ours, theirs = load(near_teacher, device="cpu").encode(NEW), teacher.encode(NEW)
    top = [np.argsort(-(queries @ vectors.T), axis=1)[:, :10] for queries in (ours, theirs)]
    measured = np.array([len(set(one) & set(other)) / 10 for one, other in zip(*top, strict=True)])
    slack = 2 * measured.std() / np.sqrt(len(measured))
    assert expected[1] - slack <= measured.mean() <= expected[2] + slack


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
    if package := lacking(kind):
        pytest.skip(f"{package} is not installed")
    texts, new, vectors, theirs, near_many = many
    with stored(kind, folder / "index", texts, vectors) as index:
        out = tmp_path / "run"
        words = ["index", "distill", index.address, "--student", str(near_many), "--out", str(out)]
        words += [
            "corpus.validation_rows=128",
            "train.learning_rate=1e-6",
            "train.max_steps=5",
            "train.precision=fp32",
            "train.device=cpu",
        ]
        assert run_command([*words, *index.words]) in (0, 1)  # 1: a switch is not advised
        *_, last = capsys.readouterr().out.strip().splitlines()
        mean, low, high = map(float, LINE.match(last).groups())
        assert "secret" not in (out / "recipe.yaml").read_text()
        check = ["index", "check", str(out / "student"), "--index", index.address, *index.words]
        assert run_command([*check, "--json", str(tmp_path / "check.json")]) in (0, 1)
        assert json.loads((tmp_path / "check.json").read_text())["overlap"][0] == pytest.approx(mean, abs=0.006)
        ours = load(out / "student", device="cpu").encode(new, batch_size=256)
        found, right = index.search(ours, 10), index.search(theirs, 10)
        shares = np.array([len(set(a) & set(b)) / 10 for a, b in zip(found, right, strict=True)])
        measured = mean_interval(shares)
        assert low - 0.005 <= measured[2] and measured[1] <= high + 0.005  # the intervals meet; printed to 0.01
        assert 0.3 < mean < 0.99  # the student is near the teacher, and another model


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


def test_a_table_is_a_full_teacher_of_a_run(table, tiny_recipe, tiny_model, tmp_path, no_pages):
    """Teacher and asymmetric scores, agreement, compression, projections; the user's documents stay in the corpus."""
    recipe = tiny_recipe(
        teacher={"vectors": str(table), "name": "mine"},
        student={"model": str(tiny_model), "layers": 3},
        corpus={"sources": [{"builtin": "teacher"}], "validation_rows": 16},
        evaluation={
            "suite": str(write_suite(tmp_path, TEXTS[60:70])),
            "stored": 30,
            "draws": 50,
            "parts": ["agreement", "compression", "projections"],
        },
    )
    run(recipe, tmp_path / "run")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["failures"] == []
    assert {"teacher", "asymmetric", "student"} <= set(report["scores"]) == set(report["averages"])
    assert set(report["agreement"]) == {"mine", NEIGHBORS, KNOWN_ITEM}
    assert report["agreement"][NEIGHBORS]["asymmetric"].keys() >= {"overlap@10", "kendall_tau"}
    assert {row["column"] for row in report["compression"]["rows"]} == {"teacher", "student", "asymmetric"}
    assert set(report["projections"]["sentences"]) >= {"teacher", "student"}
    record = json.loads((tmp_path / "run" / "distillation.json").read_text())
    assert record["data"]["train_rows"] + record["data"]["holdout_rows"] >= 300 - 10 - 30
    assert parity_task(tmp_path / "run" / "student", None).name == "mine"  # what an export is compared on


def test_candidates_are_recognized(table, tiny_model, near_teacher):
    index = VectorsTeacher(TeacherSection(vectors=table))
    best, other = recognize(index, [str(near_teacher), str(tiny_model)])
    assert best.model == str(tiny_model) and best.same and other.cosine < best.cosine


def test_models_that_cannot_search_the_index(table, tmp_path, near_teacher, capsys):
    short = tmp_path / "short.parquet"
    own = pq.read_table(table)
    lists = [vector[:8] for vector in own.column("vector").to_pylist()]
    pq.write_table(own.set_column(2, "vector", pa.array(lists)), short)
    assert run_command(["index", "check", str(near_teacher), "--index", str(short)]) == 2
    assert "32 dimensions, the index has 8" in capsys.readouterr().err
    random = np.random.default_rng(0).standard_normal((300, 32)).astype(np.float32)
    pq.write_table(own.set_column(2, "vector", pa.array(list(random))), table)
    assert run_command(["index", "check", str(near_teacher), "--index", str(table)]) == 1
    assert "Do not switch: the model's vectors have a mean cosine of" in capsys.readouterr().out
    assert run_command(["index", "check", str(near_teacher), "--index", "postgresql://me:word@host/db/t"]) == 2
    refused = capsys.readouterr().err
    assert "[index]" in refused and "word" not in refused.replace("password", "").replace("PASSWORD", "")


def test_the_stored_texts_of_a_model_are_refused(tiny_recipe, tmp_path):
    from distilvec.core.errors import DistilvecError
    from distilvec.pipeline.resolve import resolve

    with pytest.raises(DistilvecError, match=r"^\[evaluation.stored\]"):
        resolve(tiny_recipe(evaluation__stored=10), tmp_path / "run")
    with pytest.raises(DistilvecError, match=r"^\[corpus.sources.0.builtin\]"):
        resolve(tiny_recipe(corpus={"sources": [{"builtin": "teacher"}]}), tmp_path / "run")


def test_a_plain_teacher_and_a_table_give_equal_scores(table, tiny_model, near_teacher, tmp_path):
    suite = write_suite(tmp_path, [*TEXTS[60:70]])
    ours, theirs = score_models(near_teacher, suite, table), score_models(near_teacher, suite, tiny_model)
    for name in ("teacher", "asymmetric"):
        assert ours.columns[name][0].value == pytest.approx(theirs.columns[name][0].value, abs=0.01)
